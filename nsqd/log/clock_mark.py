"""Noticing that the wall clock was set while nsqd was down: delays are kept as wall time, so they end early or late.

node.json keeps a *mark*: the readings of two clocks at the same moment, and the id of the boot. One is the wall clock;
the other counts from boot on, cannot be set, and goes on while nsqd is down. Across a reboot only the wall clock can be
compared, and then a clock that was set forward looks like a machine that was off.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from nsqcommon.boot import boot_id

LONGEST_SLIP: Final = 60_000  # milliseconds that the wall clock may be ahead or behind before it is reported

# Both go on while the machine sleeps: macOS's monotonic clock does, and Linux' does not.
_SINCE_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockMark(NamedTuple):
    """The readings of both clocks at one moment, in milliseconds."""

    boot: str  # which boot it was; "" if the system does not tell
    since_boot: int
    wall: int


class ClockJump(NamedTuple):
    milliseconds: int  # negative: back
    is_certain: bool  # False: the machine may have been off for as long instead

    def __str__(self) -> str:
        seconds = abs(self.milliseconds) / 1000
        if not self.is_certain:
            return (
                f"the wall clock is {seconds:.0f} s ahead of when it was last noted, before a reboot: "
                "the machine was off, or the clock was set, and then delays end early by as much"
            )
        if self.milliseconds > 0:
            return f"the wall clock was set forward by {seconds:.0f} s: delays from before end early by as much"
        return f"the wall clock was set back by at least {seconds:.0f} s: delays from before end late by as much"


def clock_mark() -> ClockMark:
    """Return the present readings of both clocks."""
    return ClockMark(boot_id(), time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000, time.time_ns() // 1_000_000)


def jump_between(noted: ClockMark, now: ClockMark) -> ClockJump | None:
    """Return by how much the wall clock was set between the two marks; None: by too little to be reported."""
    is_same_boot = noted.boot == now.boot != "" and now.since_boot >= noted.since_boot
    passed = now.since_boot - noted.since_boot if is_same_boot else 0
    jump = now.wall - noted.wall - passed
    if abs(jump) <= LONGEST_SLIP:
        return None
    return ClockJump(jump, is_certain=is_same_boot or jump < 0)
