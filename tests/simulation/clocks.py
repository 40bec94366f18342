"""A wall clock that jumps while nsqd runs: libfaketime (Debian's package) reads from a file what to add."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.needs import faketime

HOUR: Final = 3600


class WallClock:
    """The wall clock of the processes that are started with `environ`. Their monotonic clock is not changed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": str(faketime(threads=True)),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: int) -> None:
        """Set the clock to this many seconds ahead of the real time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)
