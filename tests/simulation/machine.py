"""nsqd without sockets and without a loop: broker, turn and store on a simulated disk, with a clock that tests move.

What the daemon does in tasks and threads beside the turns (`nsqd.log.store_tasks`, `nsqd.timers`) are generators here.
Each yields how long it sleeps, or the wake-up that it waits for, and `pass_time` runs them in the order of their times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf
from random import Random
from typing import Final

from nsqcommon.wakeup import Wakeup
from nsqd.broker.rules import NO_RULES, RuleSource
from nsqd.log.clock_mark import ClockMark
from nsqd.log.compaction.schedule import COMPACTION_INTERVAL, Compaction, compact
from nsqd.log.data_path import DataPathError
from nsqd.log.faults import FaultKind
from nsqd.log.files import Files
from nsqd.log.reading.cold import AnyLoad
from nsqd.log.remote import Remote
from nsqd.log.settings import LogSettings
from nsqd.log.store import DiskStore
from nsqd.log.store_tasks import (
    FLUSH_INTERVAL,
    IDLE_AFTER,
    REPAIR_INTERVAL,
    TOPOLOGY_INTERVAL,
    disk_takes_data,
)
from nsqd.options import Options
from nsqd.start import restored_broker
from nsqd.turn import Turn
from tests.simulation.disk import DATA_PATH, SimulatedDisk
from tests.support.fake_store import tell_nobody

PROGRESS_INTERVAL: Final = 0.05
LONGEST_SYNC: Final = 30.0  # seconds of simulated time

_WALL_START: Final = 1_700_000_000_000_000_000

Task = Generator[float | Wakeup, None, None]


class Clock:
    """True time, and the two clocks that a process sees: one begins anywhere with each start, one is set now and then."""

    def __init__(self) -> None:
        self._true = 0  # nanoseconds
        self._boot = 0
        self._step = 0
        self.forward = 0.0  # the most seconds by which the wall clock was set forward

    @property
    def true(self) -> float:
        return self._true / 1e9

    def monotonic(self) -> float:
        return (self._true + self._boot) / 1e9

    def wall(self) -> int:
        return _WALL_START + self._true + self._step

    def mark(self) -> ClockMark:
        return ClockMark("", 0, self.wall() // 1_000_000)

    def reach(self, monotonic: float) -> None:
        self._true = max(self._true, ceil(monotonic * 1e9) - self._boot)
        while self.monotonic() < monotonic:  # makes up for the rounding of a float
            self._true += 1

    def sleep(self, seconds: float) -> None:
        self._true += ceil(seconds * 1e9)

    def restart(self, random: Random) -> None:
        self._boot = random.randrange(10**9, 10**15) - self._true

    def step(self, seconds: float) -> None:
        self._step += int(seconds * 1e9)
        self.forward += max(0.0, seconds)


@dataclass(eq=False)
class _Running:
    task: Task
    due: float = 0.0
    waits_for: Wakeup | None = None


class Machine:
    """A machine, made anew for each start. `observe` is called after each turn and each step of a task."""

    def __init__(
        self,
        disk: SimulatedDisk,
        clock: Clock,
        settings: LogSettings,
        options: Options,
        random: Random,
        rules: RuleSource = NO_RULES,
        *,
        files: Files | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.disk = disk
        self.files = files or disk  # what the log sees of the disk
        self.clock = clock
        self.random = random
        self.flush: Callable[[], None] = lambda: None
        self.observe: Callable[[], None] = lambda: None
        self.on_sync_begun: Callable[[], None] = lambda: None
        self.on_sync_ended: Callable[[str | None], None] = lambda error: None
        self._tasks: list[_Running] = []
        self._shielded = 0  # tasks for whose end a stop waits
        self._saves_topology = False
        self.store = DiskStore.open(
            DATA_PATH,
            settings,
            files=self.files,
            clock=clock.monotonic,
            wall=clock.wall,
            new_id=lambda: random.randbytes(16).hex(),
            pause=clock.sleep,
            clock_mark=clock.mark,
        )
        self.store.remote = remote
        try:
            self._start(options, rules)
        except DataPathError:
            self.store.close()
            raise

    def _start(self, options: Options, rules: RuleSource) -> None:
        store, clock = self.store, self.clock
        self.recovered = store.recover()
        self.broker = restored_broker(
            store, self.recovered, options, rules, now=clock.monotonic(), timestamp=clock.wall()
        )
        self.broker.turn.random_percent = lambda: self.random.randrange(100)
        self._turn = Turn(self.broker, store, announce=tell_nobody, flush=lambda: self.flush(), remote=store.remote)
        sync = store.syncer.collect()
        sync.perform(self.files)
        store.syncer.settle(sync)
        self.starts_synced = sync.result.error is None
        if sync.result.error is not None:
            store.journal_keeper.distrust(sync.result.error)
        for task in (
            self._commit,
            self._write_buffers,
            self._load,
            self._save_topology,
            self._rotate,
            self._repair,
            self._tidy,
            self._compact_logs,
            self._save_progress,
            self._apply_retention,
        ):
            self._start_task(task())

    def stop(self) -> None:
        """End the process as if it was asked to."""
        with self.turn():
            pass
        while self._shielded:
            self._run_what_is_due(self._next_due())
        self.broker.record_progress()
        self.store.close()

    # Turns

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.broker.turn.now = self.clock.monotonic()
        self.broker.turn.timestamp = self.clock.wall()
        yield
        self._turn.finish()
        self.observe()

    def _loaded(self, topic: str) -> None:
        with self.turn():
            self.broker.loaded(topic)

    def _settled(self) -> None:
        with self.turn():
            pass

    @property
    def topology_is_unsaved(self) -> bool:
        store = self.store
        is_waiting = self.broker.turn.shape_unsaved or store.topology.is_unsaved
        return is_waiting or self._saves_topology or FaultKind.TOPOLOGY in store.faults

    # Time

    def pass_time(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (due := self._next_due()) <= end:
            self._run_what_is_due(due)
        self.clock.reach(end)

    def sync(self, *topics: str) -> str | None:
        """Do what `DiskStore.sync` does for operators. Return the error, if any."""
        self.store.write_logs()
        error = self._next_sync(topics)
        if error is None:
            self.store.sync_checkpoints()
            error = self._next_sync(topics)
        return error

    def _next_sync(self, topics: Iterable[str]) -> str | None:
        result = self.store.syncer.request_sync()
        end = self.clock.monotonic() + LONGEST_SYNC
        while not result.ended.is_set():
            due = self._next_due()
            assert due < end, "a sync that somebody waits for never happens"
            self._run_what_is_due(due)
        error = result.error_of(topics)
        return error.text if error is not None else None

    def _next_due(self) -> float:
        now = self.clock.monotonic()
        alarm = max(self.broker.turn.alarms.next, now)
        return min(alarm, min(self._due_of(running, now) for running in self._tasks))

    def _due_of(self, running: _Running, now: float) -> float:
        if running.waits_for is None:
            return running.due
        return now if running.waits_for.is_set else inf

    def _run_what_is_due(self, due: float) -> None:
        self.clock.reach(due)
        now = self.clock.monotonic()
        if self.broker.turn.alarms.next <= now:
            with self.turn():
                self.broker.expire()
        else:
            ready = [running for running in self._tasks if self._due_of(running, now) <= now]
            self._resume(self.random.choice(ready))

    def _start_task(self, task: Task) -> None:
        running = _Running(task)
        self._tasks.append(running)
        self._resume(running)

    def _resume(self, running: _Running) -> None:
        if running.waits_for is not None:
            running.waits_for.clear()
        awaited = next(running.task, None)
        self.observe()
        if awaited is None:
            self._tasks.remove(running)
        elif isinstance(awaited, float):
            running.waits_for, running.due = None, self.clock.monotonic() + awaited
        else:
            running.waits_for = awaited

    def _a_while(self) -> float:
        """Return how long a thread takes for its work on the disk."""
        return self.random.choice((0.0, 0.001, 0.02))

    # What runs beside the turns

    def _commit(self) -> Task:
        store = self.store
        while True:
            yield store.wakeups.sync
            self._shielded += 1
            sync = store.syncer.collect()
            self.on_sync_begun()
            yield self._a_while()
            if not sync.is_empty:
                sync.perform(self.files)
            yield self._a_while()
            if store.syncer.settle(sync):
                self._settled()
            self.on_sync_ended(sync.result.error.text if sync.result.error is not None else None)
            self._shielded -= 1
            yield 0.01 if store.syncer.is_awaited else self.random.choice((0.01, 0.05, 0.5))

    def _write_buffers(self) -> Task:
        while True:
            yield self.store.wakeups.flush
            yield FLUSH_INTERVAL
            self.store.flush()

    def _load(self) -> Task:
        store = self.store
        while True:
            yield store.wakeups.load
            while store.reads.loads:
                self._start_task(self._perform(store.reads.loads.popleft()))

    def _perform(self, load: AnyLoad) -> Task:
        yield self._a_while()
        load.perform(self.files)
        yield FLUSH_INTERVAL if load.must_retry else self._a_while()
        self.store.end_load(load)
        self._loaded(load.topic)

    def _save_topology(self) -> Task:
        store = self.store
        while True:
            yield store.wakeups.topology
            self._shielded += 1
            self._saves_topology = True
            topology = store.topology.take()
            yield self._a_while()
            if topology is not None:
                try:
                    store.data_path.write_topology(topology.json())
                except OSError as error:
                    store.topology.failed(topology, error)
                else:
                    store.topology.saved()
            self._shielded -= 1
            self._saves_topology = False
            yield TOPOLOGY_INTERVAL

    def _rotate(self) -> Task:
        store = self.store
        while True:
            yield store.wakeups.rotation
            if not store.start_rotation():
                continue
            while store.journal.is_rotating:
                yield 0.005 if store.write_next_snapshot(self.broker.snapshot_topic) else REPAIR_INTERVAL
            store.wakeups.sync.set()

    def _repair(self) -> Task:
        store = self.store
        while True:
            yield store.wakeups.repair
            while store.faults:
                yield REPAIR_INTERVAL
                has_space = store.repairs.needs_space and disk_takes_data(store)
                store.repair(has_space=has_space)

    def _tidy(self) -> Task:
        while True:
            yield self.store.wakeups.idle
            yield IDLE_AFTER
            while not self.store.give_back_what_is_idle():
                yield IDLE_AFTER

    def _compact_logs(self) -> Task:
        store = self.store
        while True:
            yield store.wakeups.compaction
            while store.compaction:
                for compaction in [one for one in store.compaction if one.due_at <= store.now()]:
                    yield from self._compact(compaction)
                yield COMPACTION_INTERVAL

    def _compact(self, compaction: Compaction) -> Task:
        steps = compact(self.store, compaction, self.broker.exceptions, stretch=0.0)
        for job in steps:
            if job is None:
                yield self._a_while()
                continue
            self._shielded += 1
            yield self._a_while()
            job.perform(self.files)
            yield self._a_while()
            next(steps, None)
            self._shielded -= 1

    def _save_progress(self) -> Task:
        broker, store, turn = self.broker, self.store, self._turn
        while True:
            turn.progress_made.clear()
            if not (broker.turn.journal.unsaved or broker.turn.to_release or broker.turn.shape_unsaved):
                yield turn.progress_made
            yield PROGRESS_INTERVAL
            if broker.turn.shape_unsaved:
                broker.turn.shape_unsaved = False
                store.topology.set_names(broker.topology())
            broker.record_progress()
            store.write_journal(force=True)

    def _apply_retention(self) -> Task:
        interval = self.store.settings.retention_interval
        while interval is not None:
            yield interval
            with self.turn():
                self.broker.apply_retention(list(self.broker.topics))
