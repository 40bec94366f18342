"""What two marks of the clocks say about a wall clock that was set in between."""

from __future__ import annotations

import pytest

from nsqd.log.clock_mark import ClockMark, clock_mark, jump_between

HOUR = 3_600_000
NOTED = ClockMark("a", 5 * HOUR, 100 * HOUR)


@pytest.mark.parametrize("passed", [0, 30_000, 40 * HOUR])
@pytest.mark.parametrize("slip", [0, 60_000, -60_000])
def test_downtime_of_the_same_boot_is_no_jump(passed: int, slip: int) -> None:
    assert jump_between(NOTED, ClockMark("a", 5 * HOUR + passed, 100 * HOUR + passed + slip)) is None


@pytest.mark.parametrize("jump", [60_001, HOUR, -60_001, -HOUR])
def test_jump_within_a_boot_is_told_apart_from_downtime(jump: int) -> None:
    found = jump_between(NOTED, ClockMark("a", 7 * HOUR, 102 * HOUR + jump))
    assert found is not None
    assert (found.milliseconds, found.is_certain) == (jump, True)


def test_clock_that_went_back_over_a_reboot_was_set_for_certain() -> None:
    found = jump_between(NOTED, ClockMark("b", 10, 99 * HOUR))
    assert found is not None
    assert (found.milliseconds, found.is_certain) == (-HOUR, True)
    assert "set back by at least 3600 s" in str(found)


@pytest.mark.parametrize("boot", ["b", ""])
def test_machine_that_was_off_looks_like_a_clock_that_was_set(boot: str) -> None:
    found = jump_between(NOTED, ClockMark(boot, 10, 101 * HOUR))
    assert found is not None
    assert (found.milliseconds, found.is_certain) == (HOUR, False)
    assert "the machine was off, or the clock was set" in str(found)


def test_marks_of_now_do_not_differ() -> None:
    assert jump_between(clock_mark(), clock_mark()) is None
