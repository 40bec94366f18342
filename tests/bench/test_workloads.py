"""The table of workloads, and which of them share a process."""

from __future__ import annotations

import pytest

from bench.workloads import WORKLOADS, arguments, together


def test_who_consumes_what_another_load_leaves_runs_behind_it() -> None:
    assert together(["mpub", "sub", "pub2"]) == [["mpub", "sub"], ["pub2"]]
    assert together(["sub"]) == [["mpub", "sub"]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deep", ("orders", 4, 1, 200, 2.0, 64)),
        ("mpub", ("orders", 2, 200, 200, 2.0, 1)),
        ("sub", ("orders", "ch", 2, 2500, 2.0, "quiet=0.5")),
    ],
)
def test_a_load_is_a_command_line_of_the_load_generator(name: str, words: tuple[object, ...]) -> None:
    assert arguments(WORKLOADS[name], "orders", 2.0) == words


def test_headers_are_on_larger_messages() -> None:
    assert arguments(WORKLOADS["mpub"], "orders", 2.0, size=402)[3] == 402
