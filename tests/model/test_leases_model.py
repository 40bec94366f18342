"""Whoever polls, leaves, answers or lets time pass: a lease has one holder, the bounds hold, and no message is lost.

Hypothesis plays two holders that poll and stream, a consumer over TCP, and the clock.
"""

from __future__ import annotations

import os
from math import inf
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqd.broker.http_consumers import HttpCaller, HttpConsumer, LeasePoll, StreamingConsumer, ids_in
from nsqd.broker.leases import Leases, TooMany
from nsqd.broker.rules import NO_CHANNEL_RULES, ChannelRules
from tests.support.given_rules import GivenRules
from tests.support.leasing import bounds
from tests.support.lengths import sized
from tests.support.node import Node

HOLDERS: Final = st.sampled_from([HttpCaller(holder=name, remote_address=f"{name}:1") for name in ("ana", "ben")])
SOME: Final = st.integers(0, 1000)  # chooses one of what there is
IN_CHANNEL: Final = 12
OF_HOLDER: Final = 8
EXAMPLES: Final = int(os.environ.get("MODEL_EXAMPLES", "1000")) // sized(short=10, long=5)


class Leasing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.policy = GivenRules()
        self.node = Node(policy=self.policy, mem_queue_size=10_000)
        self.channel = self.node.broker.topic("t").channel("c")
        self.leases = Leases(self.node.broker.turn, bounds(in_channel=IN_CHANNEL, of_holder=OF_HOLDER, waiting=100))
        self.published = 0
        self.finished: set[bytes] = set()
        self.polls: list[tuple[LeasePoll, int, HttpCaller]] = []
        self.streams: list[tuple[StreamingConsumer, HttpCaller]] = []
        self.usage: dict[bytes, HttpCaller] = {}  # by who has taken it last
        self.consumer = self.node.consumer(ready=0)
        self.publisher = self.node.client()
        self.node.clients.clear()  # so that nobody is closed for want of heartbeats
        self.node.turn()

    @initialize(most=st.sampled_from([None, None, 2, 5]))
    def limit(self, most: int | None) -> None:
        self.policy.of_channels = NO_CHANNEL_RULES if most is None else ChannelRules(max_in_flight=most)
        self.node.broker.rules_changed(["t"])
        self.node.turn()

    @property
    def places(self) -> float:
        """Return how many more messages may be in flight."""
        most = self.policy.of_channels.max_in_flight
        return inf if most is None else most - len(self.channel.in_flight)

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.publisher.say(b"PUB t\n\0\0\0\1x")
        self.published += count

    @rule(caller=HOLDERS, most=st.integers(1, 10), lease=st.sampled_from([1.0, 5.0]))
    def poll(self, caller: HttpCaller, most: int, lease: float) -> None:
        try:
            self.polls.append((self.leases.poll(self.channel, caller, most=most, lease=lease), most, caller))
        except TooMany:
            assert not self.leases.left(self.channel, caller.holder)
        self.node.turn()

    @rule(some=SOME)
    def take(self, some: int) -> None:
        if self.polls:
            poll, most, caller = self.polls.pop(some % len(self.polls))
            ids = list(ids_in(poll.take()))
            assert len(ids) == poll.count <= most
            self._got(ids, caller)
            self.node.turn()

    @rule(some=SOME)
    def leave(self, some: int) -> None:
        if self.polls:
            poll, _, _ = self.polls.pop(some % len(self.polls))
            poll.give_back()
            self.node.turn()

    @rule(caller=HOLDERS, most=st.integers(1, 6), some=SOME)
    def stream(self, caller: HttpCaller, most: int, some: int) -> None:
        after = sorted(self.usage)[some % len(self.usage)] if self.usage else b""
        try:
            streamer = self.leases.stream(self.channel, caller, most=most, lease=5.0, after=after, wake=lambda: None)
        except TooMany:
            pass
        else:
            self.streams.append((streamer, caller))
        self.node.turn()
        in_flight = self.channel.in_flight
        self.finished |= {it for it in self.usage if in_flight.owner(it) is None and not self._waits(it)}

    @rule(some=SOME)
    def read(self, some: int) -> None:
        if self.streams:
            streamer, caller = self.streams[some % len(self.streams)]
            self._got(list(ids_in(streamer.take())), caller)
            self.node.turn()

    @rule(some=SOME)
    def close(self, some: int) -> None:
        if self.streams:
            streamer, _ = self.streams.pop(some % len(self.streams))
            streamer.end()
            self.node.turn()

    @rule(
        caller=HOLDERS, some=SOME, count=st.integers(1, 4), verb=st.sampled_from(["fin", "fin", "fin", "req", "touch"])
    )
    def answer(self, caller: HttpCaller, some: int, count: int, verb: str) -> None:
        known = sorted(self.usage)
        ids = known[some % len(known) :][:count] if known else []
        mine = [it for it in ids if self._owner(it) == caller.holder]
        if verb == "fin":
            failures = self.leases.finish(self.channel, caller.holder, ids)
            self.finished |= {*mine}
        elif verb == "req":
            failures = self.leases.requeue(self.channel, caller.holder, ids, 0, counts=some % 2 == 0)
        else:
            failures, _ = self.leases.touch(self.channel, caller.holder, ids, 5.0)
        assert failures.keys() == {*ids} - {*mine}
        self.node.turn()

    @rule(ready=st.integers(0, 3))
    def consume_over_tcp(self, ready: int) -> None:
        self.consumer.say(b"RDY %d\n" % ready)
        for message_id in {message.id for message in self.consumer.messages()}:
            owner = self.channel.in_flight.owner(message_id)
            if owner is None or isinstance(owner, HttpConsumer):
                continue  # it has been read so late that its time was over
            assert message_id not in self.finished
            self.usage.pop(message_id, None)
            self.consumer.say(b"FIN %b\n" % message_id)
            self.finished.add(message_id)

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.node.pass_time(seconds)
        self.leases.sweep()
        self.node.turn()
        for poll, _, caller in self.polls:
            if not poll.count and poll is poll._poller.polls[0]:
                may_have = self.places and self.leases.left(self.channel, caller.holder)
                assert not (self.channel.depth and may_have), "it waits in vain"

    def _got(self, ids: list[bytes], caller: HttpCaller) -> None:
        """Note what somebody has read, perhaps so late that its lease has ended and somebody else has it."""
        for message_id in ids:
            if self._owner(message_id) == caller.holder:
                assert message_id not in self.finished
                self.usage[message_id] = caller

    def _owner(self, message_id: bytes) -> str | None:
        owner = self.channel.in_flight.owner(message_id)
        return owner.holder if isinstance(owner, HttpConsumer) else None

    def _waits(self, message_id: bytes) -> bool:
        sequence = int(message_id, 16) - self.node.store.logs["t"].batches[0].base_id
        return any(sequence == it for it, _ in self.channel.ledger.retries)

    @invariant()
    def nothing_is_lost(self) -> None:
        channel = self.channel
        assert channel.depth + len(channel.in_flight) + len(self.finished) == self.published

    @invariant()
    def bounds_hold(self) -> None:
        assert self.places >= 0, "one too many in flight"
        lessees = [it for it in self.channel.consumers if isinstance(it, HttpConsumer)]
        assert sum(it.in_flight for it in lessees) <= IN_CHANNEL
        for holder in ("ana", "ben"):
            assert sum(it.in_flight for it in lessees if it.holder == holder) <= OF_HOLDER
        assert all(it.in_flight >= 0 for it in lessees)

    @invariant()
    def everyone_who_has_something_is_known(self) -> None:
        joined = {it for it in self.channel.consumers if isinstance(it, HttpConsumer)}
        assert joined == {*self.leases.http_consumers}


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[*HealthCheck],
)
