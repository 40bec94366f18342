"""Data paths on real files for tests that damage them. A broker makes and reads them; `nsqd fsck` examines them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, NamedTuple

from nsqcommon.wire.headers import encode_headers
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd.broker.rules import NO_RULES, ChannelRules, RuleSource
from nsqd.fsck import cli as fsck
from nsqd.log.compaction.schedule import compact
from nsqd.log.damage import Damage
from nsqd.log.files import Files
from nsqd.log.record import decode_header
from nsqd.log.store import DiskStore
from nsqd.options import Options
from nsqd.start import restored_broker
from nsqd.turn import Turn
from tests.support.fake_store import tell_nobody
from tests.support.given_rules import GivenRules
from tests.support.log_settings import log_settings
from tests.support.node import RULES, Client, Message

SEGMENT_SIZE = 600
OPTIONS = Options()
Findings = list[dict[str, Any]]


def _do_nothing() -> None: ...


class FastFiles(Files):
    """Files without syncs: no power is cut in these tests."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class DiskNode:
    """A broker on real files, without sockets and without a loop."""

    rules = RULES
    questions = None  # no client has to AUTH

    def __init__(self, path: Path, policy: RuleSource = NO_RULES) -> None:
        self.unfinished = UnfinishedBodies(1 << 20)
        settings = log_settings(max_bytes_per_file=SEGMENT_SIZE, mem_queue_size=0)
        self.store = DiskStore.open(path, settings, files=FastFiles())
        try:
            recovered = self.store.recover()
            self.broker = restored_broker(self.store, recovered, OPTIONS, policy, now=monotonic(), timestamp=time_ns())
        except BaseException:
            self.store.abandon()
            raise
        self._turn = Turn(self.broker, self.store, announce=tell_nobody, flush=_do_nothing)
        self.settle()

    @property
    def now(self) -> float:
        return self.broker.turn.now

    @property
    def damage(self) -> list[Damage]:
        return self.store.damage

    def turn(self) -> None:
        self._turn.begin()
        self._turn.finish()
        while self.store.reads.loads:
            load = self.store.reads.loads.popleft()
            load.perform(self.store.files)
            self.store.end_load(load)
            self.broker.loaded(load.topic)
            self._turn.finish()

    def settle(self) -> None:
        """Let a tenth of a second pass, and do what is due then."""
        self.turn()
        self.broker.record_progress()
        if self.broker.turn.shape_unsaved:
            self.broker.turn.shape_unsaved = False
            self.store.topology.set_names(self.broker.topology())
        if (topology := self.store.topology.take()) is not None:
            self.store.data_path.write_topology(topology.json())
        self.store.syncer.sync_now()
        self.store.flush()

    def write_next_snapshot(self) -> bool:
        return self.store.write_next_snapshot(self.broker.snapshot_topic)

    def compaction(self) -> None:
        """Let some seconds pass: finished segments are removed, and needed messages are compacted."""
        for log in tuple(self.store.compaction):
            for job in compact(self.store, log, self.broker.exceptions):
                if job is not None:
                    job.perform(self.store.files)

    def publish(self, topic: str, *bodies: bytes, delay_ms: int = 0, headers: bytes = b"") -> None:
        """Publish each body as a batch of its own."""
        for body in bodies:
            sized = len(body).to_bytes(4, "big") + body
            receipt = self.broker.topic(topic).publish_one(sized, delay_ms, headers=headers)
            self.turn()
            assert receipt.error is None, receipt.error

    def consume(self, topic: str, channel: str, count: int = 2500) -> Consumer:
        return Consumer(self, topic, channel, count)

    def stop(self) -> None:
        self.settle()
        self.store.close()

    def kill(self) -> None:
        self.store.abandon()


class Consumer:
    def __init__(self, node: DiskNode, topic: str, channel: str, count: int) -> None:
        self.node = node
        self.client = Client(node)  # type: ignore[arg-type]  # of a Node it needs what a DiskNode has
        self.client.say(b"  V2SUB %b %b\nRDY %d\n" % (topic.encode(), channel.encode(), count))
        self.got: list[Message] = []
        self.hear()

    def hear(self) -> None:
        while more := self.client.messages():
            self.got += more

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]

    def finish(self, *bodies: bytes) -> None:
        for message in self.got:
            if message.body in bodies:
                self.client.say(b"FIN %b\n" % message.id)

    def bury(self, *bodies: bytes, reason: str = "bad") -> None:
        subscription = self.client.protocol._subscription
        assert subscription is not None
        for message in self.got:
            if message.body in bodies:
                failure = subscription._channel.bury(subscription.consumer, message.id, reason, monotonic())
                assert failure is None, failure
        self.node.turn()

    def requeue(self, body: bytes, delay_ms: int) -> None:
        (number,) = (message.id for message in self.got if message.body == body)
        self.client.say(b"REQ %b %d\n" % (number, delay_ms))


@contextmanager
def running(path: Path, policy: RuleSource = NO_RULES) -> Iterator[DiskNode]:
    """Run nsqd, and kill it at the end of the block unless the test has stopped it."""
    node = DiskNode(path, policy)
    try:
        yield node
    finally:
        node.kill()


def body(number: int) -> bytes:
    return b"message %d " % number + bytes([65 + number % 26]) * (40 + number % 30)


BODIES = [body(number) for number in range(40)]
FINISHED = BODIES[:14]  # by channel c


def make(path: Path, *, kill: bool = False) -> None:
    """Make topic t with two channels and many segments, and topic u with a frozen backlog.

    Some messages are finished, deferred or requeued.
    """
    path.mkdir(exist_ok=True)
    with running(path) as node:
        node.broker.topic("t").channel("c")
        node.broker.topic("t").channel("d")
        node.broker.topic("u").pause()
        node.settle()
        node.publish("t", *BODIES)
        node.publish("t", b"late", delay_ms=3_000_000)
        node.publish("u", b"u0", b"u1")
        node.settle()
        consumer = node.consume("t", "c")
        consumer.finish(*FINISHED)
        consumer.requeue(BODIES[20], 3_000_000)
        node.settle()
        if not kill:
            node.stop()


WAITING = BODIES[3:30:5]  # make_carried leaves these in compacted files


def make_compacted(path: Path) -> None:
    """Make topic t with a channel that has finished all but a few messages, which wait in compacted files."""
    path.mkdir(exist_ok=True)
    with running(path) as node:
        node.broker.topic("t").channel("c")
        node.publish("t", *BODIES)
        consumer = node.consume("t", "c")
        consumer.finish(*(it for it in BODIES if it not in WAITING))
        for it in WAITING:
            consumer.requeue(it, 3_000_000)
        node.settle()
        node.compaction()
        node.settle()
        node.stop()


def make_buried(path: Path, *, compacted: bool) -> None:
    """Make topic t with a channel that has buried a few messages and finished all others."""
    path.mkdir(exist_ok=True)
    with running(path) as node:
        node.broker.topic("t").channel("c")
        node.publish("t", *BODIES)
        consumer = node.consume("t", "c")
        consumer.finish(*(it for it in BODIES if it not in WAITING))
        consumer.bury(*WAITING)
        node.settle()
        if compacted:
            node.compaction()
            node.settle()
        node.stop()


ORDER = GivenRules(ChannelRules(order="group"))
IN_ORDER = [BODIES[0], *WAITING]  # messages of one group


def make_held(path: Path, *, compacted: bool) -> None:
    """Make topic t with a channel in which the first message of a group is in flight, and its other messages are held.

    All messages without a group are finished.
    """
    path.mkdir(exist_ok=True)
    with running(path, ORDER) as node:
        node.broker.topic("t").channel("c")
        consumer = node.consume("t", "c")
        for it in BODIES:
            node.publish("t", it, headers=encode_headers({"nsq-group": "a"}) if it in IN_ORDER else b"")
        consumer.hear()
        consumer.finish(*(it for it in BODIES if it not in IN_ORDER))
        node.settle()
        if compacted:
            node.compaction()
            node.settle()
        node.stop()


def snapshot(path: Path) -> dict[Path, bytes]:
    return {file.relative_to(path): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def lay_out(files: dict[Path, bytes], path: Path) -> None:
    for name, data in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


class Outcome(NamedTuple):
    damage: list[Damage]
    c: list[bytes]
    d: list[bytes]
    waiting: set[int]  # sequences that are deferred in c


def outcome(path: Path) -> Outcome:
    """Return what a start reports, and what consumers get."""
    with running(path) as node:
        topic = node.broker.find("t")
        if topic is None or "c" not in topic.channels:
            return Outcome(list(node.damage), [], [], set())
        waiting = {sequence for _, sequence, _ in topic.channels["c"].ledger.deferred}
        c, d = node.consume("t", "c").bodies, node.consume("t", "d").bodies
        return Outcome(list(node.damage), c, d, waiting)


class FsckRun(NamedTuple):
    status: int
    findings: Findings
    err: str

    @property
    def serious(self) -> Findings:
        return [finding for finding in self.findings if finding["severity"] != "note"]


def run_fsck(path: Path, *flags: str) -> FsckRun:
    out, err = io.StringIO(), io.StringIO()
    status = fsck.main([*flags, "--json", str(path)], files=FastFiles(), out=out, err=err)
    found = json.loads(out.getvalue())["findings"] if out.getvalue() else []
    return FsckRun(status, found, err.getvalue())


def records_of(segment: bytes) -> list[tuple[int, int]]:
    """Return where each record starts and ends."""
    borders = [0]
    while (header := decode_header(segment, borders[-1])) is not None:
        borders.append(borders[-1] + header.size)
    return list(pairwise(borders))
