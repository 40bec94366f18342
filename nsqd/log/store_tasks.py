"""The store's background tasks: syncing, flushing, loading, tidying up. Each one sleeps until its event is set."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from nsqd.log.compaction.schedule import COMPACTION_INTERVAL, COMPACTION_SLICE, Compaction, compact
from nsqd.log.data_path import Topology
from nsqd.log.files import remove_file
from nsqd.log.reading.refusals import is_refusal
from nsqd.log.sync.sync_thread import SyncThread

if TYPE_CHECKING:
    from nsqd.broker.store import Entry
    from nsqd.log.reading.cold import AnyLoad
    from nsqd.log.store import DiskStore

log = logging.getLogger(__name__)

FLUSH_INTERVAL: Final = 0.1  # seconds that acknowledged messages and non-urgent changes may stay in memory
TOPOLOGY_INTERVAL: Final = 0.2
TOPOLOGY_SLICE: Final = 0.001  # seconds of collecting names before other tasks get a turn
TOPOLOGY_SHARE: Final = 10  # collecting names may use at most a tenth of the time
ROTATION_SLICE: Final = 0.005  # seconds of writing snapshots before other tasks get a turn
IDLE_AFTER: Final = 10.0  # seconds after which unused descriptors and blocks are released
REPAIR_INTERVAL: Final = 1.0
LOAD_INTERVAL: Final = 0.25  # seconds until a refused read is tried again
LOADING_THREADS: Final = 4
PROBE_BYTES: Final = 256 * 1024
_PROBE: Final = "probe.tmp"


class TopicSource(Protocol):
    """The broker's topics, as the store's tasks see them."""

    def snapshot_topic(self, name: str) -> Iterable[Entry | None]:
        """Return the topic's state as journal changes. It's the state as of this call, even if you iterate later.

        A None among the changes marks a good moment to let other tasks run.
        """

    def exceptions(self, name: str) -> Iterable[Iterable[int]]:
        """Return, in pieces, the sequences before their cursors that the topic's channels still need."""


class StoreTasks:
    """The background tasks of one store."""

    def __init__(
        self,
        store: DiskStore,
        topics: TopicSource,
        *,
        on_loaded: Callable[[str], object],
        on_settled: Callable[[], object],
    ) -> None:
        """Set up the tasks.

        They call `on_loaded` with a topic's name after reading from its log, and `on_settled` after answering clients.
        """
        self.thread = SyncThread(store.files)
        self._store = store
        self._wakeups = store.wakeups
        self._topics = topics
        self._on_loaded = on_loaded
        self._on_settled = on_settled

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all tasks until cancelled. Cancellation waits for a sync in progress."""
        tasks: tuple[Callable[[], Awaitable[object]], ...] = (
            self._sync,
            self._flush,
            self._load,
            self._save_topology,
            self._rotate,
            self._repair,
            self._tidy,
            self._compact_logs,
        )
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(task)
            task_status.started()

    async def _sync(self) -> None:
        await self.thread.run(self._store.syncer, self._wakeups, on_settled=self._on_settled)

    async def _flush(self) -> None:
        while True:
            await self._wakeups.flush.wait()
            await trio.sleep(FLUSH_INTERVAL)
            self._store.flush()

    async def _load(self) -> None:
        store = self._store
        limiter = trio.CapacityLimiter(LOADING_THREADS)

        async def perform(load: AnyLoad) -> None:
            await trio.to_thread.run_sync(load.perform, store.files, limiter=limiter)
            if load.must_retry and load.error is not None:
                log.warning("cannot read now topic=%s error=%s", load.topic, load.error)
                await trio.sleep(LOAD_INTERVAL if is_refusal(load.error) else FLUSH_INTERVAL)
            store.end_load(load)
            self._on_loaded(load.topic)

        async with trio.open_nursery() as nursery:
            while True:
                await self._wakeups.load.wait()
                while store.reads.loads:
                    nursery.start_soon(perform, store.reads.loads.popleft())

    async def _save_topology(self) -> None:
        store = self._store
        while True:
            await self._wakeups.topology.wait()
            with trio.CancelScope(shield=True):  # `SyncThread.run` says why
                spent = await self._collect_names()
                topology = store.topology.take()
                if topology is not None:
                    try:
                        await trio.to_thread.run_sync(store.data_path.write_topology, topology.json())
                    except OSError as error:
                        store.topology.failed(topology, error)
                    else:
                        store.topology.saved()
            await trio.sleep(max(TOPOLOGY_INTERVAL, spent * TOPOLOGY_SHARE))

    async def _collect_names(self) -> float:
        """Collect the names in slices if they have changed. Returns how many seconds of work that took."""
        store = self._store
        names = store.topology.take_new_names()
        if names is None:
            return 0.0
        topology = Topology()
        spent = 0.0
        began = store.now()
        for part in names:
            store.topology.add_names(topology, part)
            if (so_far := store.now() - began) >= TOPOLOGY_SLICE:
                await trio.lowlevel.checkpoint()
                spent += so_far
                began = store.now()
        store.topology.save(topology)
        return spent + store.now() - began

    async def _rotate(self) -> None:
        store = self._store
        while True:
            await self._wakeups.rotation.wait()
            started = trio.current_time()
            if not store.start_rotation():
                continue
            log.info("rotating the journal topics=%d", len(store.logs))
            while store.journal.is_rotating:
                end = trio.current_time() + ROTATION_SLICE
                while (going := store.write_next_snapshot(self._topics.snapshot_topic)) and store.journal.is_rotating:
                    if trio.current_time() >= end:
                        break
                await trio.sleep(ROTATION_SLICE if going else REPAIR_INTERVAL)
            log.info("journal rotated size=%d seconds=%.3f", store.journal.size, trio.current_time() - started)
            self._wakeups.sync.set()

    async def _repair(self) -> None:
        store = self._store
        while True:
            await self._wakeups.repair.wait()
            while store.faults:
                await trio.sleep(REPAIR_INTERVAL)
                has_space = store.repairs.needs_space and await trio.to_thread.run_sync(disk_takes_data, store)
                store.repair(has_space=has_space)

    async def _tidy(self) -> None:
        while True:
            await self._wakeups.idle.wait()
            while True:
                await trio.sleep(IDLE_AFTER)
                if self._store.give_back_what_is_idle():
                    break

    async def _compact_logs(self) -> None:
        store = self._store
        while True:
            await self._wakeups.compaction.wait()
            while store.compaction:
                # If the data path was moved away, a compacted file would be written into the folder that is there now.
                due = [one for one in store.compaction if one.due_at <= store.now()] if store.is_in_place else []
                for compaction in due:
                    await self._compact(compaction)
                await trio.sleep(COMPACTION_INTERVAL)

    async def _compact(self, compaction: Compaction) -> None:
        for job in compact(self._store, compaction, self._topics.exceptions):
            if job is None:
                await trio.sleep(COMPACTION_SLICE)
                continue
            # Shielded as in `SyncThread.run`. Nothing is awaited after it, so the job's result is always applied.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(job.perform, self._store.files)


def disk_takes_data(store: DiskStore) -> bool:
    """Return whether a small test file can be written and synced. Blocks on the disk."""
    files, path = store.files, store.data_path.folder / _PROBE
    try:
        descriptor = files.open_to_write(path)
        try:
            files.write_fully(descriptor, [bytes(PROBE_BYTES)], 0)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
            remove_file(files, path)
    except OSError:
        return False
    return True
