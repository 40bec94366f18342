"""The part of reading that all logs of a store share: reads in threads, blocks in memory, and failed reads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nsqd.log.damage import Damage, report
from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import DiskError
from nsqd.log.reading.cold import AnyLoad, ReadDescriptors
from nsqd.log.segment import segment_name

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import Files
    from nsqd.log.reading.refusals import ReadRefusals
    from nsqd.log.wakeups import Wakeups

log = logging.getLogger(__name__)


class HoldsBlocks(Protocol):
    def forget_idle(self) -> bool:
        """Drop the blocks if nothing was read since the last call. Return whether they are gone."""


class RefusedReader(Protocol):
    refusals: ReadRefusals

    def ask_again(self) -> None:
        """Retry the oldest read that the disk keeps refusing."""


class ReadFault(StorageFault):
    """The fault of a log's reader while channels bypass messages that the disk refuses to read."""

    def __init__(self, reader: RefusedReader, faults: Faults) -> None:
        super().__init__(faults, FaultKind.READ)
        self.reader = reader


class Reads:
    """The state that the readers of all logs share.

    Touches the read descriptors, the list of damage, the read faults, and wake-ups of the store's tasks.
    """

    def __init__(
        self,
        files: Files,
        faults: Faults,
        wakeups: Wakeups,
        now: Callable[[], float],
        damage: list[Damage],
        *,
        most_descriptors: int,
    ) -> None:
        self.files = files
        self.now = now
        self.descriptors = ReadDescriptors(files, most_descriptors)
        self.reads_cache = True  # whether the file system supports reads from the page cache only
        self.loads: deque[AnyLoad] = deque()  # waiting for a thread
        self.refused_reads = 0  # since nsqd started
        self._faults = faults
        self._wakeups = wakeups
        self._damage = damage
        self._faulty: dict[RefusedReader, ReadFault] = {}
        self._holders: dict[HoldsBlocks, None] = {}  # readers with blocks in memory

    def load(self, load: AnyLoad) -> None:
        """Have a thread perform the load. Its result is then passed to `LogReader.loaded`."""
        self.loads.append(load)
        self._wakeups.load.set()

    def reads_cold(self, reader: HoldsBlocks) -> None:
        """Call the reader's `forget_idle` from time to time until it returns True."""
        self._holders[reader] = None
        self._wakeups.idle.set()

    def give_back_what_is_idle(self) -> bool:
        """Have the readers drop blocks that weren't used since the last call. Return whether all blocks are gone.

        If they are, also close the read descriptors.
        """
        for reader in [candidate for candidate in self._holders if candidate.forget_idle()]:
            del self._holders[reader]
        if not self._holders:
            self.descriptors.close()
        return not self._holders

    def damaged(self, topic: str, load: AnyLoad) -> None:
        """Log the holes that a load has found, and add them to the list of damage."""
        kept = {path.name: str(path) for path in load.aside}
        for hole in load.holes:
            name = load.segment.path.name
            copy = kept.get(f"{name}.damaged.{hole.offset}", "")
            text = "damage is skipped" if load.error is None else str(load.error)
            damage = Damage(topic, name, hole.offset, hole.first, hole.end, copy, text)
            self._damage.append(damage)
            report(damage)

    def lacks_front(self, topic: str, start: int, end: int) -> None:
        """Report unfinished messages as missing: [start, end) is before the first segment."""
        text = "segments are missing, or the journal is older than they are"
        self._damage.append(Damage(topic, segment_name(start), 0, start, end, "", text))
        report(self._damage[-1])

    def refused(self, reader: RefusedReader, load: AnyLoad) -> None:
        """Count a refused read. If readers bypass it (`load.bypassed`), also report a fault."""
        self.refused_reads += 1
        if load.bypassed is None:
            return
        fault = self._faulty.get(reader)
        if fault is None:
            first, end = load.bypassed
            log.warning("read failed, retrying later topic=%s first=%d end=%d", load.topic, first, end)
            fault = self._faulty[reader] = ReadFault(reader, self._faults)
        fault.begin(DiskError.of("read", load.segment.path, load.error) if load.error is not None else DiskError(""))

    def read_again(self, reader: RefusedReader) -> None:
        """End the reader's fault unless the reader still bypasses messages. Call this when a retried read succeeds."""
        if reader.refusals.oldest_stretch is None:
            self.forget(reader)

    def forget(self, reader: RefusedReader) -> None:
        """End this reader's fault, if it has one."""
        if (fault := self._faulty.pop(reader, None)) is not None:
            fault.end()
