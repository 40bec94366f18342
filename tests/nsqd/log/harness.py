"""What the tests of the log on disk share: a store without a loop, and disks that misbehave."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio

from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.store import Entry
from nsqd.log.compaction.rewrite import CompactionJob
from nsqd.log.compaction.schedule import compact
from nsqd.log.faults import Faults
from nsqd.log.files import Buffers, Files
from nsqd.log.log_fault import LogFault
from nsqd.log.log_state import LogState
from nsqd.log.reading.cold import Load
from nsqd.log.reading.refusals import READ_PATIENCE
from nsqd.log.record import Header
from nsqd.log.recovery.store import Recovered
from nsqd.log.remote import Remote
from nsqd.log.store import DiskStore
from nsqd.log.store_tasks import LOAD_INTERVAL, StoreTasks
from nsqd.log.topic_log import DiskLog
from nsqd.log.writing.unsynced import Unsynced
from tests.nsqd.log.batches import bodies_of, make_batch
from tests.support.jumping import hold_clock_while
from tests.support.log_settings import log_settings

START = 100.0
WALL = 1_700_000_000_000_000_000  # wall clock at the start, in nanoseconds


class Clock:
    """A clock that stands still until a test moves it or lets it follow another one."""

    def __init__(self) -> None:
        self.now = START
        self.follows: Callable[[], float] | None = None

    def __call__(self) -> float:
        return self.now if self.follows is None else self.follows()


class OpenStore:
    """A store, what it recovered, and the steps of a turn and of the tasks beside it."""

    def __init__(
        self, path: Path, files: Files | None = None, *, remote: Remote | None = None, **settings: Any
    ) -> None:
        self.clock = Clock()
        self.store = DiskStore.open(
            path, log_settings(**settings), files=files, clock=self.clock, wall=self.wall, pause=self.pause
        )
        self.store.remote = remote
        self.recovered: Recovered = self.store.recover()
        # What a broker would record; tests replace it.
        self.state_of: Callable[[str], Iterable[Entry]] = lambda topic: ()
        self.exceptions_of: Callable[[str], Iterable[Iterable[int]]] = lambda topic: ()
        self.on_loaded: Callable[[str], object] = lambda topic: None
        self.on_settled: Callable[[], object] = lambda: None

    def pause(self, seconds: float) -> None:
        self.clock.now += seconds

    def wall(self) -> int:
        return WALL + int((self.clock.now - START) * 1_000_000_000)

    def log(self, topic: str = "t") -> DiskLog:
        is_new = topic not in self.store.logs
        log = self.store.create_log(topic)
        assert isinstance(log, DiskLog)
        if is_new:
            self.store.write_journal(force=True)  # a broker records the topic as an urgent change
        return log

    def publish(self, *bodies: bytes, topic: str = "t", delay_ms: int = 0) -> Receipt:
        """Publish one batch in one turn."""
        receipt = self.append(*bodies, topic=topic, delay_ms=delay_ms)
        self.store.write_logs()
        return receipt

    def append(self, *bodies: bytes, topic: str = "t", delay_ms: int = 0) -> Receipt:
        log = self.log(topic)
        receipt = Receipt()
        log.append(make_batch(log.tail, bodies, timestamp=self.wall(), delay_ms=delay_ms), receipt)
        return receipt

    def record(self, *changes: Entry) -> None:
        """Record each change in a turn of its own."""
        for change in changes:
            self.store.record(change, urgent=True)
            self.store.write_journal()

    def sync(self) -> None:
        self.store.syncer.sync_now()

    def checkpoint(self) -> None:
        """Do what happens 100 ms later."""
        self.sync()
        self.store.flush()

    def rotate(self) -> None:
        """Write everything anew into another file of the journal."""
        assert self.store.start_rotation()
        while self.store.journal.is_rotating:
            assert self.write_next_snapshot()
        self.sync()

    def write_next_snapshot(self) -> bool:
        return self.store.write_next_snapshot(self.state_of)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        tasks = StoreTasks(
            self.store, self, on_loaded=lambda topic: self.on_loaded(topic), on_settled=lambda: self.on_settled()
        )
        hold_clock_while(lambda: self.store.syncer.is_busy)
        await tasks.run(task_status)

    def snapshot_topic(self, name: str) -> Iterable[Entry]:
        return self.state_of(name)

    def exceptions(self, name: str) -> Iterable[Iterable[int]]:
        return self.exceptions_of(name)

    def load(self) -> list[Load]:
        """Perform the reads that wait for a thread."""
        loads = list(self.store.reads.loads)
        self.store.reads.loads.clear()
        for load in loads:
            load.perform(self.store.files)
            if load.must_retry:
                self.clock.now += LOAD_INTERVAL
            self.store.end_load(load)
            self.on_loaded(load.topic)
        return [load for load in loads if isinstance(load, Load)]

    def compaction(self) -> list[CompactionJob]:
        """Do what a task does some time later: look for something to compact, and compact it."""
        self.sync()
        jobs = []
        for log in tuple(self.store.compaction):
            for job in compact(self.store, log, self.exceptions):
                if job is not None:
                    job.perform(self.store.files)
                    jobs.append(job)
        return jobs

    def read(self, topic: str = "t", *, start: int | None = None) -> dict[int, bytes]:
        """Return every message that can be read, by sequence."""
        log = self.log(topic)
        found: dict[int, bytes] = {}
        sequence = log.next_readable(log.first if start is None else start)
        while sequence < log.tail:
            batch = self.batch_at(log, sequence)
            if batch is not None:
                bodies = bodies_of(batch)[sequence - batch.base_sequence :]
                found.update(enumerate(bodies, sequence))
                sequence = batch.end_sequence
            else:
                sequence = log.end_of_refused(sequence)
            sequence = log.next_readable(sequence)
        return found

    def batch_at(self, log: DiskLog, sequence: int) -> Batch | None:
        """Return the batch, if need be from disk.

        None if the sequence turns out to be damaged, or is refused for long.
        """
        for _ in range(3 + int(READ_PATIENCE / LOAD_INTERVAL)):
            batch = log.batch_at(sequence)
            if batch is not None:
                assert batch.base_sequence <= sequence < batch.end_sequence
                return batch
            self.load()
            if log.next_readable(sequence) != sequence or log.end_of_refused(sequence) != sequence:
                return None
        raise AssertionError(f"{sequence} is neither read nor damaged")

    def segments(self, topic: str = "t") -> list[Path]:
        return sorted(self.log(topic).folder.glob("*.log"))

    def kill(self) -> None:
        self.store.abandon()


def fault_of(faults: Faults, now: Callable[[], float]) -> LogFault:
    """Return the fault of a log that has nothing else."""
    folder = Path("t")
    return LogFault("t", folder, Unsynced(folder, LogState("id")), faults, now)


@contextmanager
def opened(path: Path, files: Files | None = None, **settings: Any) -> Iterator[OpenStore]:
    """Open a store that is killed at the end, unless the test has closed it."""
    store = OpenStore(path, files, **settings)
    try:
        yield store
    finally:
        store.kill()


def numbers(changes: Iterable[Entry]) -> list[object]:
    """Return the second word of each change, which these tests count up."""
    return [change[1] for change in changes]


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below the folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


class TroubledFiles(Files):
    """A disk that fails when told to, and records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.failing: dict[str, int] = {}  # operation -> errno
        self.fails_for: Callable[[str], bool] = lambda name: True  # decides by a file's name whether its calls fail
        self.most_per_write: int | None = None
        self.writes_before_failing = 0  # bytes of a failing write that reach the file
        self._paths: dict[int, Path] = {}

    def fail(self, operation: str, code: int = errno.ENOSPC) -> None:
        self.failing[operation] = code

    def recover(self) -> None:
        self.failing.clear()

    def _note(self, operation: str, path: Path) -> None:
        self.calls.append((operation, path.name))
        code = self.failing.get(operation)
        if code is not None and self.fails_for(path.name):
            raise OSError(code, os.strerror(code), str(path))

    def open_to_write(self, path: Path) -> int:
        self._note("open", path)
        descriptor = super().open_to_write(path)
        self._paths[descriptor] = path
        return descriptor

    def open_to_read(self, path: Path) -> int:
        self._note("open to read", path)
        descriptor = super().open_to_read(path)
        self._paths[descriptor] = path
        return descriptor

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        path = self._paths[descriptor]
        try:
            self._note("write", path)
        except OSError:
            os.pwrite(descriptor, b"".join(buffers)[: self.writes_before_failing], offset)
            raise
        if self.most_per_write is not None:
            return os.pwrite(descriptor, b"".join(buffers)[: self.most_per_write], offset)
        return super().write_at(descriptor, buffers, offset)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        self._note("read", self._paths[descriptor])
        return super().read_at(descriptor, size, offset)

    def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
        self._note("read cached", self._paths[descriptor])
        return super().read_cached_at(descriptor, size, offset)

    def sync(self, descriptor: int) -> None:
        self._note("sync", self._paths[descriptor])

    def sync_folder(self, path: Path) -> None:
        self._note("sync folder", path)

    def truncate(self, descriptor: int, size: int) -> None:
        self._note("truncate", self._paths[descriptor])
        super().truncate(descriptor, size)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        self._note("allocate", self._paths[descriptor])
        super().allocate(descriptor, offset, size)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._note("unlink", path)
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self._note("mkdir", path)
        super().make_folder(path)


class Crash(Exception):
    """The process has ended at this call."""


class CrashingFiles(Files):
    """Performs this many changes of the disk, half of the next one if it is a write, and then none."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.left = changes

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def open_to_write(self, path: Path) -> int:
        if not path.exists():
            self._step()
        return super().open_to_write(path)

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        data = b"".join(buffers)
        if self.left == 0:
            os.pwrite(descriptor, data[: len(data) // 2], offset)
        self._step()
        return super().write_at(descriptor, buffers, offset)

    def truncate(self, descriptor: int, size: int) -> None:
        self._step()
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self._step()
        super().make_folder(path)

    def sync(self, descriptor: int) -> None:
        self._step()

    def sync_folder(self, path: Path) -> None:
        self._step()


class ForgetfulFiles(Files):
    """Knows what was synced, so that `cut_power` can remove a part of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._synced: dict[Path, bytes] = {}
        self._lasting: set[Path] = set()  # names that a sync of their folder has made durable
        self._paths: dict[int, Path] = {}

    def open_to_write(self, path: Path) -> int:
        descriptor = super().open_to_write(path)
        self._paths[descriptor] = path
        return descriptor

    def open_to_read(self, path: Path) -> int:
        descriptor = super().open_to_read(path)
        self._paths[descriptor] = path
        return descriptor

    def sync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        self._synced[path] = path.read_bytes()

    def sync_folder(self, path: Path) -> None:
        self._lasting |= set(path.iterdir())

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if source in self._synced:
            self._synced[target] = self._synced.pop(source)

    def cut_power(self, folder: Path, random: Random) -> None:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file():
                if path not in self._lasting and random.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(self._left_of(path, random))
            elif path not in self._lasting and not any(path.iterdir()):
                path.rmdir()

    def _left_of(self, path: Path, random: Random) -> bytes:
        """Return what was synced, with nothing of the rest, a piece of it, or pages of zeros."""
        now = path.read_bytes()
        synced = self._synced.get(path, b"")
        if not now.startswith(synced):
            return now if random.random() < 0.5 else synced
        size = random.randint(len(synced), len(now))
        rest = bytearray(now[len(synced) : size])
        if rest and random.random() < 0.3:
            start = random.randrange(len(rest))
            rest[start:] = bytes(len(rest) - start)
        return synced + bytes(rest)


def headers_of(store: DiskStore, topic: str, sequence: int = 0) -> list[Header]:
    """Return the headers of the batches on disk, from the one that holds the sequence."""
    log = store.logs[topic]
    assert isinstance(log, DiskLog)
    return list(log.reader.headers_from(sequence))


def texts(bodies: Sequence[bytes] | dict[int, bytes]) -> str:
    """Return short bodies as one word."""
    return b"".join(bodies.values() if isinstance(bodies, dict) else bodies).decode()
