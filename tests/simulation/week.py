"""Deferred messages over a simulated week, and a broker that dies at random: `python -m tests.simulation deferred`.

The test drives broker and store by hand on two virtual clocks. At a death it simply abandons the store: the contents of
buffers are lost, and the monotonic clock begins somewhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from nsqcommon.wire.commands import dpub, fin, mpub, req
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd.broker.broker import Broker
from nsqd.broker.journal_replay import complete, replay
from nsqd.broker.message_id import IdSource
from nsqd.broker.rules import NO_RULES
from nsqd.log.compaction.schedule import compact
from nsqd.log.store import DiskStore
from tests.nsqd.log.harness import headers_of
from tests.support.broker_settings import broker_settings
from tests.support.fake_store import finish_turn
from tests.support.log_settings import log_settings
from tests.support.node import RULES, Client, Message

START: Final = 1_700_000_000_000_000_000  # wall clock
MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
WEEK: Final = 7 * 24 * HOUR
STEPS: Final = 24 * 7
LONG_DELAYS: Final = replace(RULES, max_req_timeout_ms=int(WEEK * 1000), max_defer_timeout_ms=int(WEEK * 1000))


class Life:
    """One data path, and the brokers that serve it one after the other."""

    questions = None  # no client has to AUTH

    def __init__(self, path: Path, random: Random, **settings: Any) -> None:
        self.path = path
        self.random = random
        self.settings = log_settings(**settings)
        self.elapsed = 0.0  # seconds since the very beginning
        self.deaths = 0
        self.rules = LONG_DELAYS
        self.unfinished = UnfinishedBodies(1 << 20)
        self._start()

    def _start(self) -> None:
        self._offset = self.random.uniform(0, 1e6) - self.elapsed  # the machine may have been rebooted
        self.store = DiskStore.open(self.path, self.settings, clock=lambda: self.now, wall=self.wall)
        recovered = self.store.recover()
        ids = IdSource(1, timestamp=self.wall(), reserved=recovered.ids_reserved, reserve=self.store.reserve_ids)
        self.broker = Broker(
            self.store,
            broker_settings(mem_queue_size=100, mem_queue_bytes=1 << 20),
            ids=ids,
            now=self.now,
            timestamp=self.wall(),
            random_percent=lambda: 0,
            rules=NO_RULES,
            note=print,
            learns=False,
        )
        states = replay(recovered.changes)
        firsts = {name: log.first for name, log in recovered.logs.items()}
        complete(states, recovered.topology, firsts, journal_is_whole=True)
        self.broker.restore(states, dict(recovered.logs))
        assert self.broker.turn.lost == {}
        self._sync()
        self.client = Client(self)  # type: ignore[arg-type]  # of a node it needs what is here
        self.publisher = Client(self)  # type: ignore[arg-type]
        for client in (self.client, self.publisher):
            client.say(b"  V2")

    @property
    def now(self) -> float:
        return self.elapsed + self._offset

    def wall(self) -> int:
        return START + int(self.elapsed * 1e9)

    def turn(self) -> None:
        finish_turn(self.broker, self.store)  # type: ignore[arg-type]  # a store, as the fake one is

    def say(self, *commands: bytes) -> None:
        self.client.say(b"".join(commands))
        self.client.go_on()

    def publish(self, *commands: bytes) -> None:
        self.publisher.say(b"".join(commands))
        self.publisher.go_on()
        self.publisher.hear()

    def subscribe(self) -> None:
        self.say(b"SUB t c\nRDY 2500\n")

    def pass_time(self, seconds: float) -> None:
        self.elapsed += seconds
        self.broker.turn.now = self.now
        self.broker.turn.timestamp = self.wall()
        self.broker.expire()
        self.turn()

    def messages(self) -> list[Message]:
        """Return all messages that can be had now."""
        found: list[Message] = []
        while True:
            self._load()
            came = self.client.messages()
            if not came and not self.store.reads.loads:
                return found
            found += came

    def _load(self) -> None:
        while self.store.reads.loads:
            load = self.store.reads.loads.popleft()
            load.perform(self.store.files)
            self.store.end_load(load)
            self.broker.loaded(load.topic)
            self.turn()

    # The tasks beside the turns, which a death may interrupt anywhere

    def tend(self, *, dies: bool = False) -> None:
        """Do progress, journal, syncs, rotation and compaction; with `dies` only up to some step."""
        steps = self._tend(carries=dies or self.random.random() < 0.1)
        for _ in islice(steps, self.random.randrange(7) if dies else None):
            pass
        if dies:
            self.die()

    def settle(self) -> None:
        self._save()
        for _ in self._compact_logs():
            pass
        self._sync()

    def _tend(self, *, carries: bool) -> Iterator[None]:
        """Yield at each step where a death may interrupt it."""
        for step in (self._save, self._sync, self._rotate):
            step()
            yield
        if carries:
            yield from self._compact_logs()
            yield
            self._sync()

    def _compact_logs(self) -> Iterator[None]:
        for log in tuple(self.store.compaction):
            for job in compact(self.store, log, self.broker.exceptions):
                if job is not None:
                    yield
                    job.perform(self.store.files)
                    assert job.error is None
                    yield

    def die(self) -> None:
        self.store.abandon()
        self.deaths += 1
        self._start()

    def _save(self) -> None:
        self.broker.record_progress()
        self.store.flush()

    def _sync(self) -> None:
        self.store.syncer.sync_now()

    def _rotate(self) -> None:
        if self.store.journal.wants_rotation:
            self.store.start_rotation()
            while self.store.journal.is_rotating:
                self.store.write_next_snapshot(self.broker.snapshot_topic)

    # Looking at it

    @property
    def folder(self) -> Path:
        return self.path / "topics" / "t.t"

    def segments(self) -> int:
        return len(list(self.folder.glob("*.log")))

    def compacted_files(self) -> int:
        return len(list(self.folder.glob("carried.*")))

    def history(self) -> Counter[int]:
        """Return how often each sequence is in the log as readers of history see it."""
        found: Counter[int] = Counter()
        for header in headers_of(self.store, "t", self.store.logs["t"].first):
            found.update(range(header.base_sequence, header.end_sequence))
        return found


class Expected:
    """When each message may come, and whether it has come."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.due: dict[bytes, float] = {}  # seconds since the beginning, by body
        self.attempts: dict[bytes, int] = {}
        self.delivered = 0
        self.early: list[bytes] = []
        self.fewer: list[bytes] = []

    def publish(self, count: int) -> None:
        life = self.life
        for start in range(0, count, 500):
            commands = []
            for number in range(start, min(start + 500, count)):
                delay = life.random.randint(1, int(WEEK * 1000) - 1)
                body = b"deferred %d" % number
                self.due[body] = life.elapsed + delay / 1000
                commands.append(dpub("t", delay, body))
            life.publish(*commands)

    def consume(self) -> None:
        """Consume all messages: finish most, requeue some for later, let some time out."""
        life = self.life
        answers = []
        # A message that timed out before its frame was read comes twice; the later delivery counts.
        for message in {message.id: message for message in life.messages()}.values():
            due = self.due.get(message.body)
            if due is None:  # other traffic, or finished without the journal's knowledge before the death
                answers.append(fin(message.id))
                continue
            self.delivered += 1
            if life.elapsed < due:
                self.early.append(message.body)
            if message.attempts < self.attempts.get(message.body, 0):
                self.fewer.append(message.body)
            self.attempts[message.body] = message.attempts
            choice = life.random.random()
            if choice < 0.9:
                answers.append(fin(message.id))
                del self.due[message.body]
            elif choice < 0.95:
                delay = life.random.randint(1, int(12 * HOUR))
                answers.append(req(message.id, delay * 1000))
                self.due[message.body] = life.elapsed + delay
        life.say(*answers)


def play(path: Path, *, messages: int, seed: int, scale: float = 1.0) -> tuple[Life, Expected]:
    """Play the whole week and a day, on a real disk. Return what went wrong.

    `scale` makes segments and other traffic smaller, so that fewer messages fill as many segments.
    """
    random = Random(seed)
    life = Life(path, random, max_bytes_per_file=int(scale * 512 * 1024), mem_queue_size=100)
    life.subscribe()
    expected = Expected(life)
    expected.publish(messages)
    for step in range(STEPS):
        life.publish(mpub("t", [b"traffic %d" % step + bytes(100)] * int(scale * 400)))
        life.pass_time(WEEK / STEPS + MINUTE)
        expected.consume()
        dies = random.random() < 0.06
        life.tend(dies=dies)
        if dies:
            life.subscribe()
    for _ in range(20):  # messages that were requeued last, or left to time out
        life.pass_time(HOUR)
        expected.consume()
        life.tend()
    life.settle()
    return life, expected
