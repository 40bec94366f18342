from __future__ import annotations

import pytest

from nsqjobs.celery.finished import Breaks, Finished


def finished_at(now: float) -> Finished:
    finished = Finished()
    finished.add("tag", now)
    return finished


def test_a_further_attempt_of_a_finished_job_is_a_repeat() -> None:
    assert finished_at(100.0).is_repeat("tag", 2, Breaks())
    assert not Finished().is_repeat("tag", 2, Breaks())


def test_a_first_attempt_is_wanted_again_while_nothing_breaks() -> None:
    breaks = Breaks()
    breaks.connected(0.0)
    assert not finished_at(100.0).is_repeat("tag", 1, breaks)


@pytest.mark.parametrize(
    ("at", "is_repeat"),
    [(90.0, False), (99.0, True), (100.5, True), (103.0, False)],
    ids=["long before", "just before", "meanwhile", "afterwards"],
)
def test_a_first_attempt_is_a_repeat_if_the_job_was_finished_around_a_break(at: float, is_repeat: bool) -> None:
    breaks = Breaks()
    breaks.connected(0.0)
    breaks.broken(100.0)
    breaks.connected(101.0)
    finished = finished_at(at)
    assert finished.is_repeat("tag", 1, breaks) is is_repeat
    assert not finished.is_repeat("tag", 1, breaks)  # whoever wants it again gets it


def test_the_oldest_are_forgotten() -> None:
    finished = finished_at(0.0)
    for number in range(10_000):
        finished.add(str(number), 0.0)
    assert not finished.is_repeat("tag", 2, Breaks())
    assert finished.is_repeat("0", 2, Breaks())
