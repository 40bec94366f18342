"""A script of edits on a simulated disk, cut at each call of the disk, as a kill and as power cuts.

What is promised: after each end, channel c has exactly one of an edited message and its copy, and the copy if the edit
was answered. A copy of a finished message is there if its edit was answered. Channel d gets what was published, and
nothing else. Nobody consumes before the end, so nothing may have run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final
from unittest import mock

from pyroaring import BitMap64

from nsqcommon.wire.edited_copy import CopyMark
from nsqcommon.wire.headers import encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.buried import Note
from nsqd.broker.consumer import Consumer
from nsqd.broker.edit import Edit
from nsqd.broker.topic import Topic
from nsqd.options import Options
from tests.nsqd.http.whole.test_stats import CLIENT
from tests.simulation.disk import CHANGING, Call, Crash, SimulatedDisk, Stopped
from tests.simulation.life import small_journal
from tests.simulation.machine import Clock, Machine
from tests.simulation.promise import Violation
from tests.simulation.steps import crashes
from tests.support.given_rules import GivenRules
from tests.support.log_settings import log_settings

PUBLISHED: Final = 6
_LATER: Final = 100.0  # seconds; longer than any delay here


@dataclass
class Chain:
    """A message and its versions, oldest first. Version 0 is `0`, version 1 `0'` and so on."""

    begun: int = 0  # edits
    answered: int = 0
    is_finished: bool = False  # version 0 was, for sure, before the first edit

    def check(self, number: int, got: list[int]) -> None:
        """Check which versions of message `number` channel c has got. Raise Violation."""
        may_be_none = self.is_finished and not self.answered
        is_one = len(got) == 1 and got[0] >= self.answered and not (self.is_finished and got == [0])
        if not (is_one or (may_be_none and not got)):
            raise Violation(f"c got the versions {got} of message {number}: {self}")


@dataclass
class Script:
    """Everything that clients do, and what they were answered."""

    disk: SimulatedDisk
    ack: str
    random: Random = field(default_factory=lambda: Random(7))  # every run does the same
    clock: Clock = field(default_factory=Clock)
    chains: dict[int, Chain] = field(default_factory=lambda: {number: Chain() for number in range(PUBLISHED)})
    is_prepared: bool = False

    def __post_init__(self) -> None:
        self.settings = log_settings(ack=self.ack, max_bytes_per_file=700, mem_queue_size=4)
        self.options = Options(mem_queue_size=4)
        self.newest: dict[int, int] = {}  # number -> sequence of its last version

    def start(self) -> Machine:
        self.clock.restart(self.random)
        return Machine(self.disk, self.clock, self.settings, self.options, self.random, GivenRules())

    # The script

    def play(self) -> None:
        machine = self.start()
        with machine.turn():
            topic = machine.broker.topic("t")
            for name in ("c", "d", "e#ephemeral"):
                topic.channel(name)
        for number in range(PUBLISHED):
            with machine.turn():
                topic.publish_one(_sized(_body(number, 0)), 60_000 if number == 3 else 0)
            self.newest[number] = number
        with machine.turn():
            channel = topic.channels["c"]
            first_id = _batch_id(topic, 0)
            operator_actions.bury(channel, [(0, first_id, 1)], Note("bad", "me"))
            operator_actions.move(channel, BitMap64([1]), 50_000)
            operator_actions.cancel(channel, BitMap64([4]))
        assert machine.sync("t") is None
        self.chains[4].is_finished = self.is_prepared = True
        for number in (0, 1, 2, 3):  # buried, deferred, waiting, published with a delay
            self.edit(machine, number)
        self.edit(machine, 4, again=True)
        with machine.turn():
            topic.pause()
        self.edit(machine, 0, delay_ms=40_000)
        with machine.turn():
            topic.unpause()
        machine.pass_time(0.3)
        with machine.turn():  # two in a turn, and a publish between them
            one, other = self.begin(topic, 1), self.begin(topic, 5)
        self.end(machine, one, 1)
        self.end(machine, other, 5)
        for number in (0, 2, 0):
            self.edit(machine, number)
            machine.pass_time(0.2)
        machine.stop()

    def edit(self, machine: Machine, number: int, *, again: bool = False, delay_ms: int = 0) -> None:
        with machine.turn():
            edit = self.begin(machine.broker.topics["t"], number, again=again, delay_ms=delay_ms)
        self.end(machine, edit, number)

    def begin(self, topic: Topic, number: int, *, again: bool = False, delay_ms: int = 0) -> Edit:
        sequence, chain = self.newest[number], self.chains[number]
        edit = Edit(topic.channels["c"], sequence, again=again, delay_ms=delay_ms)
        assert edit.refusal is None, (number, edit.refusal)
        chain.begun += 1
        mark = CopyMark("c", 1, sequence, edit.replaces, "me")
        topic.publish_copy(edit, _sized(_body(number, chain.begun)), b"", encode_headers(mark.headers()))
        return edit

    def end(self, machine: Machine, edit: Edit, number: int) -> None:
        """Wait for the disk, as HTTP does."""
        self.newest[number] = edit.copy
        assert machine.sync("t") is None
        assert edit.receipt is not None
        assert edit.receipt.error is None
        self.chains[number].answered = self.chains[number].begun

    # What is there after an end

    def check(self, crash: Crash) -> None:
        if not self.is_prepared:
            return
        machine = self.start()
        topic = machine.broker.topics["t"]
        depth = topic.channels["d"].ledger.unfinished
        with machine.turn():
            operator_actions.seek(topic.channel("later"), topic.log.first)
            operator_actions.take_buried(topic.channels["c"], "kick", list(topic.channels["c"].ledger.buried.all()))
        machine.pass_time(_LATER)
        got = {name: consume(machine, topic, name) for name in ("c", "d", "later")}
        for name in ("d", "later"):
            wanted = [_body(number, 0) for number in range(PUBLISHED)]
            if name == "later":
                wanted = [body for body in wanted if body in got[name]]  # the log may have lost the first ones
            if got[name] != sorted(wanted):
                raise Violation(f"{name} got {got[name]}")
        for number, chain in self.chains.items():
            versions = [version for version in range(chain.begun + 1) if _body(number, version) in got["c"]]
            chain.check(number, versions)
        if len(set(got["c"])) != len(got["c"]):
            raise Violation(f"c got {got['c']}")
        # After a power cut, a channel may have a copy ahead whose edit the journal has lost, until its cursor comes there.
        if depth != PUBLISHED and not crash.is_power_cut:
            raise Violation(f"d had {depth} messages")
        machine.stop()
        machine = self.start()
        left = {name: consume(machine, machine.broker.topics["t"], name) for name in ("c", "d", "later")}
        if any(left.values()):
            raise Violation(f"came again: {left}")
        machine.stop()


def consume(machine: Machine, topic: Topic, name: str) -> list[bytes]:
    """Take and finish everything, and return the bodies, sorted."""
    got: list[bytes] = []
    pieces: list[bytes] = []
    channel = topic.channels[name]
    consumer = Consumer(send=pieces.extend, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    with machine.turn():
        channel.join(consumer)
        consumer.ready_count = 10
        channel.schedule_delivery()
    for _ in range(40):
        machine.pass_time(0.1)
        frames, consumer.unsent_bytes = b"".join(pieces), 0
        pieces.clear()
        done = []
        while frames:
            size = int.from_bytes(frames[:4], "big")
            done.append(frames[18:34])
            got.append(frames[34 : 4 + size])
            frames = frames[4 + size :]
        with machine.turn():
            if done:
                channel.finish(consumer, done)
            channel.schedule_delivery()
    with machine.turn():
        channel.leave(consumer)
    return sorted(got)


def _body(number: int, version: int) -> bytes:
    return b"%d" % number + b"'" * version


def _sized(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def _batch_id(topic: Topic, sequence: int) -> int:
    batch = topic.log.batch_at(sequence)
    assert batch is not None
    return batch.base_id + sequence - batch.base_sequence


@contextmanager
def tiny_journal() -> Iterator[None]:
    """Return settings of a journal that rotates within this short script."""
    with small_journal(), mock.patch("nsqd.log.journal.rotation.ROTATE_AT", 1000):
        yield


def cuts(ack: str) -> list[tuple[Call, Crash, float]]:
    """Return each call of the script with each way in which the process may end there."""
    return [(call, crash, torn) for call in calls(ack) for crash, torn in crashes(call)]


def calls(ack: str) -> list[Call]:
    """Return the calls of the whole script after which a crash may leave something else."""
    script = Script(SimulatedDisk(random=Random(7)), ack)
    with tiny_journal():
        script.play()
    return [call for call in script.disk.calls if call.kind in CHANGING]


def cut(ack: str, number: int, crash: Crash, torn: float) -> None:
    """Stop at call `number` of the disk, and check what is left. Raise Violation."""
    random = Random(7)
    script = Script(SimulatedDisk(random=random, stop_at=number, torn=torn), ack, random)
    try:
        with tiny_journal():
            try:
                script.play()
            except Stopped:
                script.disk.crash(crash, random)
            script.check(crash)
    except BaseException as error:
        error.add_note(f"ack={ack}, {crash} at call {number}, {torn} of it written")
        raise
