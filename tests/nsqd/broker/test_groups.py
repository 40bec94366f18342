"""Groups: limits, order and fair shares, and what becomes of held messages."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter, deque
from typing import Any
from unittest.mock import patch

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.commands import fin, nop, rdy, req
from nsqcommon.wire.headers import encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.channel import Channel
from nsqd.broker.groups import GroupSnapshot
from nsqd.broker.journal_replay import replay
from nsqd.broker.limits import Usage
from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.queue_members import Members
from nsqd.broker.rules import Overflow, TopicRules
from tests.nsqd.broker.grouping import ORDER, SHARE, TWO, Grouped
from tests.support.node import Client, Node

HOUR = 3600 * 1_000_000_000


def many(group: str, count: int) -> str:
    return " ".join(f"{group}{number}" for number in range(count))


def publish_groups(it: Grouped, names: list[str]) -> None:
    """Publish a message of each of these groups, as one batch."""
    headers = b"".join(encode_headers({"nsq-group": name}) for name in names)
    count = len(names)
    it.node.broker.topics["t"].publish(b"\0\0\0\1x" * count, range(0, 5 * count + 1, 5), headers=headers)
    it.node.turn()


def largest(it: Grouped, count: int = 10) -> list[GroupSnapshot]:
    *_, found = it.groups.largest(count)
    assert found is not None
    return list(found)


# A limit for each group


def test_a_group_has_at_most_so_many_messages_in_flight() -> None:
    it = Grouped(**TWO)
    client = it.consumer()
    it.publish("a1 a2 a3 a4 b1 b2 b3")
    assert it.got(client) == "a1 a2 b1 b2"
    assert it.held() == it.of("a3 a4 b3")
    assert it.finish(client, "a2") == "a3"
    assert it.finish(client, "a1 b2") == "b3 a4"


def test_a_free_place_is_used_in_the_same_turn_by_whoever_has_room() -> None:
    it = Grouped(max_in_flight_per_group=1)
    clients = [it.consumer(1), it.consumer(1)]
    it.publish("a1 a2 a3")
    heard = [it.got(client) for client in clients]
    assert sorted(heard) == ["", "a1"]
    clients[heard.index("a1")].say(fin(it.ids["a1"]))
    assert sorted(it.got(client) for client in clients) == ["", "a2"]


def test_messages_without_a_group_have_no_limit() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    it.publish("-1 -2 a1 a2 -3")
    assert it.got(client) == "-1 -2 a1 -3"
    assert it.requeue(client, "-1") == "-1"


def test_held_messages_count_as_waiting() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    it.publish("a1 a2 a3 b1")
    assert it.got(client) == "a1 b1"
    channel = it.node.channel()
    assert (channel.depth, channel.in_flight_count) == (2, 2)
    assert not it.real.is_empty
    assert it.real.ledger.low_watermark() == 0


def test_a_message_that_fails_all_the_time_does_not_starve_its_group() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    it.publish("a1 a2 a3")
    got = it.got(client)
    seen: list[str] = []
    for _ in range(6):
        seen.append(got)
        got = it.requeue(client, got) if got == "a1" else it.finish(client, got)
    assert {"a2", "a3"} < set(seen)


def test_a_group_with_nothing_to_do_is_forgotten() -> None:
    it = Grouped(**TWO)
    client = it.consumer()
    it.publish("a1 b1 c1 c2 c3")
    assert len(it.groups) == 3
    it.drain(client)
    it.publish("d1")
    it.bury(client, it.got(client))
    it.node.turn()
    it.real.schedule_delivery()
    it.node.turn()
    assert len(it.groups) == 0


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_an_earlier_version_takes_held_messages_for_delivered_once(*, has_snapshot: bool) -> None:
    """It ignores what it doesn't know in the journal, which is the word `held`."""
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1 a3 a4 b2 c1")
    it.got(client)
    it.finish(client, "b1")
    it.requeue(client, "c1", 60_000)
    operator_actions.cancel(it.real, BitMap64(it.of("a3")))
    if has_snapshot:
        it.rotate()
    else:
        it.node.broker.record_progress()
        it.node.store.write_journal(force=True)
    state = replay([change for change in it.node.store.journal if change[0] != "held"])["t"].channels["c"]
    assert state.cursor == 7
    due = state.waiting[it.sequences["c1"]]
    assert due[0] == 1
    delivered = it.of("a1 a2 a4 b2")
    assert state.waiting == {**dict.fromkeys(delivered, (1, 0)), it.sequences["c1"]: due}


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_group_is_forgotten_when_nothing_waits_any_more(*, has_expired: bool) -> None:
    """Nobody asks for messages, so no delivery comes to its turn."""
    it = Grouped(**ORDER, ttl=HOUR)
    client = it.consumer()
    it.publish("a1 a2 a3 b1")
    it.got(client)
    client.say(b"RDY 0\n")
    it.finish(client, "a1 b1")
    if has_expired:
        it.node.pass_time(3601)
    else:
        operator_actions.cancel(it.real, BitMap64(it.of("a2 a3")))
    it.node.turn()
    assert it.real.ledger.held.total == len(it.groups) == 0


def test_the_largest_groups_are_listed() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    it.publish("a1 a2 b1 b2 b3 c1")
    assert it.got(client) == "a1 b1 c1"
    assert largest(it, 2) == [GroupSnapshot(b"b", 2, 0, 1, 3), GroupSnapshot(b"a", 1, 0, 1, 1)]
    assert [found.name for found in largest(it)] == [b"b", b"a", b"c"]


def test_the_places_of_the_channel_go_round_among_groups_that_share() -> None:
    it = Grouped(**SHARE, max_in_flight=1)
    client = it.consumer(10)
    it.publish("a1 a2 a3 b1")
    assert it.got(client) == "a1"
    assert it.drain(client, "a1") == "b1 a2 a3"


def test_a_place_that_a_group_frees_is_another_one_s_if_it_has_to_wait() -> None:
    it = Grouped(**ORDER, max_in_flight=2)
    client = it.consumer(10)
    it.publish("a1 a2 b1 c1")
    assert it.got(client) == "a1 b1"
    assert it.requeue(client, "a1", 5_000) == "c1"  # a2 waits for a1
    assert it.finish(client, "b1") == ""
    assert it.real.policy.places(len(it.real.in_flight)) == 1
    it.node.pass_time(6)
    assert it.got(client) == "a1"


def test_listing_a_group_that_has_gone_meanwhile_forgets_no_new_one_of_its_name() -> None:
    it = Grouped(**ORDER)
    client = it.consumer(1)
    it.publish("a1")
    assert it.got(client) == "a1"
    others = [it.consumer(2_500) for _ in range(3)]
    it.publish(" ".join(chr(0x4E00 + number) for number in range(6_000)))
    listing = it.groups.largest(10_000)
    assert next(listing) is None
    it.finish(client, "a1")
    for other in others:
        other.say(b"RDY 0\n")
    it.publish("a2")
    assert it.got(client) == "a2"
    *_, found = listing
    assert found
    others[0].say(b"RDY 2500\n")
    it.publish("a3")
    assert it.held() == it.of("a3")


def test_a_bad_group_counts_as_none_and_is_counted() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    topic = it.node.broker.topics["t"]
    for number, group in enumerate([b"", b"x" * 129, b"\xff", "é".encode() * 64, b"y" * 128] * 2):
        body = b"%02d" % number
        topic.publish(b"\0\0\0\2" + body, [0, 6], headers=encode_headers({"nsq-group": group}))
        it.node.turn()
    assert it.got(client) == "00 01 02 03 04 05 06 07"
    assert it.real.policy_counts["nsq-group ignored"] == 6


def test_a_consumer_that_samples_takes_no_places_for_what_it_does_not_get() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer(0)
    it.real.consumers[0].sample_rate = 50
    it.node.percents = [90, 90, 10]
    client.say(b"RDY 10\n")
    it.publish("a1 a2 a3")
    it.real.schedule_delivery()
    it.node.turn()
    assert it.got(client) == "a3"
    assert it.held() == []


def test_messages_that_are_sampled_away_make_room_for_the_next_ones_in_the_same_turn() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer(10)
    it.publish("a1 a2 a3 a4 a5")
    assert it.got(client) == "a1"
    it.real.consumers[0].sample_rate = 50
    it.node.percents = [90, 90, 90, 10]
    assert it.finish(client, "a1") == "a5"


def test_a_consumer_that_samples_everything_away_lets_other_work_run() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer(10)
    it.publish(" ".join(f"a{number}" for number in range(500)))
    assert it.got(client) == "a0"
    it.real.consumers[0].sample_rate = 50
    it.node.percents = [90] * 499
    it.finish(client, "a0")
    assert 250 < len(it.held()) < 499
    for _ in range(3):
        it.node.pass_time(0)
    assert it.held() == []


def test_a_bad_group_is_counted_once() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    publish_groups(it, ["a", "a", "", "", ""])
    client.say(b"".join(fin(message.id) for message in client.messages()[1:]))
    assert it.real.policy_counts == {"nsq-group ignored": 3}
    it.follow(**ORDER, **SHARE)
    it.real.schedule_delivery()
    it.node.turn()
    assert it.real.policy_counts == {"nsq-group ignored": 3}


@pytest.mark.parametrize("rules", [ORDER, SHARE, ORDER | SHARE])
def test_a_consumer_that_samples_leaves_nothing_waiting(rules: dict[str, Any]) -> None:
    it = Grouped(**rules)
    it.publish("a1 a2 a3 a4 a5")
    client = it.consumer(0)
    it.real.consumers[0].sample_rate = 50
    it.node.percents = [90, 90, 90, 90, 10]
    client.say(b"RDY 2\n")
    assert it.got(client) == "a5"
    assert it.real.depth == 0


# Order


def test_messages_of_a_group_come_one_at_a_time_in_order() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1 a3 b2")
    assert it.got(client) == "a1 b1"
    assert it.finish(client, "b1") == "b2"
    assert it.finish(client, "a1") == "a2"
    it.publish("a4 c1")
    assert it.got(client) == "c1"
    assert it.finish(client, "a2") == "a3"
    assert it.finish(client, "a3") == "a4"


def test_a_requeued_message_comes_again_before_the_later_ones() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1")
    assert it.got(client) == "a1 b1"
    assert it.requeue(client, "a1") == "a1"
    assert it.attempts["a1"] == 2
    assert it.finish(client, "a1") == "a2"


def test_a_message_requeued_with_a_delay_holds_up_its_group_only() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1 b2")
    it.got(client)
    assert it.requeue(client, "a1", 5000) == ""
    assert it.finish(client, "b1") == "b2"
    it.publish("a3 c1")
    assert it.got(client) == "c1"
    it.node.pass_time(5.1)
    assert it.got(client) == "a1"
    assert it.finish(client, "a1") == "a2"


def test_a_message_that_timed_out_comes_again_before_the_later_ones() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2")
    it.got(client)
    it.node.pass_time(30)
    client.ask(nop())
    it.node.pass_time(30.1)
    assert it.got(client) == "a1"
    assert it.finish(client, "a1") == "a2"


def test_a_buried_message_holds_up_nothing_and_is_the_next_one_when_it_is_kicked() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3 a4")
    it.got(client)
    assert it.bury(client, "a1") == "a2"
    assert operator_actions.take_buried(it.real, "kick", it.of("a1")) == 1
    it.node.turn()
    assert it.got(client) == ""
    assert it.finish(client, "a2") == "a1"
    assert it.finish(client, "a1") == "a3"


def test_a_message_that_is_buried_after_its_last_attempt_holds_up_nothing() -> None:
    it = Grouped(**ORDER, max_attempts=2)
    client = it.consumer()
    it.publish("a1 a2")
    it.got(client)
    assert it.requeue(client, "a1") == "a1"
    assert it.requeue(client, "a1") == "a2"


def test_a_message_that_is_cancelled_while_it_is_deferred_holds_up_nothing_any_more() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    assert it.requeue(client, "a1", 60_000) == ""
    assert operator_actions.cancel(it.real, BitMap64(it.of("a1"))) == {CancelOutcome.CANCELLED: 1}
    it.node.turn()
    assert it.got(client) == "a2"


def test_a_message_that_is_made_due_now_comes_before_the_later_ones() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2")
    it.got(client)
    it.requeue(client, "a1", 60_000)
    operator_actions.move(it.real, BitMap64(it.of("a1")), 0)
    it.node.turn()
    assert it.got(client) == "a1"


def test_a_message_published_with_a_delay_takes_its_place_when_it_is_due() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1", delay_ms=5000)
    it.publish("a2 a3")
    assert it.got(client) == "a2"
    it.node.pass_time(5.1)
    assert it.got(client) == ""
    assert it.finish(client, "a2") == "a1"
    assert it.finish(client, "a1") == "a3"


def test_a_message_that_is_due_does_not_overtake_earlier_ones_that_are_still_ahead_of_the_cursor() -> None:
    it = Grouped(**ORDER)
    it.publish("b1 b2 a1 a2")
    it.publish("a3", delay_ms=1000)
    it.publish("a4")
    it.node.pass_time(2)
    client = it.consumer(1)
    assert it.drain(client) == "b1 b2 a1 a2 a3 a4"


def test_a_message_that_is_due_is_delivered_when_the_cursor_has_passed_its_place() -> None:
    it = Grouped(**ORDER)
    it.publish("b1")
    it.publish("a1", delay_ms=1000)
    it.node.pass_time(2)
    client = it.consumer(1)
    assert it.got(client) == "b1"
    assert it.finish(client, "b1") == "a1"


def test_thousands_of_kicked_messages_are_the_next_ones_of_their_groups() -> None:
    it = Grouped(**ORDER)
    it.node.store.memory_capacity = None
    client = it.consumer(2500)
    it.publish(" ".join([*(f"-{number}" for number in range(2100)), "z1", "z2", "z3"]))
    words = it.got(client).split()
    assert words[-1] == "z1"
    for word in words:
        consumer = it.real.in_flight.owner(it.ids[word])
        assert consumer is not None
        assert it.real.bury(consumer, it.ids[word], "bad", it.node.now) is None
    client.say(b"RDY 1\n")
    assert it.got(client) == "z2"
    assert operator_actions.take_buried(it.real, "kick", it.of(" ".join(words))) == 2101
    it.node.turn()
    client.say(b"RDY 2500\n")  # in any number of turns
    got = [it.finish(client, "z2")]
    for _ in range(3):
        it.node.pass_time(0)
        got.append(it.got(client))
    found = " ".join(got).split()
    assert len(found) == 2101
    assert [word for word in found if word[0] == "z"] == ["z1"]


def test_thousands_of_messages_that_are_due_at_once_take_their_places() -> None:
    it = Grouped(**ORDER)
    it.node.store.memory_capacity = None
    it.publish(" ".join([*(f"-{number}" for number in range(2100)), "z1"]), delay_ms=1000)
    it.publish("z2")
    for _ in range(3):
        it.node.pass_time(2)
    client = it.consumer(2500)
    got = it.got(client)
    for _ in range(3):
        it.node.pass_time(0)
        got += " " + it.got(client)
    assert [word for word in got.split() if word[0] == "z"] == ["z1"]


def test_a_kicked_message_need_not_wait_until_another_one_has_been_read_from_disk() -> None:
    it = Grouped(**ORDER)
    client = it.consumer(10)
    it.publish("-0")
    assert it.got(client) == "-0"
    it.bury(client, "-0")
    it.node.store.logs["t"].evict()
    it.publish("z1 z2 z3")
    assert it.got(client) == "z1"
    assert it.bury(client, "z1") == "z2"
    operator_actions.take_buried(it.real, "kick", it.of("-0 z1"))
    it.node.turn()
    assert it.finish(client, "z2") == "z1"


# Fair shares


def test_groups_take_turns() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 a2 a3 a4 a5 a6 a7")
    it.publish("b1 b2 c1")
    client = it.consumer(1)
    assert it.drain(client) == "a1 b1 c1 a2 b2 a3 a4 a5 a6 a7"


def test_messages_of_several_groups_are_delivered_at_once_and_answered_one_by_one() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 a2 a3 b1 b2 c1 c2 c3")
    client = it.consumer(4)
    assert it.got(client) == "a1 b1 c1 a2"
    assert list(it.real.in_flight.all()) == it.of("a1 a2 b1 c1")
    assert it.finish(client, "b1") == "b2"
    assert it.requeue(client, "a2", delay_ms=1000) == "c2"
    it.crash()
    assert it.held() == it.of("a3 c3")
    client = it.consumer(10)
    it.node.load()
    assert sorted(it.got(client).split()) == ["a1", "a3", "b2", "c1", "c2", "c3"]
    assert [it.attempts[word] for word in ("a1", "b2", "c1", "a3")] == [2, 2, 2, 1]
    it.node.pass_time(1.1)
    assert it.got(client) == "a2"
    assert it.attempts["a2"] == 2
    assert it.finish(client, "a1 a2 a3 b2 c1 c2 c3") == ""
    assert it.real.is_empty


def test_in_each_round_groups_are_served_in_the_order_of_the_log() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 b1 c1 c2 b2 a2")
    assert it.drain(it.consumer(1)) == "a1 b1 c1 c2 b2 a2"


def test_a_group_with_a_weight_gets_more_messages_in_its_turn() -> None:
    it = Grouped(**SHARE, weights=(("b", 2),))
    it.publish("a1 a2 a3 a4 b1 b2 b3 b4 b5")
    client = it.consumer(1)
    assert it.drain(client) == "a1 b1 b2 a2 b3 b4 a3 b5 a4"


@pytest.mark.parametrize(("rules", "places"), [(ORDER, 2), (TWO, 4)])
def test_a_group_with_a_weight_gets_more_although_it_often_waits_for_a_place(
    rules: dict[str, Any], places: int
) -> None:
    it = Grouped(**SHARE, **rules, weights=(("g", 3),))
    for number in range(60):
        it.publish(f"g{number} a{number} b{number} c{number}")
    client = it.consumer(places)
    in_hand = deque(it.got(client).split())
    seen: Counter[str] = Counter()
    for _ in range(80):  # all groups have messages until the end
        word = in_hand.popleft()
        seen[word[0]] += 1
        in_hand.extend(it.finish(client, word).split())
    assert seen["g"] >= 35  # half of them are its share


def test_a_group_that_comes_and_goes_makes_no_other_wait_for_long() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 a2 a3 a4 a5 a6 b1 b2 b3 b4 b5 b6")
    client = it.consumer(1)
    seen = got = it.got(client)
    for number in range(9):
        if "c" not in got:
            it.publish(f"c{number}")
        got = it.finish(client, got)
        seen += got
    assert min(seen.count(group) for group in "ab") >= 3


def test_a_group_that_has_waited_for_its_place_for_long_makes_up_for_one_round_only() -> None:
    it = Grouped(**SHARE, **ORDER)
    it.publish(" ".join(f"{group}{number}" for number in range(20) for group in "abc"))
    client = it.consumer(2)
    assert it.got(client) == "a0 b0"
    got = "b0"
    for _ in range(20):
        got = it.finish(client, got)
    found = [got, it.finish(client, "a0")]
    for _ in range(6):
        found.append(it.finish(client, found[-2]))
    assert "".join(found[1:]).count("a") <= 4


def test_messages_without_a_group_share_as_one_group() -> None:
    it = Grouped(**SHARE)
    it.publish("-1 -2 -3 a1 a2 a3")
    assert it.drain(it.consumer(1)) == "-1 a1 -2 a2 -3 a3"


def test_a_new_group_need_not_wait_behind_the_backlog_of_another() -> None:
    it = Grouped(**SHARE)
    client = it.consumer(2)
    it.publish(many("a", 50))
    assert it.got(client) == "a0 a1"
    it.publish("b1")
    assert it.finish(client, "a0 a1") == "a2 b1"


def test_order_and_shares_together() -> None:
    it = Grouped(**ORDER, **SHARE)
    it.publish("a1 a2 a3 b1 b2 b3")
    client = it.consumer(10)
    assert it.got(client) == "a1 b1"
    assert it.requeue(client, "a1") == "a1"
    assert it.finish(client, "b1") == "b2"
    assert it.finish(client, "a1 b2") == "a2 b3"


def test_if_there_is_room_for_everything_the_order_of_arrival_is_fair() -> None:
    it = Grouped(**SHARE)
    client = it.consumer(10)
    it.publish("a1 a2 a3 b1")
    assert it.got(client) == "a1 a2 a3 b1"
    assert it.real.ledger.cursor == 4
    assert not any(change[0] == "held" for change in it.node.store.journal)


def test_if_the_policy_allows_fewer_than_there_is_room_for_groups_take_turns() -> None:
    it = Grouped(**SHARE, max_rate=1.0)
    it.publish("a1 a2 b1")
    client = it.consumer(10)
    got = [it.got(client)]
    for _ in range(2):
        it.node.pass_time(1)
        got.append(it.got(client))
    assert got == ["a1", "b1", "a2"]


# A restart


@pytest.mark.parametrize("rules", [ORDER, TWO, SHARE, ORDER | SHARE])
@pytest.mark.parametrize("rotates", [False, True])
def test_a_restart_loses_no_held_message_and_keeps_the_order(rules: dict[str, Any], rotates: bool) -> None:
    it = Grouped(**rules)
    client = it.consumer(3)
    it.publish("a1 a2 a3 a4 b1 b2 b3 -1 -2 c1")
    got = it.got(client).split()
    it.finish(client, got[0])
    if rotates:
        it.rotate()
    it.crash()
    drained = it.consumer(4)
    it.node.load()
    found = it.drain(drained).split()
    assert sorted(found) == sorted({"a1", "a2", "a3", "a4", "b1", "b2", "b3", "-1", "-2", "c1"} - {got[0]})
    if "order" in rules:
        for group in "ab":
            mine = [word for word in found if word[0] == group]
            assert mine == sorted(mine)


def test_a_held_message_counts_as_never_delivered_until_it_is() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3 b1 b2")
    it.got(client)
    assert it.finish(client, "a1") == "a2"
    it.crash()
    client = it.consumer()
    it.node.load()
    assert sorted(it.got(client).split()) == ["a2", "b1"]
    assert (it.attempts["a2"], it.attempts["b1"]) == (2, 2)
    assert sorted(it.finish(client, "a2 b1").split()) == ["a3", "b2"]
    assert (it.attempts["a3"], it.attempts["b2"]) == (1, 1)


def test_a_message_that_is_deferred_after_a_delivery_holds_up_its_group_after_a_restart() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1")
    it.got(client)
    it.requeue(client, "a1", 60_000)
    it.crash()
    client = it.consumer()
    it.node.load()
    assert it.got(client) == "b1"
    it.node.pass_time(30)
    assert it.finish(client, "b1") == ""
    it.node.pass_time(30.1)
    it.node.load()
    assert it.got(client) == "a1"
    assert it.finish(client, "a1") == "a2"


def requeued_without_counting() -> tuple[Grouped, Client]:
    """Return a channel with a1, which was requeued with a delay and without counting its only delivery, and a2."""
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2")
    assert it.got(client) == "a1"
    consumer = it.real.in_flight.owner(it.ids["a1"])
    assert consumer is not None
    assert it.real.requeue(consumer, it.ids["a1"], 5000, it.node.now, counts=False) is None
    it.node.turn()
    assert it.got(client) == ""
    return it, client


@pytest.mark.parametrize("then", ["", "rotate", "move", "due move", "due rotate move"])
def test_a_delivery_that_does_not_count_holds_up_its_group_after_a_restart(then: str) -> None:
    it, client = requeued_without_counting()
    if "due" in then:  # nobody takes it
        client.say(rdy(0))
        it.node.pass_time(5.1)
    if "rotate" in then:
        it.rotate()
    if "move" in then:
        operator_actions.move(it.real, BitMap64(it.of("a1")), 5000)
    it.crash()
    client = it.consumer()
    it.node.load()
    assert it.got(client) == ""
    it.node.pass_time(5.1)
    it.node.load()
    assert it.got(client) == "a1"
    assert it.attempts["a1"] == 1


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("then", ["rotate", "move"])
def test_a_later_delivery_counts_although_the_first_one_did_not(then: str, now: bool) -> None:
    it, client = requeued_without_counting()
    if now:
        operator_actions.move(it.real, BitMap64(it.of("a1")), 0)
        it.node.turn()
    else:
        it.node.pass_time(5.1)
    assert it.got(client) == "a1"
    it.requeue(client, "a1", 5000)
    if then == "rotate":
        it.rotate()
    else:
        operator_actions.move(it.real, BitMap64(it.of("a1")), 5000)
    it.crash()
    client = it.consumer()
    it.node.pass_time(5.1)
    it.node.load()
    assert it.got(client) == "a1"
    assert it.attempts["a1"] == 2


def test_a_delivery_that_does_not_count_holds_up_its_group_after_a_change_of_the_rules() -> None:
    it, client = requeued_without_counting()
    it.follow(**ORDER, **SHARE)
    assert it.got(client) == ""


def test_what_the_journal_does_not_know_yet_may_come_again_in_order() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    it.node.broker.record_progress()
    it.node.store.write_journal(force=True)
    assert it.finish(client, "a1") == "a2"
    it.node.crash()
    client = it.consumer()
    it.node.load()
    assert it.drain(client) == "a1 a2 a3"


# Other rules at run time


def test_without_the_rules_held_messages_are_delivered_before_new_ones() -> None:
    it = Grouped(**ORDER)
    client = it.consumer(4)
    it.publish("a1 a2 b1 a3 c1 c2")
    assert it.got(client) == "a1 b1 c1"
    it.follow()
    assert it.got(client) == "a2"
    assert it.finish(client, "a1 a2 b1 c1") == "a3 c2"
    assert it.attempts["a3"] == 1
    assert it.real.groups is None


def test_rules_that_come_while_messages_are_in_flight_count_those() -> None:
    it = Grouped()
    client = it.consumer()
    it.publish("a1 b1")
    it.got(client)
    it.requeue(client, "b1", 5000)
    it.follow(**ORDER)
    it.publish("a2 b2 c1")
    assert it.got(client) == "c1"
    assert it.finish(client, "a1") == "a2"
    it.node.pass_time(5.1)
    assert it.got(client) == "b1"
    assert it.finish(client, "b1") == "b2"


def test_the_groups_of_messages_in_flight_are_read_from_disk_first() -> None:
    it = Grouped()
    client = it.consumer()
    it.publish("a1 b1")
    it.got(client)
    it.node.store.logs["t"].evict()
    it.follow(**ORDER)
    it.publish("a2 c1")
    assert it.got(client) == ""
    it.node.load()
    assert it.got(client) == "c1"


def test_a_message_in_flight_counts_although_its_group_is_learned_after_that_of_a_retry() -> None:
    it = Grouped()
    client = it.consumer(2)
    it.publish("a1 b1 a2 a3")
    it.got(client)
    it.requeue(client, "a1")
    assert it.finish(client, "b1") == "a2"
    client.say(b"RDY 1\n")
    assert it.requeue(client, "a1") == ""
    it.follow(**ORDER)
    client.say(b"RDY 9\n")
    assert it.got(client) == ""
    assert it.finish(client, "a2") == "a1"


def test_a_limit_is_raised_and_lowered() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    it.publish("a1 a2 a3 a4 a5 a6")
    assert it.got(client) == "a1"
    it.follow(max_in_flight_per_group=3)
    assert it.got(client) == "a2 a3"
    it.follow(**TWO)
    assert it.finish(client, "a1") == ""
    assert it.finish(client, "a2") == "a4"


def test_weights_change_without_a_new_beginning() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 a2 a3 a4 b1 b2 b3 b4")
    client = it.consumer(1)
    assert it.got(client) == "a1"
    before = it.groups
    it.follow(**SHARE, weights=(("b", 3),))
    assert it.groups is before
    assert it.finish(client, "a1") == "b1"
    assert it.drain(client, "b1") == "b2 b3 a2 b4 a3 a4"


# Operators


def test_held_messages_are_cancelled() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3 a4")
    it.got(client)
    assert operator_actions.cancel(it.real, BitMap64(it.of("a1 a2 a3"))) == {
        CancelOutcome.CANCELLED: 2,
        CancelOutcome.IN_FLIGHT: 1,
    }
    assert it.real.depth == 1
    assert it.finish(client, "a1") == "a4"
    it.crash()
    client = it.consumer()
    it.node.load()
    assert it.drain(client) == "a4"


def test_a_held_message_is_put_off_and_comes_when_it_is_due() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    assert operator_actions.move(it.real, BitMap64(it.of("a2")), 5000) == {CancelOutcome.MOVED: 1}
    assert it.finish(client, "a1") == "a3"
    it.node.pass_time(5.1)
    assert it.finish(client, "a3") == "a2"


def test_emptying_and_seeking_forget_what_is_held() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    operator_actions.empty(it.real)
    it.node.turn()
    assert (it.real.depth, it.held(), len(it.groups)) == (0, [], 0)
    it.publish("a4")
    assert it.got(client) == "a4"
    operator_actions.seek(it.real, 1)
    it.node.turn()
    assert it.got(client) == "a2"
    assert it.drain(client, "a2") == "a3 a4"


def test_a_backlog_has_the_held_messages() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1 a3")
    it.got(client)
    it.finish(client, "b1")
    backlog = operator_actions.backlog(it.real, 100)
    assert backlog is not None
    assert (backlog.next, backlog.end, backlog.count) == (1, 4, 3)
    operator_actions.empty(it.real)
    it.node.turn()
    assert operator_actions.restore_backlog(it.real, backlog, 100) == (3, 0)
    it.node.turn()
    assert it.drain(client) == "a1 a2 a3"


def test_a_backlog_is_restored_while_messages_are_held_and_in_flight() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    backlog = operator_actions.backlog(it.real, 100)
    assert backlog is not None
    it.publish("a4 b1")
    assert it.got(client) == "b1"
    assert operator_actions.restore_backlog(it.real, backlog, 100) == (3, 0)
    it.node.turn()
    assert it.got(client) == ""
    assert it.finish(client, "a1") == "a2"
    assert it.drain(client, "a2") == "a3 a4"


@pytest.mark.parametrize("crashes", [False, True])
def test_a_backlog_is_restored_with_held_messages_that_are_only_in_a_compacted_file(crashes: bool) -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3 a4")
    assert it.got(client) == "a1"
    it.publish("b1 b2")
    assert it.got(client) == "b1"
    log = it.node.store.logs["t"]
    log.first, log.compacted = 4, it.of("a1 a2 a4")  # a3 is lost
    backlog = operator_actions.backlog(it.real, 100)
    assert backlog is not None
    assert backlog.count == 6
    operator_actions.empty(it.real)
    assert operator_actions.restore_backlog(it.real, backlog, 100) == (5, 1)
    assert it.held() == it.of("a2 a4")
    it.node.turn()
    if crashes:
        it.crash()
        client = it.consumer()
        it.node.load()
    assert sorted(it.drain(client).split()) == ["a1", "a2", "a4", "b1", "b2"]
    assert operator_actions.restore_backlog(it.real, backlog, 0) is None


@pytest.mark.parametrize("crashes", [False, True])
def test_held_messages_that_are_only_in_a_compacted_file_stay_held_when_an_older_backlog_is_restored(
    crashes: bool,
) -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("b1")
    assert it.got(client) == "b1"
    backlog = operator_actions.backlog(it.real, 100)
    assert backlog is not None
    it.publish("a1 a2 a3")
    it.publish("c1 c2")
    assert it.got(client) == "a1 c1"
    log = it.node.store.logs["t"]
    log.first, log.compacted = 4, it.of("b1 a1 a2 a3")
    assert operator_actions.restore_backlog(it.real, backlog, 100) == (1, 0)
    assert it.held() == it.of("a2 a3")
    it.node.turn()
    if crashes:
        it.crash()
        client = it.consumer()
        it.node.load()
        assert it.drain(client) == "b1 a1 c1 a2 c2 a3"
    else:
        assert it.drain(client, "b1 a1 c1") == "a2 c2 a3"


def test_held_messages_are_not_redelivered_because_they_wait() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    it.finish(client, "a1")
    assert operator_actions.redeliver(it.real, it.of("a1 a2 a3")) == (1, 2, 0)
    it.node.turn()
    assert it.finish(client, "a2") == "a1"
    assert it.finish(client, "a1") == "a3"


# Limits and times to live


def test_a_limit_drops_held_messages_first() -> None:
    it = Grouped(**ORDER, max_messages=3, overflow=Overflow.DROP_OLDEST)
    client = it.consumer()
    it.publish("a1")
    it.publish("a2 a3 a4")
    assert it.got(client) == "a1"
    client.say(b"RDY 0\n")
    it.publish("a5 b1")
    assert it.real.depth == 3
    client.say(b"RDY 10\n")
    assert it.got(client) == "b1"
    assert it.finish(client, "a1") == "a4"
    assert it.finish(client, "a4") == "a5"
    assert it.real.policy_counts["overflow, dropped"] == 2


def test_a_limit_buries_held_messages_first() -> None:
    it = Grouped(**ORDER, max_messages=2, overflow=Overflow.BURY)
    client = it.consumer()
    it.publish("a1")
    it.publish("a2 a3")
    assert it.got(client) == "a1"
    it.publish("a4")
    assert [burial.sequence for burial in it.real.buried_queue.buried.from_place(0)] == it.of("a2")
    assert it.finish(client, "a1") == "a3"


def with_a_stuck_group(overflow: Overflow) -> Grouped:
    """Return a topic with a limit of ten messages, in which 30 messages went by while a2 was held."""
    it = Grouped(**ORDER)
    it.policy.of_topics = TopicRules(max_messages=10, overflow=overflow)
    it.node.broker.rules_changed(["t"])
    client = it.consumer(10)
    it.publish("a1 a2")
    for number in range(30):
        it.publish(f"b{number}")
        it.finish(client, it.got(client).split()[-1])
    return it


def test_a_group_that_is_stuck_does_not_fill_its_topic() -> None:
    it = with_a_stuck_group(Overflow.REJECT)  # no publish was refused
    assert it.real.depth == 1


def test_a_topic_drops_nothing_of_a_stuck_group_while_others_go_by() -> None:
    it = with_a_stuck_group(Overflow.DROP_OLDEST)
    assert it.held() == it.of("a2")


def test_a_limit_of_the_topic_drops_held_messages_first() -> None:
    it = with_a_stuck_group(Overflow.DROP_OLDEST)
    it.publish(" ".join(f"a{number}" for number in range(3, 14)))
    assert it.held() == it.of(" ".join(f"a{number}" for number in range(4, 14)))
    it.real.consumers[0].ready_count = 0
    it.publish("a14 a15 b30")
    assert it.real.depth == 10
    assert it.held() == it.of(" ".join(f"a{number}" for number in range(7, 14)))


def test_a_limit_of_bytes_counts_held_messages() -> None:
    it = Grouped(**ORDER)
    it.consumer(10)
    it.publish("a1 a2 a3 a4")
    assert it.node.broker.topics["t"].usage() == Usage(3, it.real.ledger.mean_of(3))


def test_a_limit_drops_very_many_held_messages_in_slices() -> None:
    it = Grouped(**ORDER, max_messages=10, overflow=Overflow.DROP_OLDEST)
    channel = it.real
    channel.feed.high_watermark = channel.ledger.cursor = 200_000
    channel.ledger.held.fill(BitMap64(range(0, 200_000, 2)))
    channel.drop_oldest(channel.ledger.held.total - 10)
    assert 98_000 <= channel.ledger.held.total < 100_000
    assert channel.is_behind
    channel.ledger.held.clear()
    channel.ledger.held.fill(BitMap64(range(200_000)))  # neighbours are a single range
    channel.turn.spent = None
    channel.drop_oldest(channel.ledger.held.total - 10)
    assert 50_000 <= channel.ledger.held.total <= 110_000


def test_a_turn_expires_only_so_many_ranges_of_held_messages() -> None:
    it = Grouped(**ORDER, ttl=HOUR)
    it.node.store.memory_capacity = None
    client = it.consumer(2000)
    it.publish("a")
    it.got(client)
    for batch in range(6):
        it.publish(" ".join(f"a{batch}.{number} -{batch}.{number}" for number in range(500)))
        client.say(b"".join(fin(message.id) for message in client.messages()))
        while it.real.alarm <= it.node.now:  # some are sorted in the next turn
            it.node.pass_time(0)
            client.say(b"".join(fin(message.id) for message in client.messages()))
    client.say(b"RDY 0\n")
    assert it.real.ledger.held.total == 3000
    it.node.pass_time(3700)
    assert 2000 <= it.real.ledger.held.total < 3000
    for _ in range(5):
        it.node.pass_time(0)
    assert it.real.ledger.held.total == 0


@pytest.mark.parametrize("buries", [False, True])
def test_held_messages_expire(buries: bool) -> None:
    it = Grouped(**ORDER, ttl=HOUR, ttl_buries=buries)
    client = it.consumer()
    it.publish("a1 a2 a3")
    it.got(client)
    for _ in range(70):
        it.node.pass_time(55)
        client.say(b"TOUCH %b\n" % it.ids["a1"])
    it.publish("a4")
    it.got(client)
    assert (it.held(), it.real.depth) == (it.of("a4"), 1)
    assert it.real.policy_counts["ttl, buried" if buries else "ttl, dropped"] == 2
    assert it.finish(client, "a1") == "a4"


def test_a_held_message_expires_by_its_own_time_to_live() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1")
    it.publish("a2", ttl=1000)
    it.publish("a3")
    assert it.got(client) == "a1"
    it.node.pass_time(2)
    assert it.finish(client, "a1") == "a3"
    assert it.real.policy_counts == {"ttl, dropped": 1}


# Elsewhere


def test_a_channel_without_such_rules_calls_nothing_for_each_message_that_times_out() -> None:
    def calls(count: int) -> int:
        node = Node(mem_queue_size=1000)
        topic = node.broker.topic("t")
        channel = topic.channel("c")
        node.consumer(ready=20)
        topic.publish(b"\0\0\0\1x" * count, range(0, 5 * count + 1, 5))
        node.turn()
        called: list[str] = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            channel.expire(node.now + 61)
        finally:
            sys.setprofile(None)
        assert channel.timeout_count == count
        own = [vars(Channel).get(name) for name in called]
        return sum(it is not None for it in own)

    assert calls(20) == calls(2)


def test_a_channel_that_is_in_memory_only_has_groups_too() -> None:
    it = Grouped(channel="c#ephemeral", **ORDER)
    client = it.consumer()
    it.publish("a1 a2 b1 a3")
    assert it.got(client) == "a1 b1"
    assert it.requeue(client, "a1") == "a1"
    assert it.drain(client, "a1") == "a2 a3"
    it.real.ledger.record_progress()
    assert it.real.ledger.ephemeral_batches is not None
    it.finish(client, "b1")
    it.real.ledger.record_progress()
    assert it.real.ledger.ephemeral_batches.messages == 0


def test_what_has_to_be_read_from_disk_makes_only_its_own_group_wait() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 a2")
    it.got(client)
    it.node.store.logs["t"].evict()
    it.publish("b1 b2")
    assert it.got(client) == "b1"
    client.say(fin(it.ids["a1"]) + fin(it.ids["b1"]))
    assert it.got(client) == "b2"
    it.node.load()
    assert it.got(client) == "a2"


def test_beyond_max_held_the_cursor_waits() -> None:
    it = Grouped(**ORDER, max_held=2)
    client = it.consumer()
    it.publish("a1 a2 a3 a4 b1")
    assert it.got(client) == "a1"
    assert it.held() == it.of("a2 a3")
    assert it.groups.full_since == it.node.broker.turn.timestamp
    assert it.finish(client, "a1") == "a2 b1"
    assert it.drain(client, "a2") == "a3 a4"
    assert it.groups.full_since is None


def test_a_channel_is_not_full_if_nothing_waits_for_room() -> None:
    it = Grouped(**ORDER, max_held=2)
    it.consumer()
    it.publish("a1 a2 a3")
    it.real.schedule_delivery()
    it.node.turn()
    assert it.real.ledger.cursor == 3
    assert it.groups.full_since is None


def test_as_many_groups_as_may_hold_messages_take_100_mb() -> None:
    it = Grouped(**SHARE)
    it.node.store.memory_capacity = None
    client = it.consumer(0)
    for batch in range(4):
        publish_groups(it, [f"customer-{batch}-{number}" for number in range(500)])
    tracemalloc.start()
    try:
        client.say(b"RDY 1\n")
        it.node.pass_time(0)
        gc.collect()
        # Other threads of this process may allocate something, too. Compiled code counts as its caller.
        ours = [tracemalloc.Filter(True, "*/nsqd/*"), tracemalloc.Filter(True, "*/tests/*")]
        taken = tracemalloc.take_snapshot().filter_traces(ours)
        size = sum([row.size for row in taken.statistics("filename")])
    finally:
        tracemalloc.stop()
    assert len(it.groups) > 1900
    assert size / len(it.groups) * it.groups._most_groups < 110_000_000


def test_groups_that_only_have_something_in_flight_need_no_room() -> None:
    it = Grouped(**ORDER, max_held=40_000)
    it.node.store.memory_capacity = None
    client = it.consumer(2500)
    publish_groups(it, [*(f"g{number}" for number in range(1001)), "g0", "another"])
    assert len(client.messages()) == 1002
    assert it.held() == [1001]


def test_fast_consumers_get_no_backlog_in_the_order_of_the_log() -> None:
    it = Grouped(**SHARE)
    it.node.store.memory_capacity = None
    for _ in range(5):
        it.publish(many("a", 2000))
    it.publish("b1")
    client = it.consumer(2500)
    before = 0
    for _ in range(50):
        words = it.got(client).split()
        if "b1" in words:
            break
        before += len(words)
        client.say(b"".join(fin(it.ids[word]) for word in words))
        it.node.pass_time(0)
    assert "b1" in words
    assert before < 5000


@pytest.mark.parametrize(
    ("limits", "ready"),
    [({}, 1), ({"max_in_flight": 1}, 10), ({"max_rate": 1.0}, 10)],
    ids=["busy consumer", "max_in_flight", "max_rate"],
)
def test_messages_are_sorted_while_none_can_be_delivered(limits: dict[str, Any], ready: int) -> None:
    """Otherwise each slow answer would sort only some, and other groups would wait for many of these answers."""
    it = Grouped(**SHARE, **limits)
    client = it.consumer(ready)
    it.publish("a")
    assert it.got(client) == "a"
    it.publish(many("a", 9000))
    it.publish("b1")
    for _ in range(10):
        it.node.pass_time(0)
    assert it.got(client) == ""
    assert it.real.ledger.held.total == 9001
    client.say(fin(it.ids["a"]))
    it.node.pass_time(1)
    client.say(fin(it.ids["a0"]) if it.got(client) == "a0" else b"")
    it.node.pass_time(1)
    assert it.got(client) == "b1"


def test_channels_share_what_is_sorted_in_a_turn() -> None:
    it = Grouped(**SHARE)
    it.node.store.memory_capacity = None
    channels = [it.node.broker.topics["t"].channel(f"c{number}") for number in range(50)]
    for channel in channels:
        channel.pause()
        it.node.consumer(channel=channel.name, ready=5)
    publish_groups(it, ["a"] * 3000)
    for channel in channels:
        channel.unpause()
    it.node.turn()
    sorted_ones = [channel.ledger.held.total for channel in channels]
    assert min(sorted_ones) > 50
    assert sum(sorted_ones) < 10_000


def test_thousands_of_retries_with_no_attempts_left_are_buried_in_slices() -> None:
    it = Grouped(**SHARE)
    it.node.store.memory_capacity = None
    client = it.consumer(2500)
    publish_groups(it, [f"g{number % 5}" for number in range(1000)])
    messages = client.messages()
    client.say(b"RDY 0\n")
    client.say(b"".join(req(message.id, 0) for message in messages))
    for _ in range(10):
        it.node.pass_time(0.001)
    assert len(it.real.ledger.retries) == 1000
    it.follow(**SHARE, max_attempts=1)
    client.say(b"RDY 100\n")
    assert 0 < len(it.real.ledger.buried) < 500
    for _ in range(10):
        it.node.pass_time(0)
    assert len(it.real.ledger.buried) == 1000


def test_groups_that_the_disk_refuses_to_read_are_tried_again_after_a_minute() -> None:
    it = Grouped(**ORDER)
    it.node.store.memory_capacity = None
    client = it.consumer(1000)
    names = [f"g{number}" for number in range(1000)]
    publish_groups(it, names)
    publish_groups(it, names)
    messages = client.messages()
    client.say(b"RDY 2500\n")
    log = it.node.store.logs["t"]
    log.refused = (1000, 2000)
    client.say(b"".join(fin(message.id) for message in messages))
    tried: list[int] = []
    end_of_refused = log.end_of_refused

    def noted(sequence: int) -> int:
        tried.append(sequence)
        return end_of_refused(sequence)

    with patch.object(log, "end_of_refused", noted):
        for _ in range(5):
            it.publish("-1")
        assert 0 < len(set(tried)) <= 1000
        for _ in range(5):
            it.node.pass_time(0)
        tried.clear()
        it.publish("-2")
        assert tried == []
    log.refused = (0, 0)
    for _ in range(5):
        it.node.pass_time(25)
        client.say(nop())
    assert len({message.id for message in client.messages()}) == 1006


def test_without_the_rules_no_changes_are_noted() -> None:
    it = Grouped(**ORDER)
    it.follow()
    assert type(it.real.ledger.retries.members) is Members
    client = it.consumer()
    it.publish("a1")
    it.got(client)
    it.requeue(client, "a1", 60_000)
    assert it.real.ledger.deferred.changes() == BitMap64()


def test_the_heaps_of_a_large_group_are_freed_in_slices() -> None:
    it = Grouped(**ORDER)
    it.node.store.memory_capacity = None
    client = it.consumer(2000)
    it.follow()
    it.publish(many("a", 1200))
    messages = client.messages()
    it.follow(**ORDER)
    client.say(b"".join(req(message.id, 60_000) for message in messages))
    for _ in range(12):
        it.node.pass_time(0.001)
    reclaimer = it.real.turn.reclaimer
    before = reclaimer.entries
    it.real.renew_groups()
    assert reclaimer.entries - before >= 2 * 1200


def test_thousands_of_stale_deferred_messages_are_passed_in_slices() -> None:
    it = Grouped(max_in_flight_per_group=9000)
    it.node.store.memory_capacity = None
    clients = [it.consumer(2500) for _ in range(4)]
    it.publish(many("a", 8002))
    messages = {message.body: (client, message) for client in clients for message in client.messages()}
    it.follow(**ORDER)
    for number in range(8000):
        client, message = messages[b"a%d" % number]
        client.say(req(message.id, 60_000))
    operator_actions.cancel(it.real, BitMap64(it.of(many("a", 7999))))
    client, message = messages[b"a8000"]
    client.say(req(message.id, 0))
    client, message = messages[b"a8001"]
    client.say(fin(message.id))
    later = it.groups._groups[b"a"].later
    assert later is not None
    assert 1 < len(later) < 8000
    it.node.pass_time(0)
    assert len(later) == 1


def test_a_turn_sorts_so_many_messages_and_others_go_on() -> None:
    it = Grouped(**ORDER, **SHARE)
    it.publish(many("a", 5000))
    it.publish("b1 c1")
    client = it.consumer(3)
    assert it.got(client) == "a0"
    for _ in range(3):
        it.node.pass_time(0)
    assert it.got(client) == "b1 c1"
    it.crash()
    client = it.consumer(1)
    it.node.load()
    found: list[str] = []
    while len(found) < 10:
        it.node.pass_time(0)
        it.node.load()
        for word in it.got(client).split():
            found.append(word)
            client.say(fin(it.ids[word]))
    assert sorted(found) == sorted(["b1", "c1", *many("a", 8).split()])
    assert [word for word in found if word[0] == "a"] == many("a", 8).split()


def test_a_turn_passes_so_many_cancelled_messages() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a " + many("a", 7000) + " az")
    assert it.got(client) == "a"
    for _ in range(4):
        it.node.pass_time(0)
    operator_actions.cancel(it.real, BitMap64(it.of(many("a", 7000))))
    assert it.finish(client, "a") == ""
    it.node.pass_time(0)
    assert it.got(client) == "az"


def test_a_turn_passes_so_many_retries_that_were_cancelled() -> None:
    it = Grouped()
    client = it.consumer(2500)
    words = many("a", 7000)
    it.publish(words)
    assert it.drain(client) == words
    it.follow(**ORDER)
    it.publish("a az")
    assert it.got(client) == "a"
    operator_actions.redeliver(it.real, it.of(words))
    for _ in range(4):
        it.node.pass_time(0)
    operator_actions.cancel(it.real, BitMap64(it.of(words)))
    assert it.finish(client, "a") == ""
    it.node.pass_time(0)
    assert it.got(client) == "az"


def test_answers_to_messages_of_others_free_no_place() -> None:
    it = Grouped(max_in_flight_per_group=1)
    first = it.consumer(1)
    it.publish("a1 a2")
    assert it.got(first) == "a1"
    second = it.consumer(1)
    second.say(fin(it.ids["a1"]) + req(it.ids["a1"], 0))
    assert (it.got(second), it.got(first)) == ("", "")
    assert it.held() == it.of("a2")
    first.say(fin(it.ids["a1"]))
    assert sorted([it.got(first), it.got(second)]) == ["", "a2"]
