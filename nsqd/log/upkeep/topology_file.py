"""The names of topics and channels on their way to topology.json: turns hand them over, and a task of the store writes."""

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
    """Collects names, and holds the newest collection until it is written.

    May touch topology.json, its own fault and its own wake-up; of the logs it reads only their ids. Collecting goes
    through all channels of all topics, so a task does it in slices. Writing blocks, so a thread does it.
    """

    def __init__(
        self, data_path: DataPath, logs: Mapping[str, DiskLog | MemoryLog], faults: Faults, wakeup: Wakeup
    ) -> None:
        self._data_path = data_path
        self._logs = logs
        self._fault = StorageFault(faults, FaultKind.TOPOLOGY)
        self._wakeup = wakeup
        self._unsaved: Topology | None = None
        self._new_names: Names | None = None  # returns all names, if some of them are in no collection yet

    def names_changed(self, names: Names) -> None:
        """Collect these names of all topics and write them in the background, because some of them have changed."""
        self._new_names = names
        self._wakeup.set()

    def take_new_names(self) -> Iterable[Mapping[str, object]] | None:
        """Return the names as they are now, in parts; None: they have not changed since they were last taken."""
        names, self._new_names = self._new_names, None
        return names() if names is not None else None

    def add_names(self, topology: Topology, names: Mapping[str, object]) -> None:
        """Add topics by name, with the ids of their present logs."""
        logs = self._logs
        ids = {name: log.log_id for name in names if isinstance(log := logs.get(name), DiskLog)}
        topology.add(names, ids)

    def set_names(self, names: Mapping[str, object]) -> None:
        """Write the names of all topics, given as plain values, in the background."""
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
        """Take the collection that has to be written; None: there is none."""
        topology, self._unsaved = self._unsaved, None
        return topology

    def saved(self) -> None:
        self._fault.end()

    def failed(self, topology: Topology, error: OSError) -> None:
        """Keep for the next try what could not be written."""
        if self._unsaved is None:  # otherwise a newer collection waits already
            self._unsaved = topology
        self._fault.begin(DiskError.of("write", self._data_path.folder / TOPOLOGY_JSON, error))

    def write_all(self) -> None:
        """Collect and write at once what is not written yet, as no other task needs its turn. Blocks on the disk."""
        if (names := self.take_new_names()) is not None:
            self._unsaved = Topology()
            for part in names:
                self.add_names(self._unsaved, part)
        if (topology := self.take()) is not None:
            try:
                self._data_path.write_topology(topology.json())
            except OSError as error:
                self.failed(topology, error)
