"""When a worker starts again, and how long that takes."""

from __future__ import annotations

import pytest

from nsqd.workers.restarts import LONGEST_PAUSE, STEADY, Ending, Next, Pauses, next_after


def ending(status: int = -9, lived: float = 1.0) -> Ending:
    return Ending(status=status, lived=lived)


@pytest.mark.parametrize(
    ("status", "is_renewed", "has_been_ready", "follows"),
    [
        (-9, False, True, Next.START),
        (-9, False, False, Next.START),  # killed while it read a long log
        (1, False, True, Next.START),
        (1, False, False, Next.GIVE_UP),
        (0, False, True, Next.REST),
        (0, True, True, Next.START),
        (3, False, True, Next.REST),  # another machine goes on with its node, and would be stopped by a start
        (3, False, False, Next.REST),
        (-9, True, True, Next.START),
    ],
)
def test_what_follows_an_end(status: int, is_renewed: bool, has_been_ready: bool, follows: Next) -> None:
    assert next_after(ending(status), is_renewed=is_renewed, has_been_ready=has_been_ready) is follows


def test_a_standby_waits_again_when_another_machine_goes_on_with_its_node() -> None:
    assert next_after(ending(3), is_renewed=False, has_been_ready=True, stands_by=True) is Next.START
    assert next_after(ending(0), is_renewed=False, has_been_ready=True, stands_by=True) is Next.REST


def test_a_worker_is_started_again_at_once_unless_it_keeps_dying() -> None:
    pauses = Pauses()
    assert [pauses.pause_after(ending()) for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]


def test_pauses_stop_growing() -> None:
    pauses = Pauses()
    assert [pauses.pause_after(ending()) for _ in range(2000)][-1] == LONGEST_PAUSE


def test_a_long_life_makes_the_next_start_immediate() -> None:
    pauses = Pauses()
    for _ in range(5):
        pauses.pause_after(ending())
    assert pauses.pause_after(ending(lived=STEADY)) == 0.0
    assert pauses.pause_after(ending()) == 0.0


@pytest.mark.parametrize(("status", "is_orderly"), [(0, True), (-15, True), (-2, True), (-9, False), (1, False)])
def test_a_process_that_had_no_handler_yet_has_stopped_as_it_was_asked(status: int, is_orderly: bool) -> None:
    assert ending(status).is_orderly is is_orderly


def test_an_end_is_described() -> None:
    assert str(ending(-9)) == "was killed by SIGKILL"
    assert str(ending(-99)) == "was killed by signal 99"
    assert str(ending(3)) == "ended with exit status 3"
