"""Whether the disk has room for what is published: asks the file system when `reserve.py` wants it to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsqd.log.faults import Fault, FaultKind
from nsqd.log.files import DiskError, error_text
from nsqd.log.reserve import Reserve, reserve_size

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import Files

log = logging.getLogger(__name__)


class Space:
    """Refuses what would leave less of the disk free than --disk-reserve, and reports low space as a fault."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        faults: Faults,
        now: Callable[[], float],
        *,
        reserve: int,
        unwritten: Callable[[], int],
    ) -> None:
        """`unwritten` returns how many bytes the logs have taken that are not in the file system yet."""
        self._folder = folder
        self._files = files
        self._fault = Fault(faults, FaultKind.RESERVE)
        self._now = now
        self._unwritten = unwritten
        self._reserve = Reserve(self._size_of(reserve))

    def refusal(self, size: int) -> str | None:
        """Return why `size` more bytes would leave too little of the disk free; None: they are counted as written."""
        reserve = self._reserve
        if not reserve.size:
            return None
        if reserve.wants_look(size, self._now()):
            self.look()
        return None if reserve.take(size) else self._low_space()

    def look(self) -> None:
        """Ask how much of the disk is free, and stop or resume publishing."""
        reserve = self._reserve
        try:
            free = self._files.free_bytes(self._folder)
        except OSError:
            reserve.could_not_look(self._now())
            return
        reserve.looked(free, unwritten=self._unwritten(), now=self._now())
        if reserve.is_open:
            self._fault.end()
        else:
            self._low_space()

    def is_low(self) -> bool:
        """Return whether less than the reserve is free. Blocks on the disk, and may be called from any thread."""
        try:
            return self._reserve.size > 0 and self._files.free_bytes(self._folder) < self._reserve.size
        except OSError:
            return False

    def _size_of(self, wanted: int) -> int:
        if not wanted:
            return 0
        try:
            return reserve_size(wanted, self._files.total_bytes(self._folder))
        except OSError as error:
            log.warning("no reserve is kept error=%s", error_text("statfs", self._folder, error))
            return 0

    def _low_space(self) -> str:
        """Return the error for a publisher. Report it as a fault, too, if the reserve is closed for everybody."""
        reserve = self._reserve
        left, kept = [f"{size / (1 << 20):.1f} MiB" for size in (reserve.free, reserve.size)]
        text = f"write {self._folder}: {left} left on the disk, of which --disk-reserve keeps {kept}"
        if not reserve.is_open:
            self._fault.begin(DiskError(text, is_full=True))
        return text
