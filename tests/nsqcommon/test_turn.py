"""Entering the cores of a daemon."""

from __future__ import annotations

import pytest

from nsqcommon.turn import in_turn


class Turns:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def begin(self) -> float:
        self.steps.append("begin")
        return 5.0

    def finish(self) -> None:
        self.steps.append("finish")


def test_a_turn_has_a_time_and_is_finished() -> None:
    turns = Turns()
    with in_turn(turns) as now:
        turns.steps.append(f"at {now}")
    assert turns.steps == ["begin", "at 5.0", "finish"]


def test_a_turn_is_finished_when_its_body_raises() -> None:
    turns = Turns()
    with pytest.raises(KeyError), in_turn(turns):
        raise KeyError
    assert turns.steps == ["begin", "finish"]
