"""`python -m bench all --quick` has a quick form of every benchmark, which its command line accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.__main__ import BENCHMARKS
from bench.everything import QUICK, AllSettings, settings_of


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_quick_form(name: str) -> None:
    given = AllSettings()
    assert QUICK[name]
    assert settings_of(BENCHMARKS[name], replace(given, quick=True)) != settings_of(BENCHMARKS[name], given)
