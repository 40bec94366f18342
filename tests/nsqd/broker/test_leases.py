"""Consumers without a connection: whose a lease is, how many there may be, and what comes back when."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from nsqcommon.wire.commands import fin
from nsqd.broker import operator_actions
from nsqd.broker.channel import Channel
from nsqd.broker.http_consumers import HttpCaller, LeasePoll, StreamingConsumer, ids_in
from nsqd.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNER
from nsqd.broker.leases import LINGER, Leases, TooMany
from nsqd.broker.rules import BackoffRule, ChannelRules
from tests.nsqd.broker.grouping import ORDER, Grouped
from tests.nsqd.looks import Looks
from tests.support.given_rules import GivenRules
from tests.support.leasing import bounds
from tests.support.node import Node

ANA = HttpCaller(holder="10.0.0.1", remote_address="10.0.0.1:5000", user_agent="curl/8")
BEN = HttpCaller(holder="10.0.0.2", remote_address="10.0.0.2:5000")


class Desk:
    """A node with one channel, and its leases."""

    def __init__(self, node: Node | None = None, channel: str = "c", **asked: int) -> None:
        self.node = node or Node()
        self.node.broker.topic("t")
        self.channel = self.node.broker.topics["t"].channel(channel)
        self.came = 0
        self.leases = Leases(self.node.broker.turn, bounds(**asked), on_first_consumer=self._first_has_come)
        self.woken: list[LeasePoll] = []

    def _first_has_come(self) -> None:
        self.came += 1

    def publish(self, *bodies: bytes) -> None:
        publisher = self.node.client()
        for body in bodies:
            publisher.say(b"PUB t\n%b%b" % (len(body).to_bytes(4, "big"), body))

    def poll(self, caller: HttpCaller = ANA, most: int = 10, lease: float = 60.0) -> LeasePoll:
        poll = self.leases.poll(self.channel, caller, most=most, lease=lease)
        self.node.turn()
        return poll

    def take(self, caller: HttpCaller = ANA, most: int = 10, lease: float = 60.0) -> list[bytes]:
        """Return the ids of what a poll gets at once."""
        ids = list(ids_in(self.poll(caller, most, lease).take()))
        self.node.turn()
        return ids

    def stream(self, caller: HttpCaller = ANA, most: int = 10, after: bytes = b"") -> StreamingConsumer:
        streamer = self.leases.stream(self.channel, caller, most=most, lease=60.0, after=after, wake=lambda: None)
        self.node.turn()
        return streamer

    def sent(self, streamer: StreamingConsumer) -> list[bytes]:
        ids = list(ids_in(streamer.take()))
        self.node.turn()
        return ids

    def finish(self, *ids: bytes, caller: HttpCaller = ANA) -> dict[bytes, bytes]:
        failures = self.leases.finish(self.channel, caller.holder, ids)
        self.node.turn()
        return failures

    def pass_time(self, seconds: float) -> None:
        self.node.pass_time(seconds)
        self.leases.sweep()
        self.node.turn()


def is_gone(desk: Desk, channel: Channel) -> bool:
    return channel not in desk.node.broker.topics["t"].channels.values()


def test_frames_may_be_cut_anywhere() -> None:
    """One message is one piece, several are pieces of prefix, id and body, and a header is a piece more."""
    frames = [b"\0\0\0\x20\0\0\0\2%8d%2d%016x%b" % (1, 1, number, b"xy") for number in (1, 2)]
    whole = b"".join(frames)
    expected = [b"%016x" % 1, b"%016x" % 2]
    assert list(ids_in([whole])) == list(ids_in(frames)) == expected
    assert list(ids_in([whole[at : at + 5] for at in range(0, len(whole), 5)])) == expected
    assert list(ids_in([])) == []


def test_a_poll_gets_what_waits_up_to_what_it_asks_for() -> None:
    desk = Desk()
    desk.publish(*(b"%d" % number for number in range(5)))
    assert [len(desk.take(most=3)), len(desk.take(most=3)), len(desk.take(most=3))] == [3, 2, 0]
    assert desk.node.channel().in_flight_count == 5


def test_a_poll_that_waits_is_woken_by_the_publish() -> None:
    desk = Desk()
    poll = desk.poll()
    woken: list[int] = []
    poll.wake = lambda: woken.append(poll.count)
    desk.publish(b"one")
    assert woken == [1]
    assert poll.ends == desk.node.broker.turn.timestamp + 60 * 10**9


def test_polls_of_one_holder_are_served_in_turn_and_get_no_more_than_they_asked_for() -> None:
    desk = Desk()
    first, second = desk.poll(most=2), desk.poll(most=1)
    desk.publish(b"1", b"2", b"3", b"4")
    assert (first.count, second.count) == (2, 0)
    first.take()
    desk.node.turn()
    assert second.count == 1
    assert second.take()
    desk.node.turn()
    assert desk.node.channel().depth == 1


def test_what_expires_gives_no_room_for_more_than_was_asked_for() -> None:
    desk = Desk()
    desk.publish(b"1", b"2")
    desk.take(lease=5.0)
    waiting = desk.poll(most=1)
    desk.pass_time(6.0)
    assert waiting.count == 1


def test_a_lease_that_is_not_answered_comes_back_when_it_ends() -> None:
    desk = Desk()
    desk.publish(b"one")
    (message_id,) = desk.take(lease=2.0)
    desk.pass_time(1.9)
    assert desk.take() == []
    desk.pass_time(0.2)
    assert desk.take(BEN) == [message_id]
    assert desk.node.channel().timeout_count == 1
    assert desk.finish(message_id) == {message_id: NOT_OWNER}
    assert desk.finish(message_id, caller=BEN) == {}
    assert desk.finish(message_id, caller=BEN) == {message_id: NOT_IN_FLIGHT}


def test_a_finish_that_was_answered_holds_after_a_crash_and_a_lease_comes_again() -> None:
    desk = Desk()
    desk.publish(b"one", b"two")
    done, held = desk.take()
    desk.finish(done)
    desk.node.crash()
    again = Desk(desk.node)
    poll = again.poll()
    again.node.load()
    assert list(ids_in(poll.take())) == [held]


def test_tcp_and_http_do_not_answer_for_each_other() -> None:
    desk = Desk()
    desk.publish(b"one", b"two")
    (leased,) = desk.take(most=1)
    consumer = desk.node.consumer(ready=5)
    (message,) = consumer.messages()
    assert desk.finish(message.id) == {message.id: NOT_OWNER}
    assert b"E_FIN_FAILED FIN %b failed client does not own message" % leased in consumer.ask(b"FIN %b\n" % leased)


def test_requeue_bury_and_touch_do_what_they_do_over_tcp() -> None:
    desk = Desk()
    desk.publish(b"1", b"2", b"3", b"4")
    first, second, third, fourth = desk.take()
    channel, leases = desk.channel, desk.leases
    assert leases.requeue(channel, ANA.holder, [first], 0, counts=True) == {}
    assert leases.requeue(channel, ANA.holder, [second, b"0" * 16], 1000, counts=False) == {b"0" * 16: NOT_IN_FLIGHT}
    assert leases.bury(channel, ANA.holder, [third], "bad") == {}
    failures, ends = leases.touch(channel, ANA.holder, [fourth], 120.0)
    desk.node.turn()
    assert (failures, ends) == ({}, {fourth: desk.node.broker.turn.timestamp + 120 * 10**9})
    shown = desk.node.channel()
    assert (shown.depth, shown.deferred_count, shown.buried_count, shown.in_flight_count) == (1, 1, 1, 1)
    (burial,) = channel.buried_queue.buried.from_place(0)
    assert (burial.note.reason, burial.note.who) == ("bad", "10.0.0.1")
    (clients,) = shown.clients or ()
    assert (clients.in_flight_count, clients.ready_count) == (1, 1)
    assert (clients.requeue_count, clients.version, clients.user_agent) == (2, "HTTP", "curl/8")
    assert (clients.touch_count, clients.last_touch_at) == (1, desk.node.broker.turn.timestamp)


def test_a_poll_whose_connection_is_gone_gives_back_what_it_got_uncounted() -> None:
    desk = Desk()
    poll = desk.poll()
    desk.publish(b"one")
    poll.give_back()
    desk.node.turn()
    consumer = desk.node.consumer(ready=5)
    assert [(it.attempts, it.body) for it in consumer.messages()] == [(1, b"one")]


def test_a_poll_that_leaves_empty_leaves_the_next_one_its_place() -> None:
    desk = Desk()
    first, second, third = desk.poll(), desk.poll(), desk.poll()
    second.give_back()
    first.give_back()
    desk.publish(b"one")
    assert third.count == 1


def test_a_consumer_over_tcp_and_a_poll_share_what_waits() -> None:
    desk = Desk()
    desk.publish(*(b"%d" % number for number in range(10)))
    desk.channel.paused = True
    consumer, poll = desk.node.consumer(ready=10), desk.poll(most=10)
    desk.channel.unpause()
    desk.node.turn()
    assert (len(consumer.messages()), poll.count) == (5, 5)


def test_pause_and_rate_hold() -> None:
    rules = ChannelRules(
        max_rate=2.0, backoff=BackoffRule(exponential=False, shortest_ms=5000, longest_ms=5000, jitter=0)
    )

    desk = Desk(Node(policy=GivenRules(rules)))
    desk.publish(*(b"%d" % number for number in range(5)))
    ids = desk.take()
    assert len(ids) == 2
    desk.leases.requeue(desk.channel, ANA.holder, ids[:1], 0, counts=True)
    assert desk.node.channel().deferred_count == 1  # as the backoff says
    desk.channel.pause()
    desk.pass_time(1.0)
    assert desk.take() == []


# Bounds


def test_a_holder_has_no_more_than_its_bound_and_goes_on_when_it_has_finished() -> None:
    desk = Desk(of_holder=3)
    desk.publish(*(b"%d" % number for number in range(5)))
    ids = desk.take()
    assert len(ids) == 3
    with pytest.raises(TooMany):
        desk.poll()
    assert len(desk.take(BEN, most=1)) == 1
    desk.finish(ids[0])
    assert len(desk.take()) == 1


def test_all_holders_of_a_channel_have_no_more_than_its_bound() -> None:
    desk = Desk(in_channel=4)
    desk.publish(*(b"%d" % number for number in range(6)))
    assert (len(desk.take(most=3)), len(desk.take(BEN, most=3))) == (3, 1)
    with pytest.raises(TooMany):
        desk.poll(BEN)


def test_polls_that_wait_cannot_exceed_the_bound_together() -> None:
    desk = Desk(in_channel=4)
    first, second = desk.poll(ANA, most=3), desk.poll(BEN, most=3)
    desk.publish(*(b"%d" % number for number in range(6)))
    assert (first.count, second.count) == (2, 2)
    ids = list(ids_in([*first.take(), *second.take()]))
    desk.node.turn()
    desk.finish(ids[0])
    assert desk.node.channel().depth == 2


def test_a_poll_that_waits_takes_nothing_of_the_bound() -> None:
    desk = Desk(of_holder=10)
    elsewhere = desk.node.broker.topics["t"].channel("d")
    waiting = desk.leases.poll(elsewhere, ANA, most=10, lease=60.0)
    desk.channel.paused = elsewhere.paused = True
    desk.publish(*(b"%d" % number for number in range(12)))
    desk.channel.unpause()
    assert len(desk.take(most=8)) == 8
    elsewhere.unpause()
    desk.node.turn()
    assert waiting.count == 2


def test_a_poll_that_waits_for_the_bound_is_served_when_something_is_finished() -> None:
    desk = Desk(of_holder=2)
    desk.publish(b"1", b"2", b"3")
    first, second = desk.poll(most=2), desk.poll(most=2)
    ids = list(ids_in(first.take()))
    desk.node.turn()
    assert second.count == 0
    desk.finish(*ids)
    assert second.count == 1


def test_a_channel_has_no_more_consumers_than_it_may() -> None:
    desk = Desk(consumers=1)
    desk.poll(ANA)
    with pytest.raises(TooMany):
        desk.poll(BEN)


def test_requests_that_wait_are_counted() -> None:
    desk = Desk(waiting=1)
    desk.leases.begin_waiting()
    with pytest.raises(TooMany):
        desk.leases.begin_waiting()
    desk.leases.end_waiting()
    desk.leases.begin_waiting()


# Coming and going


def test_a_consumer_leaves_when_it_has_neither_asked_nor_had_a_lease_for_a_while() -> None:
    desk = Desk()
    desk.publish(b"one")
    (message_id,) = desk.take(lease=900.0)
    desk.pass_time(2 * LINGER)
    assert desk.node.channel().client_count == 1
    desk.finish(message_id)
    desk.pass_time(LINGER - 1)
    assert desk.node.channel().client_count == 1
    desk.pass_time(2)
    assert desk.node.channel().client_count == 0
    assert (desk.came, desk.leases.http_consumers) == (1, [])
    desk.poll()
    assert (desk.came, desk.node.channel().client_count) == (2, 1)


def test_a_poll_that_waits_keeps_its_consumer() -> None:
    desk = Desk()
    desk.poll()
    desk.pass_time(10 * LINGER)
    assert desk.node.channel().client_count == 1


def test_an_ephemeral_channel_goes_with_its_last_consumer() -> None:
    desk = Desk(channel="c#ephemeral")
    desk.take()
    desk.pass_time(LINGER - 1)
    assert not is_gone(desk, desk.channel)
    desk.pass_time(2)
    assert is_gone(desk, desk.channel)
    assert desk.leases.http_consumers == []


def test_polls_and_streams_end_with_their_channel() -> None:
    desk = Desk()
    poll, streamer = desk.poll(), desk.stream(BEN)
    desk.node.broker.topics["t"].delete_channel("c")
    assert (poll.is_over, streamer.is_open, desk.leases.http_consumers) == (True, False, [])
    poll.give_back()
    streamer.end()
    desk.node.turn()


# Streams


def test_a_stream_has_as_many_in_flight_as_it_asked_for() -> None:
    desk = Desk()
    desk.publish(*(b"%d" % number for number in range(5)))
    streamer = desk.stream(most=2)
    ids = desk.sent(streamer)
    assert len(ids) == 2
    assert desk.sent(streamer) == []
    desk.finish(*ids)
    assert len(desk.sent(streamer)) == 2


def test_a_reconnect_finishes_what_has_arrived_and_gets_again_what_has_not() -> None:
    desk = Desk()
    desk.publish(*(b"%d" % number for number in range(5)))
    former = desk.stream(most=4)
    ids = desk.sent(former)
    again = desk.stream(most=10, after=ids[1])  # the server has not noticed that the other connection is gone
    assert sorted(desk.sent(again)) == sorted([*ids[2:], b"%016x" % (int(ids[3], 16) + 1)])
    shown = desk.node.channel()
    assert (shown.depth, shown.in_flight_count) == (0, 3)
    assert former.finish_count == 2


def test_a_reconnect_finishes_also_what_was_sent_long_before() -> None:
    desk = Desk(node=Node(mem_queue_size=1_000))
    streamer = desk.stream(most=2)
    desk.publish(*[b"x"] * 200)
    first, last = desk.sent(streamer)
    while sent := desk.sent(streamer) if not desk.finish(last) else []:
        (last,) = sent
    assert desk.channel.in_flight.owner(first) is streamer
    desk.stream(after=last)
    assert desk.channel.in_flight.owner(first) is None
    assert not desk.channel.depth


def test_a_reconnect_looks_at_no_message_of_others() -> None:
    desk, looks = Desk(), Looks()
    others = desk.stream(BEN, most=5)
    desk.publish(*[b"x"] * 5)
    desk.sent(others)
    streamer = desk.stream(most=1)
    desk.publish(b"mine")
    (mine,) = desk.sent(streamer)
    looks.watch(desk.channel)
    desk.stream(after=mine)
    assert looks.count == 0
    assert desk.channel.in_flight.owner(mine) is None


def test_a_message_for_each_of_many_polls_is_no_look_at_all_of_them_for_each() -> None:
    """They are of one holder, in a channel each: its other polls are looked at to know what the bounds leave."""
    desk, looks, count = Desk(waiting=300), Looks(), 200
    channels = [desk.channel.topic.channel(f"c{number}") for number in range(count)]  # type: ignore[attr-defined]
    polls = [desk.leases.poll(channel, ANA, most=1, lease=60.0) for channel in channels]
    desk.leases._of_holder[ANA.holder] = looks.dictionary(desk.leases._of_holder[ANA.holder])
    desk.publish(b"x")
    assert [poll.count for poll in polls] == [1] * count
    assert looks.count <= 2 * count


def test_a_thousand_polls_of_one_channel_cost_some_calls_for_each_message() -> None:
    desk, count = Desk(Node(mem_queue_size=1_000), waiting=500), 300
    callers = [HttpCaller(holder=f"10.0.1.{number}", remote_address="10.0.1.1:1") for number in range(count)]
    polls = [desk.leases.poll(desk.channel, caller, most=1, lease=60.0) for caller in callers]
    desk.node.turn()
    desk.node.broker.topics["t"].publish(b"\0\0\0\1x" * count, range(0, 5 * count + 1, 5))
    calls = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    desk.node.turn()
    sys.setprofile(before)
    assert [poll.count for poll in polls] == [1] * count
    assert calls < 100 * count, "the compiled core has no calls to count"


def test_a_poll_that_waits_gets_all_it_wants_once_others_have_finished() -> None:
    desk = Desk(of_holder=5)
    elsewhere = desk.node.broker.topics["t"].channel("d")
    elsewhere.pause()
    waiting = desk.leases.poll(elsewhere, ANA, most=4, lease=60.0)
    desk.publish(b"1", b"2", b"3", b"4")
    desk.finish(*desk.take(most=4))
    elsewhere.unpause()
    desk.node.turn()
    assert waiting.count == 4


@pytest.mark.parametrize("how", ["finished", "gone", "requeued", "timed out", "emptied"])
def test_leases_that_end_leave_room_to_whoever_asks_next(how: str) -> None:
    desk = Desk(in_channel=2)
    desk.publish(b"1", b"2")
    if how == "gone":
        desk.poll(most=2, lease=5.0).give_back()
    else:
        ids = desk.take(most=2, lease=5.0)
    if how == "finished":
        desk.finish(*ids)
    elif how == "requeued":
        desk.leases.requeue(desk.channel, ANA.holder, ids, 0, counts=True)
    elif how == "timed out":
        desk.node.pass_time(6.0)
    elif how == "emptied":
        operator_actions.empty(desk.channel)
    desk.publish(b"3", b"4")
    assert len(desk.take(BEN, most=2)) == 2


def test_a_reconnect_says_nothing_about_messages_of_others() -> None:
    desk = Desk()
    desk.publish(b"1", b"2")
    (first,) = desk.sent(desk.stream(most=1))
    (second,) = desk.take(BEN, most=1)
    desk.stream(BEN, after=first)
    desk.stream(ANA, after=second)
    assert desk.node.channel().in_flight_count == 2


@pytest.mark.parametrize("channel", ["c", "c#ephemeral"])
def test_a_stream_takes_the_place_of_one_that_has_ended(channel: str) -> None:
    """Otherwise a browser that connects again would be refused, or would leave a consumer behind each time."""
    desk = Desk(channel=channel, consumers=1)
    desk.publish(b"a")
    for _ in range(3):
        stream = desk.stream()
        desk.finish(*desk.sent(stream))
        with pytest.raises(TooMany):
            desk.stream(BEN)
        stream.end()
    again = desk.stream()
    assert desk.channel.consumers == [again]
    assert desk.leases.http_consumers == [again]
    assert not is_gone(desk, desk.channel)


def test_a_stream_that_has_ended_stays_for_as_long_as_it_has_leases() -> None:
    desk = Desk()
    desk.publish(b"a")
    first = desk.stream()
    leased = desk.sent(first)
    first.end()
    second = desk.stream()
    assert desk.channel.consumers == [first, second]
    assert desk.finish(*leased) == {}


def test_a_stream_that_nothing_arrived_from_can_be_resumed_again() -> None:
    """A browser repeats its last id for as long as no event arrives."""
    desk = Desk()
    desk.publish(b"a", b"b")
    (first,) = desk.sent(desk.stream(most=1))
    (second,) = desk.sent(desk.stream(most=1, after=first))
    third = desk.stream(most=1, after=first)
    assert desk.sent(third) == [second]
    assert third.in_flight == len(desk.channel.in_flight) == 1


def test_a_stream_that_ends_leaves_what_was_sent_leased_and_gives_back_the_rest() -> None:
    desk = Desk()
    desk.publish(b"1")
    streamer = desk.stream()
    (sent,) = desk.sent(streamer)
    desk.publish(b"2")
    streamer.end()
    desk.node.turn()
    assert desk.node.channel().depth == 1
    assert desk.finish(sent) == {}


def test_a_stream_that_does_not_take_gets_no_more_than_a_megabyte() -> None:
    desk = Desk()
    streamer = desk.stream(most=2000)
    body = b"x" * 1000
    for _ in range(40):
        desk.publish(*[body] * 50)
    assert 1000 <= desk.node.channel().in_flight_count < 1200
    desk.sent(streamer)
    assert len(desk.sent(streamer)) > 0


def test_a_poll_waits_for_the_disk_only_if_a_group_may_have_a_message() -> None:
    """Otherwise each poll without `wait=` would take as long as the longest read while all messages are held."""
    it = Grouped(**ORDER)
    consumer = it.consumer(1)
    it.publish("a1 a2")
    assert it.got(consumer) == "a1"
    poll = Leases(it.node.broker.turn, bounds(), on_first_consumer=lambda: None).poll(it.real, ANA, most=1, lease=60.0)
    it.node.turn()
    assert (poll.count, poll.may_get_more_soon) == (0, False)
    it.node.store.logs["t"].evict()
    consumer.say(b"RDY 0\n" + fin(it.ids["a1"]))
    assert (poll.count, poll.may_get_more_soon) == (0, True)
    it.node.load()
    assert poll.count == 1
