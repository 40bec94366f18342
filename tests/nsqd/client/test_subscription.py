"""Consuming by one client, without the rest of the client."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import MOST_FINISHES, CommandReader
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqd.broker.stats_records import ClientSnapshot
from nsqd.client.note import NoteKind
from nsqd.client.outbox import Outbox
from nsqd.client.profile import ClientProfile
from nsqd.client.subscription import MOST_DOUBTFUL, ClientSubscription, names_of
from nsqd.client.work_budget import COST_OF_DEFERRAL, COST_OF_FAILURE, COST_OF_TOUCH, WorkBudget
from tests.support.node import Node, cut_message, frames

UNKNOWN = b"0123456789abcdef"


class Subscribed:
    def __init__(self) -> None:
        self.node = Node()
        self.notes: list[tuple[str, bytes]] = []
        self.outbox = Outbox(lambda: None)
        self.stretch = WorkBudget()
        self.reader = CommandReader(self.node.rules.limits, lambda params: None)
        self.profile = ClientProfile(self.node.rules, remote_address="a:1", remote_host="a", connected=0)
        self.channel = self.node.broker.topic("t").channel("c")
        self.subscription = ClientSubscription(
            self.channel,
            self.profile,
            broker=self.node.broker,
            reader=self.reader,
            outbox=self.outbox,
            stretch=self.stretch,
            note=self._note,
            close=lambda: None,
            describe=self._describe,
        )

    def _note(self, kind: NoteKind, text: bytes) -> None:
        self.notes.append((kind, text))

    def _describe(self) -> ClientSnapshot:
        return self.profile.snapshot("", state=3, pub_counts={}, consumer=None, authorization=None)

    def carry_out(self, params: list[bytes]) -> None:
        match params[0]:
            case b"RDY":
                self.subscription.set_ready(params)
            case b"FIN":
                self.subscription.finish_one(params)
            case b"REQ":
                self.subscription.requeue(params, self.node.now)
            case b"BURY":
                self.subscription.bury(params, self.node.now)
            case _:
                self.subscription.touch(params, self.node.now)

    def get_message(self) -> bytes:
        """Publish a message, and return the id under which it was delivered."""
        self.subscription.set_ready([b"RDY", b"1"])
        self.node.broker.topic("t").publish_one(b"\0\0\0\1x")
        self.node.turn()
        [(_, frame)] = frames(b"".join(self.outbox.take()))
        return cut_message(frame).id

    def errors(self) -> list[bytes]:
        return [frame for _, frame in frames(b"".join(self.outbox.take()))]


@pytest.fixture
def subscribed() -> Subscribed:
    return Subscribed()


def test_a_message_is_finished_once(subscribed: Subscribed) -> None:
    message_id = subscribed.get_message()
    subscribed.subscription.finish_one([b"FIN", message_id])
    assert subscribed.errors() == []
    assert subscribed.subscription.consumer.finish_count == 1
    subscribed.subscription.finish([message_id])
    assert subscribed.errors() == [b"E_FIN_FAILED FIN " + message_id + b" failed ID not in flight"]


def test_after_a_failure_fewer_are_finished_at_once(subscribed: Subscribed) -> None:
    subscribed.subscription.finish([subscribed.get_message()])
    assert subscribed.reader.most_finishes == MOST_FINISHES
    subscribed.subscription.finish([UNKNOWN])
    assert subscribed.reader.most_finishes == MOST_DOUBTFUL


def test_a_message_is_requeued(subscribed: Subscribed) -> None:
    message_id = subscribed.get_message()
    subscribed.subscription.requeue([b"REQ", message_id, b"100"], subscribed.node.now)
    assert subscribed.node.channel().deferred_count == 1
    assert subscribed.stretch.spent == COST_OF_DEFERRAL


def test_a_delay_that_is_too_long_is_cut(subscribed: Subscribed) -> None:
    message_id = subscribed.get_message()
    subscribed.subscription.requeue([b"REQ", message_id, b"3600001"], subscribed.node.now)
    assert subscribed.node.channel().deferred_count == 1
    [(kind, text)] = subscribed.notes
    assert (kind, text[:34]) == ("info", b"REQ timeout 3600001000000 out of r")


def test_a_touch_gives_more_time(subscribed: Subscribed) -> None:
    message_id = subscribed.get_message()
    subscribed.node.pass_time(59.0)
    subscribed.subscription.touch([b"TOUCH", message_id], subscribed.node.now)
    subscribed.node.pass_time(59.0)
    assert subscribed.node.channel().in_flight_count == 1
    assert subscribed.stretch.spent == COST_OF_TOUCH


def test_only_touches_that_gave_more_time_are_counted(subscribed: Subscribed) -> None:
    message_id = subscribed.get_message()
    consumer = subscribed.subscription.consumer
    subscribed.subscription.touch([b"TOUCH", UNKNOWN], subscribed.node.now)
    shown = subscribed.profile.snapshot("", state=3, pub_counts={}, consumer=consumer, authorization=None)
    assert (shown.touch_count, shown.last_touch_at) == (0, 0)
    subscribed.node.pass_time(5.0)
    subscribed.subscription.touch([b"TOUCH", message_id], subscribed.node.now)
    at = subscribed.node.broker.turn.timestamp
    subscribed.node.pass_time(5.0)
    shown = subscribed.profile.snapshot("", state=3, pub_counts={}, consumer=consumer, authorization=None)
    assert (shown.touch_count, shown.last_touch_at) == (1, at)


@pytest.mark.parametrize(
    ("word", "cost"),
    [(b"FIN", 0), (b"REQ", COST_OF_DEFERRAL), (b"BURY", COST_OF_DEFERRAL), (b"TOUCH", COST_OF_TOUCH)],
)
def test_failures_are_answered_logged_and_cost_more(subscribed: Subscribed, word: bytes, cost: int) -> None:
    subscribed.carry_out([word, UNKNOWN, b"0"])
    text = b"E_%b_FAILED %b %b failed ID not in flight" % (word, word, UNKNOWN)
    assert subscribed.errors() == [text]
    assert subscribed.notes == [("error", text)]
    assert subscribed.stretch.spent == cost + COST_OF_FAILURE


def test_of_a_storm_of_failures_the_log_has_the_first_and_their_number(subscribed: Subscribed) -> None:
    for _ in range(50):
        subscribed.subscription.finish([UNKNOWN])
    assert len(subscribed.errors()) == 50
    assert len(subscribed.notes) == 10
    subscribed.subscription.leave()
    assert subscribed.notes[10:] == [("info", b"40 more lines about its messages were left out")]


@pytest.mark.parametrize(
    ("params", "detail"),
    [
        ([b"RDY", b"x"], b"RDY could not parse count x"),
        ([b"RDY", b"2501"], b"RDY count 2501 out of range 0-2500"),
        ([b"FIN"], b"FIN insufficient number of params"),
        ([b"FIN", b"short"], b"invalid message ID"),
        ([b"REQ", UNKNOWN], b"REQ insufficient number of params"),
        ([b"REQ", UNKNOWN, b"x"], b"REQ could not parse timeout x"),
        ([b"BURY"], b"BURY insufficient number of params"),
        ([b"BURY", b"short"], b"invalid message ID"),
        ([b"TOUCH"], b"TOUCH insufficient number of params"),
    ],
)
def test_parameters_are_refused(subscribed: Subscribed, params: list[bytes], detail: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        subscribed.carry_out(params)
    assert (caught.value.fault, caught.value.detail) == (Fault.INVALID, detail)


def test_a_consumer_that_reads_again_is_served_again(subscribed: Subscribed) -> None:
    subscribed.get_message()
    consumer = subscribed.subscription.consumer
    consumer.ready_count = 2
    subscribed.subscription.sent(2 << 20)
    assert consumer.room == 0
    subscribed.node.broker.turn.to_deliver.clear()
    subscribed.subscription.sent(0)
    assert consumer.room == 1
    assert subscribed.channel in subscribed.node.broker.turn.to_deliver


def test_whoever_leaves_is_no_consumer_any_more(subscribed: Subscribed) -> None:
    subscribed.subscription.leave()
    assert subscribed.channel.consumers == []


def test_leaving_a_channel_that_is_deleted_is_nothing(subscribed: Subscribed) -> None:
    subscribed.node.broker.topic("t").delete_channel("c")
    subscribed.subscription.leave()


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ([b"SUB", b"t"], Fault.INVALID),
        ([b"SUB", b"?", b"c"], Fault.BAD_TOPIC),
        ([b"SUB", b"t", b"?"], Fault.BAD_CHANNEL),
    ],
)
def test_names_are_refused(params: list[bytes], fault: Fault) -> None:
    with pytest.raises(ProtocolError) as caught:
        names_of(params)
    assert caught.value.fault is fault


def test_names_are_taken() -> None:
    assert names_of([b"SUB", b"t", b"c#ephemeral"]) == ("t", "c#ephemeral")
