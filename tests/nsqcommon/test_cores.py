"""How many cores there are for this process."""

from __future__ import annotations

import os

import pytest

from nsqcommon.cores import usable_cores, yield_core


def test_only_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cores() == 2


@pytest.mark.parametrize(("there_are", "usable"), [(8, 8), (None, 1)])
def test_a_system_that_does_not_tell_lets_it_use_all(
    there_are: int | None, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: there_are)
    assert usable_cores() == usable


def test_a_core_can_be_left_to_others() -> None:
    yield_core()
