"""Whatever happens in whatever order: a key stands for one publish, until its time is over or all of it was taken back.

Hypothesis publishes with a few keys, with and without delays, repeats, consumes, cancels, empties, crashes, and lets time
pass. A dictionary of keys says after each step which publishes have to be stored, and which must not be.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.topic import Topic
from tests.support.fake_store import changes_in
from tests.support.node import Node
from tests.support.recalling import recalled

SECOND: Final = 1_000_000_000
WINDOW: Final = 80.0
SLICE: Final = WINDOW / 8
KEYS = st.sampled_from([b"a", b"b" * 40])
DELAYS = st.sampled_from([0, 0, 5_250, 60_250, 300_250, 900_250])  # never due when somebody looks
CHANNELS: Final = ("mail", "audit")
EXAMPLES: Final = int(os.environ.get("MODEL_EXAMPLES", "1000")) // 4
MOST_SLICES: Final = 1000  # of what is due at one time


@dataclass
class Publish:
    """The latest publish with a key."""

    start: int
    count: int
    at: float
    due: float  # when its delay is over; the same as `at` without one
    is_parked: bool = False  # no channel has got it yet
    left: dict[str, set[int]] = field(default_factory=dict)  # by channel: messages that nobody got or took back
    is_forgotten: bool = False

    @property
    def messages(self) -> set[int]:
        return set(range(self.start, self.start + self.count))


class KeysMachine(RuleBasedStateMachine):
    @initialize(channels=st.sampled_from([0, 1, 1, 2]))
    def begin(self, channels: int) -> None:
        self.node = Node(idempotence_window=int(WINDOW * SECOND))
        self.keys: dict[bytes, Publish] = {}
        self.stored = 0
        for name in CHANNELS[:channels]:
            self.topic.channel(name)
        self.node.turn()

    @property
    def topic(self) -> Topic:
        return self.node.broker.topic("t")

    def _is_known(self, key: bytes) -> bool | None:
        """Return whether the key has to be known; None: it is within the eighth in which either is right."""
        publish = self.keys.get(key)
        if publish is None or publish.is_forgotten:
            return False
        is_deferred = self.node.now < publish.due and any(publish.left.values())
        if is_deferred or (publish.is_parked and publish.due > publish.at):
            return True
        age = self.node.now - publish.at
        return True if age < WINDOW else None if age < WINDOW + SLICE + 0.01 else False

    @rule(key=KEYS, count=st.integers(1, 3), delay_ms=DELAYS, repeats=st.integers(1, 2))
    def publish(self, key: bytes, count: int, delay_ms: int, repeats: int) -> None:
        known = self._is_known(key)
        payload, offsets = b"\0\0\0\1x" * count, range(0, 5 * count + 1, 5)
        start = self.topic.log.tail
        receipts = [self.topic.publish(payload, offsets, delay_ms, key) for _ in range(repeats)]
        self.node.turn()
        assert all(receipt.settled and receipt.error is None for receipt in receipts)
        is_new = self.topic.log.tail > start
        assert self.topic.log.tail == start + (count if is_new else 0)
        if known is not None:
            assert is_new == (not known), key
        if is_new:
            now = self.node.now
            publish = self.keys[key] = Publish(start, count, now, now + delay_ms / 1000)
            publish.is_parked = not self.topic.channels
            publish.left = dict.fromkeys(self.topic.channels, publish.messages)

    @rule(key=KEYS, channels=st.sampled_from([(), ("mail",), ("audit",)]))
    def cancel(self, key: bytes, channels: tuple[str, ...]) -> None:
        publish = self.keys.get(key)
        if publish is None or not all(name in self.topic.channels for name in channels):
            return
        names = channels or tuple(self.topic.channels)
        known = self._is_known(key)
        if known is None:
            known = self.topic.knows_key(key)
        found = recalled(
            self.topic,
            publish.start,
            publish.start + publish.count,
            key=key if known else b"",
            channel=channels[0] if channels else "",
        )
        self.node.turn()
        if publish.is_parked:
            assert found == {"": CancelOutcome.CANCELLED}
            publish.is_forgotten, publish.is_parked = known, False
            return
        is_whole = all(publish.left.get(name) == publish.messages for name in self.topic.channels)
        for name in names:
            publish.left[name] = set()
        if known and is_whole and len(names) == len(self.topic.channels) > 0:
            publish.is_forgotten = True

    @rule(name=st.sampled_from(["", "", "", *CHANNELS]))
    def create_channel(self, name: str) -> None:
        if not name or name in self.topic.channels:
            return
        is_first = not self.topic.channels
        self.topic.channel(name)
        self.node.turn()
        for publish in self.keys.values():
            if is_first and publish.is_parked:
                publish.due += self.node.now - publish.at  # the delay begins now
                publish.is_parked = False
                publish.left = {name: publish.messages}
            else:
                publish.left[name] = set()

    @rule(name=st.sampled_from(CHANNELS))
    def consume(self, name: str) -> None:
        """Finish everything that the channel delivers now."""
        if name not in self.topic.channels:
            return
        self._consume(name)
        for publish in self.keys.values():
            if name in publish.left and publish.due <= self.node.now:
                publish.left[name] = set()

    def _consume(self, name: str) -> None:
        consumer = self.node.consumer("t", name, ready=100)
        self.node.load()
        while messages := consumer.messages():
            for message in messages:
                consumer.say(b"FIN %b\n" % message.id)
            self.node.load()
        consumer.protocol.close()
        self.node.clients.remove(consumer)
        self.topic.channels[name].ledger.record_progress(urgent=True)  # or a crash would bring back what was finished
        self.node.turn()

    @rule(seconds=st.sampled_from([0.5, 25.0, 45.0, 100.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self._pass_time(seconds)

    def _pass_time(self, seconds: float) -> None:
        """Let time pass, and do everything that is due then: where slices are small, that takes several turns."""
        self.node.pass_time(seconds)
        for _ in range(MOST_SLICES):
            if self.node.broker.turn.alarms.next > self.node.now:
                return
            self.node.pass_time(0.0)
        raise AssertionError("it does not end")

    @rule(rotates=st.booleans(), lets_go=st.booleans())
    def crash(self, rotates: bool, lets_go: bool) -> None:
        if lets_go:
            self.node.broker.apply_retention(["t"])
            self.node.turn()
        if rotates:
            self.node.store.journal = [("snapshot", "t"), *changes_in(self.topic.snapshot_changes())]
        self.node.crash()
        self._pass_time(0.0)  # what has become due meanwhile, or was before, is deferred no longer

    @rule(what=st.sampled_from(["", "", "", "", "empty", "delete"]))
    def empty_or_delete(self, what: str) -> None:
        if not what:
            return
        if what == "empty":
            self.topic.empty()
        else:
            self.node.broker.delete_topic("t")
        self.node.turn()
        self.keys.clear()

    @invariant()
    def keys_are_known_and_counted(self) -> None:
        if not hasattr(self, "node"):
            return
        for key, publish in self.keys.items():
            if publish.is_forgotten:
                place = self.topic.forgotten_place(key)
                assert place in (None, (publish.start, publish.start + publish.count))
        assert self.node.broker.turn.keys.count == len(self.topic._keys)


TestKeys = KeysMachine.TestCase
TestKeys.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[*HealthCheck],
)
