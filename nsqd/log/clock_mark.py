"""Detects that the wall clock was set while nsqd was down. It matters because delays are stored as wall time.

node.json keeps a *mark*: readings of two clocks at the same moment, and the id of the boot. One is the wall clock. The
other counts from boot and can't be set, so it shows how long nsqd was down. For example, if it has advanced by an hour
and the wall clock by two, the wall clock was set forward by an hour. After a reboot we can only compare the wall clock,
and then a clock that was set forward looks the same as a machine that was off.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from nsqcommon.boot import boot_id

LONGEST_SLIP: Final = 60_000  # milliseconds; a smaller jump isn't reported

# We need a clock that keeps going while the machine sleeps. On macOS that's the monotonic clock, on Linux it isn't.
_SINCE_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockMark(NamedTuple):
    """The readings of both clocks at the same moment, in milliseconds."""

    boot: str  # the boot's id; "" if the system has none
    since_boot: int
    wall: int


class ClockJump(NamedTuple):
    milliseconds: int  # negative: set back
    is_certain: bool  # False: maybe the machine was just off for that long

    def __str__(self) -> str:
        seconds = abs(self.milliseconds) / 1000
        if not self.is_certain:
            return (
                f"the wall clock is {seconds:.0f} s ahead of its last reading before the reboot: "
                "the machine was off, or the clock was set; in that case older delays end that much early"
            )
        if self.milliseconds > 0:
            return f"the wall clock was set forward by {seconds:.0f} s: older delays end that much early"
        return f"the wall clock was set back by at least {seconds:.0f} s: older delays end that much late"


def clock_mark() -> ClockMark:
    """Read both clocks."""
    return ClockMark(boot_id(), time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000, time.time_ns() // 1_000_000)


def jump_between(noted: ClockMark, now: ClockMark) -> ClockJump | None:
    """Return how far the wall clock was set between two marks, or None if that's too little to report."""
    is_same_boot = noted.boot == now.boot != "" and now.since_boot >= noted.since_boot
    # After a reboot we don't know how much time has passed, so only a jump back is certain.
    passed = now.since_boot - noted.since_boot if is_same_boot else 0
    jump = now.wall - noted.wall - passed
    if abs(jump) <= LONGEST_SLIP:
        return None
    return ClockJump(jump, is_certain=is_same_boot or jump < 0)
