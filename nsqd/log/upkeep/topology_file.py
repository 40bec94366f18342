"""Saves the names of topics and channels in topology.json, in the background."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nsqd.log.data_path import TOPOLOGY_JSON, DataPath, Topology
from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import DiskError
from nsqd.log.topic_log import DiskLog

if TYPE_CHECKING:
    from nsqcommon.wakeup import Wakeup
    from nsqd.broker.store import Names
    from nsqd.log.faults import Faults
    from nsqd.log.memory_log import MemoryLog


class TopologyFile:
    """Holds the newest names until a task of the store has written them.

    Turns only call `names_changed`. Collecting the names visits all channels of all topics, so the task does it in
    slices. Writing blocks on the disk, so a thread does it.
    """

    def __init__(
        self, data_path: DataPath, logs: Mapping[str, DiskLog | MemoryLog], faults: Faults, wakeup: Wakeup
    ) -> None:
        self._data_path = data_path
        self._logs = logs
        self._fault = StorageFault(faults, FaultKind.TOPOLOGY)
        self._wakeup = wakeup
        self._unsaved: Topology | None = None
        self._new_names: Names | None = None  # returns all names; set if they changed since they were last collected

    def names_changed(self, names: Names) -> None:
        """Schedule a write. `names` will be called later to collect the names of all topics."""
        self._new_names = names
        self._wakeup.set()

    def take_new_names(self) -> Iterable[Mapping[str, object]] | None:
        """Return the current names, in parts, or None if they haven't changed since the last call."""
        names, self._new_names = self._new_names, None
        return names() if names is not None else None

    def add_names(self, topology: Topology, names: Mapping[str, object]) -> None:
        """Add these topics to `topology`, with the ids of their current logs."""
        logs = self._logs
        ids = {name: log.log_id for name in names if isinstance(log := logs.get(name), DiskLog)}
        topology.add(names, ids)

    def set_names(self, names: Mapping[str, object]) -> None:
        """Schedule a write of these names, which must be the names of all topics."""
        topology = Topology()
        self.add_names(topology, names)
        self.save(topology)

    def save(self, topology: Topology) -> None:
        self._unsaved = topology
        self._wakeup.set()

    @property
    def is_unsaved(self) -> bool:
        return self._unsaved is not None

    def take(self) -> Topology | None:
        """Return the names to write, and forget them here. None if there is nothing to write."""
        topology, self._unsaved = self._unsaved, None
        return topology

    def saved(self) -> None:
        self._fault.end()

    def failed(self, topology: Topology, error: OSError) -> None:
        """Record the fault, and keep these names for the next try."""
        if self._unsaved is None:  # otherwise newer names are waiting already
            self._unsaved = topology
        self._fault.begin(DiskError.of("write", self._data_path.folder / TOPOLOGY_JSON, error))

    def write_all(self) -> None:
        """Collect and write any unsaved names in one go, for a shutdown. Blocks on the disk."""
        if (names := self.take_new_names()) is not None:
            self._unsaved = Topology()
            for part in names:
                self.add_names(self._unsaved, part)
        if (topology := self.take()) is not None:
            try:
                self._data_path.write_topology(topology.json())
            except OSError as error:
                self.failed(topology, error)
