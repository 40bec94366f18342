"""The broker's model with groups: never more than the limit in flight, never two of an ordered group, and in its order.

Everything else of `test_broker_model.py` must hold, too: whatever is held is in exactly one place, survives crashes, and
comes when it may.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, Final
from unittest import TestCase

from hypothesis import core, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from nsqcommon.wire.headers import NONE, encode_headers
from nsqd.broker.channel import Channel
from nsqd.broker.group_actions import GroupAction, GroupVerb
from nsqd.broker.rules import BackoffRule
from tests.model.reference import ChannelModel, Entry, Place, TopicModel
from tests.model.test_broker_model import BACKOFF, LATE, LONG, OF_A_SEARCH, SOME, BrokerMachine
from tests.support.lengths import new_chance, sized
from tests.support.slices import MODEL_SLICES

LIMITS = st.sampled_from([None, 1, 1, 2])
_GROUPS: Final = ("a", "b", "a", "", "a", "c")  # of the messages, by their numbers: one group is larger than the others


def group_of(body: bytes) -> str:
    return _GROUPS[int(body) % len(_GROUPS)]


class GroupsMachine(BrokerMachine):
    has_groups = True

    @initialize(limit=LIMITS, ordered=st.booleans(), shares=st.booleans(), ready=st.integers(1, 6))
    def begin_with_groups(self, limit: int | None, ordered: bool, shares: bool, ready: int) -> None:
        self.change_groups(limit, ordered, shares, None)
        self.subscribe("orders", "mail", ready=ready, timeout=60.0, sample_rate=0)
        self.publish_many("orders", 9)

    @rule(limit=LIMITS, ordered=st.booleans(), shares=st.booleans(), max_held=st.sampled_from([None, None, None, 2]))
    def change_groups(self, limit: int | None, ordered: bool, shares: bool, max_held: int | None) -> None:
        self._change_rules(
            max_in_flight_per_group=limit,
            order="group" if ordered else None,
            share="group" if shares else None,
            weights=(("b", 2),) if shares else (),
            max_held=max_held,
        )

    @rule(
        most=st.sampled_from([None, None, 1, 2, 4]),
        ttl=st.sampled_from([None, None, 3_000_000_000]),
        ttl_buries=st.booleans(),
        backoff=st.sampled_from([None, None, BACKOFF]),
        in_flight=st.sampled_from([None, None, 1, 3]),
    )
    def change_the_policy(
        self,
        most: int | None,
        ttl: int | None,
        *,
        ttl_buries: bool,
        backoff: BackoffRule | None = None,
        in_flight: int | None = None,
    ) -> None:
        self._change_rules(max_attempts=most, ttl=ttl, ttl_buries=ttl_buries, backoff=backoff, max_in_flight=in_flight)

    def _change_rules(self, **rules: Any) -> None:
        self._finish_turn()
        self.every_message_is_in_one_place()  # as the present rules have it
        self.policy.of_channels = replace(self.policy.of_channels, **rules)
        self.broker.rules_changed(list(self.broker.topics))
        self._finish_turn()

    @rule(start=SOME, delay_ms=st.sampled_from([0, 5_000]))
    def fail_and_start_again(self, start: int, delay_ms: int) -> None:
        """Restart nsqd when a message has just failed, which is seldom followed by a consumer by chance."""
        if self._living():
            self.requeue(0, start, delay_ms)
        self._finish_turn()
        self.every_message_is_in_one_place()
        self.crash(0, down=0.0, learns=False)
        self.subscribe("orders", "mail", ready=6, timeout=60.0, sample_rate=0)
        self.load()

    @precondition(BrokerMachine.some_channel_with_a_past)
    @rule(choice=SOME, group=st.sampled_from("abc"), verb=st.sampled_from(["bury", "cancel", "due"]))
    def act_on_a_group(self, choice: int, group: str, verb: GroupVerb) -> None:
        """Bury, cancel or defer what waits of a group, and nothing else."""
        channels = [it for it in self._channels() if not it[1].keeps and it[2].groups is not None]
        if not channels:
            return
        self._finish_turn()
        self.every_message_is_in_one_place()
        self._set_time()
        topic, model, real = channels[choice % len(channels)]
        waiting = [it for it in model.entries.values() if it.place in (Place.WAITING, Place.DEFERRED)]
        waiting = [it for it in waiting if group_of(topic.published[it.sequence]) == group]
        action = GroupAction(
            self.broker.topics[topic.name], real, group.encode(), verb, delay_ms=5_000, who="ana", started_at=0
        )
        while not action.is_over:
            action.step()
            self.store.load(self.broker)
        action.end()
        assert action.acted == len(waiting)
        for entry in waiting:
            if verb == "bury":
                model.bury(entry, self.now)
            elif verb == "cancel":
                model.discard(entry)
            else:
                entry.place, entry.due, entry.was_deferred = Place.DEFERRED, self.now + 5.0, True
        self._step_done()

    def _headers(self, body: bytes) -> bytes:
        group = group_of(body)
        return encode_headers({"nsq-group": group}) if group else NONE

    # What may be delivered

    @property
    def _limit(self) -> int:
        rules = self.policy.of_channels
        return 1 if rules.order else rules.max_in_flight_per_group or 1000

    def _others(self, topic: TopicModel, model: ChannelModel, entry: Entry) -> Iterator[Entry]:
        """Yield the other messages of the same group."""
        group = group_of(topic.published[entry.sequence])
        for other in model.entries.values():
            if group and other is not entry and group_of(topic.published[other.sequence]) == group:
                yield other

    def _may_be_delivered(self, topic: TopicModel, channel: ChannelModel, entry: Entry) -> None:
        others = list(self._others(topic, channel, entry))
        flying = [it for it in others if it.place is Place.IN_FLIGHT and not self._overdue(it)]
        assert len(flying) < self._limit, "too many of a group in flight"
        if self.policy.of_channels.order is not None:
            for other in others:
                assert not self._comes_before(topic, other, entry), f"out of order: {other} comes before {entry}"

    def _comes_before(self, topic: TopicModel, other: Entry, entry: Entry) -> bool:
        """Return whether the order of a group demands that one message is delivered before another."""
        if other.sequence > entry.sequence or self._is_exhausted(other) or other.only_in_log:
            return False
        if self.sampled_out and self._could_be_sampled(other):
            return False  # perhaps it was, and is finished
        if self._has_expired(topic, other):
            return False
        if other.place is Place.DEFERRED:
            return other.attempts > 0
        if self.now < other.not_before + LATE:
            return False  # the cursor may defer it again
        if other.attempts == 0 and (other.any_order or other.was_deferred or other.not_before):
            # Its group, or that of one before it, may have to be read from disk or in a later slice. Nobody waits for that.
            is_read = topic.name not in self.store.wanted and other.sequence >= self.store.logs[topic.name].cold_before
            return is_read and not MODEL_SLICES and other.place is Place.WAITING
        return other.place is Place.WAITING or self._overdue(other)

    def _may_wait(self, topic: TopicModel, model: ChannelModel, real: Channel) -> bool:
        if real.groups is None:
            return False
        is_full = not real.groups.room
        return not any(
            self._could_go(topic, model, entry)
            for entry in model.at(Place.WAITING).values()
            if not (is_full and entry.sequence >= real.ledger.cursor)
        )

    def _could_go(self, topic: TopicModel, model: ChannelModel, entry: Entry) -> bool:
        others = list(self._others(topic, model, entry))
        if sum(it.place is Place.IN_FLIGHT for it in others) >= self._limit:
            return False
        if self.policy.of_channels.order is None:
            return True
        return not any(it.sequence < entry.sequence and it.place in (Place.WAITING, Place.DEFERRED) for it in others)


EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "1000"))


class TestGroups(TestCase):
    def runTest(self) -> None:
        asked = vars(core)["global_force_seed"]  # see `TestBrokerWithMessagesThatFail`
        chance = new_chance() if asked is None else Random(asked)
        for _ in range(max(2, EXAMPLES // sized(short=8, long=2) // OF_A_SEARCH)):
            one = type(GroupsMachine.__name__, (GroupsMachine,), {})
            machine = seed(chance.getrandbits(64))(one)
            run_state_machine_as_test(machine, settings=settings(LONG, max_examples=OF_A_SEARCH))
