"""Trying again whatever is broken, once a second as long as something is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nsqd.log.faults import StorageFault
from nsqd.log.reading.refusals import ReadRefusals
from nsqd.log.topic_log import DiskLog

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.journal.keeper import JournalKeeper
    from nsqd.log.space import Space
    from nsqd.log.sync.removals import Removals
    from nsqd.log.wakeups import Wakeups


class Repairs:
    """Goes through the faults, and has the owner of each try to mend it.

    May touch wake-ups, and one fault: that of the ids is taken back before the reservation is written again. Every
    other owner takes its fault back itself when a try succeeds.
    """

    def __init__(
        self,
        faults: Faults,
        wakeups: Wakeups,
        *,
        keeper: JournalKeeper,
        removals: Removals,
        space: Space,
        logs: Callable[[], Iterable[DiskLog]],
        reserve_ids: Callable[[], None],
    ) -> None:
        """`reserve_ids` writes the reservation of ids again, after it could not be written."""
        self._faults = faults
        self._wakeups = wakeups
        self._keeper = keeper
        self._removals = removals
        self._space = space
        self._logs = logs
        self._reserve_ids = reserve_ids

    @property
    def needs_space(self) -> bool:
        """Whether one of the faults can be mended only when the disk takes data."""
        if self._keeper.needs_space:
            return True
        need_none = (
            self._keeper.journal,
            StorageFault.PLACE,
            StorageFault.DROPPING,
            StorageFault.REMOVAL,
            StorageFault.RESERVE,
        )
        return any(source not in need_none and not isinstance(source, ReadRefusals) for source in self._faults)

    def run(self, *, has_space: bool) -> None:
        """Try again whatever is broken; without space, only what needs little or frees some."""
        for source in self._faults:
            if source is self._keeper.journal:
                self._keeper.repair(has_space=has_space)
            elif source is StorageFault.DROPPING:
                self._removals.try_again()
            elif source is StorageFault.REMOVAL:
                self._wakeups.sync.set()
            elif source is StorageFault.RESERVE:
                self._space.look()
            elif isinstance(source, ReadRefusals):
                for log in self._logs():
                    log.reader.ask_again(source)
            elif has_space:
                self._run_with_space(source)

    def _run_with_space(self, source: object) -> None:
        if isinstance(source, DiskLog):
            source.try_to_repair()
        elif source is StorageFault.IDS:
            self._faults.repaired(source)
            self._reserve_ids()
        elif source is StorageFault.TOPOLOGY:
            self._wakeups.topology.set()
