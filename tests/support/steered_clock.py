"""A clock that a test steers for several processes at once: programs of ours that run as real processes, and the test.

The clock is a small file in memory. `jump` moves it on, for all of them in the same moment; between two jumps it goes on
by itself for `STALL` seconds, and then a `SLOWER`th as fast, so that a busy machine can't make anything late. It never
stands still: a program that gives way to others until a millisecond later would wait for ever. Before the first jump,
and in a block of `free`, it goes on like any clock, so that programs can start. Importing this module replaces
Python's clocks, which show the real time until `follow` has named the file; so a program has to import it first.

A process that sleeps until a certain time doesn't notice a jump by itself: ask it something.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from struct import Struct
from typing import Final

STALL: Final = 0.5  # seconds
SLOWER: Final = 50

_SLOT: Final = Struct("<ddd")  # the steered time of the last jump, the real one, and the seconds that may pass since
_SLOTS: Final = (8, 8 + _SLOT.size)  # behind the number of the one that counts; the other one is written
_SIZE: Final = 96
_monotonic, _time = time.monotonic, time.time


class SteeredClock:
    """The clock in a file. Its wall time began together with it."""

    def __init__(self, path: Path, *, wall: float | None = None) -> None:
        """With `wall`, make the file, and let the clock begin at this time in seconds since 1970."""
        if wall is not None:
            path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        if wall is not None:
            now = _monotonic()
            _SLOT.pack_into(self._memory, _SLOTS[0], now, now, inf)
            _SLOT.pack_into(self._memory, _SIZE - _SLOT.size, wall, now, 0.0)
        self._wall, self._began, _ = _SLOT.unpack_from(self._memory, _SIZE - _SLOT.size)

    def monotonic(self) -> float:
        return self._at(_monotonic())

    def wall(self) -> float:
        now: float = self._wall + self.monotonic() - self._began
        return now

    def jump(self, seconds: float) -> None:
        """Move the clock on. Only one process may do that."""
        self._write(seconds, STALL)

    @contextmanager
    def free(self, most: float = 60.0) -> Iterator[None]:
        """Let the clock go on by itself during the block, at its full speed for so many seconds."""
        self._write(0.0, most)
        try:
            yield
        finally:
            self._write(0.0, STALL)

    def _at(self, real: float) -> float:
        steered, jumped, most = _SLOT.unpack_from(self._memory, _SLOTS[self._memory[0]])
        passed = max(real - jumped, 0.0)
        now: float = steered + (passed if passed <= most else most + (passed - most) / SLOWER)
        return now

    def _write(self, seconds: float, most: float) -> None:
        """Let the steered time be so much later. It goes on from one real time, so that it never goes back."""
        other, real = 1 - self._memory[0], _monotonic()
        _SLOT.pack_into(self._memory, _SLOTS[other], self._at(real) + seconds, real, most)
        self._memory[0] = other


def follow(path: Path) -> None:
    """Let Python's clocks in this process show the time of this file."""
    clock = SteeredClock(path)
    _shown["monotonic"], _shown["wall"] = clock.monotonic, clock.wall


_shown = {"monotonic": _monotonic, "wall": _time}


def replace_clocks() -> None:
    """Replace the functions of `time`. Modules that have imported them by name keep the real ones."""
    time.monotonic = time.perf_counter = lambda: _shown["monotonic"]()
    time.time = lambda: _shown["wall"]()
    time.monotonic_ns = time.perf_counter_ns = lambda: int(_shown["monotonic"]() * 1e9)
    time.time_ns = lambda: int(_shown["wall"]() * 1e9)
    time.clock_gettime_ns = lambda kind: time.time_ns() if kind == time.CLOCK_REALTIME else time.monotonic_ns()
