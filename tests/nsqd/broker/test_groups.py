"""Groups: limits, order and fair shares, and what becomes of held messages."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.commands import fin, nop, req
from nsqcommon.wire.headers import encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.groups import GroupSnapshot
from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.rules import Overflow
from tests.nsqd.broker.grouping import ORDER, SHARE, TWO, Grouped
from tests.support.fake_store import changes_in

HOUR = 3600 * 1_000_000_000


def many(group: str, count: int) -> str:
    return " ".join(f"{group}{number}" for number in range(count))


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
    assert it.finish(client, "a1 b2") == "a4 b3"


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


def test_the_largest_groups_are_listed() -> None:
    it = Grouped(max_in_flight_per_group=1)
    client = it.consumer()
    it.publish("a1 a2 b1 b2 b3 c1")
    assert it.got(client) == "a1 b1 c1"
    assert largest(it, 2) == [GroupSnapshot(b"b", 2, 0, 1, 3), GroupSnapshot(b"a", 1, 0, 1, 1)]
    assert [found.name for found in largest(it)] == [b"b", b"a", b"c"]


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


# Fair shares


def test_groups_take_turns() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 a2 a3 a4 a5 a6 a7")
    it.publish("b1 b2 c1")
    client = it.consumer(1)
    assert it.drain(client) == "a1 b1 c1 a2 b2 a3 a4 a5 a6 a7"


def test_in_each_round_groups_are_served_in_the_order_of_the_log() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 b1 c1 c2 b2 a2")
    assert it.drain(it.consumer(1)) == "a1 b1 c1 c2 b2 a2"


def test_a_group_with_a_weight_gets_more_messages_in_its_turn() -> None:
    it = Grouped(**SHARE, weights=(("b", 2),))
    it.publish("a1 a2 a3 a4 b1 b2 b3 b4 b5")
    client = it.consumer(1)
    assert it.drain(client) == "a1 b1 b2 a2 b3 b4 a3 b5 a4"


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
        it.node.broker.record_progress()
        it.node.store.write_journal(force=True)
        snapshot = changes_in(it.node.broker.snapshot_topic("t"))
        it.node.store.journal = [("snapshot", "t"), *snapshot]
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
    it.real.schedule_delivery()
    it.node.turn()
    assert it.groups.full_since == it.node.broker.turn.timestamp
    assert it.finish(client, "a1") == "a2 b1"
    assert it.drain(client, "a2") == "a3 a4"
    assert it.groups.full_since is None


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
