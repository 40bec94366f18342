"""`python -m bench all --quick` has a quick form of every benchmark, which its command line accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.__main__ import AT_MOST_OF_ALL, BENCHMARKS, COMMANDS, limit_of
from bench.everything import QUICK, AllSettings, settings_of
from scripts.command_line import read_command


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_quick_form(name: str) -> None:
    given = AllSettings()
    assert QUICK[name]
    assert settings_of(BENCHMARKS[name], replace(given, quick=True)) != settings_of(BENCHMARKS[name], given)


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        (["latency"], BENCHMARKS["latency"].at_most),
        (["latency", "--at-most=1.5"], 1.5),
        (["latency", "--at-most=0"], 0),  # no limit
        (["all"], AT_MOST_OF_ALL),
    ],
)
def test_a_benchmark_gives_up_after_its_own_limit_or_the_one_that_was_given(words: list[str], minutes: float) -> None:
    assert limit_of(*read_command(COMMANDS, words, name="bench", about="")) == minutes
