"""Responses leave in the order of their commands, and an OK never before its receipt.

A message waits for the OK of the same client's publish to its topic, and for no other.
"""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import cls, dpub, fin, mpub, nop, pub
from nsqd.client.protocol import _MOST_OWED
from tests.support.node import Client, Node


def synced_node() -> Node:
    node = Node()
    node.store.ack_synced = True
    return node


def sync(node: Node) -> None:
    node.store.sync()


def test_ok_waits_for_the_sync() -> None:
    node = synced_node()
    client = node.client()
    assert client.answers(pub("t", b"x")) == []
    sync(node)
    assert client.answers() == [b"OK"]


def test_a_settled_receipt_wakes_the_client() -> None:
    node = synced_node()
    client = node.client()
    client.ask(pub("t", b"x"))
    wakes = client.wakes
    sync(node)
    assert client.wakes == wakes + 1


def test_later_responses_wait_behind_an_earlier_ok() -> None:
    node = synced_node()
    client = node.client()
    assert client.answers(pub("t", b"x") + b"SUB t c\nCLS\n") == []
    sync(node)
    assert client.answers() == [b"OK", b"OK", b"CLOSE_WAIT"]


PUBLISHES = [pub("t", b"x"), mpub("t", [b"x"]), dpub("t", 0, b"x")]


@pytest.mark.parametrize("publish", PUBLISHES, ids=["PUB", "MPUB", "DPUB"])
def test_the_ok_of_a_publish_comes_before_its_message(publish: bytes) -> None:
    client = Node().consumer()
    assert client.answers(publish) == [b"OK", b"<1> x"]


@pytest.mark.parametrize("publish", PUBLISHES, ids=["PUB", "MPUB", "DPUB"])
def test_a_message_waits_as_long_as_the_ok_of_its_publish(publish: bytes) -> None:
    node = synced_node()
    client = node.consumer()
    assert client.answers(publish) == []
    sync(node)
    assert client.answers() == [b"OK", b"<1> x"]


def test_a_message_waits_for_no_ok_of_another_topic() -> None:
    node = synced_node()
    client = node.consumer()
    assert client.answers(pub("u", b"x")) == []
    node.client().ask(pub("t", b"y"))
    assert client.answers() == [b"<1> y"]
    sync(node)
    assert client.answers() == [b"OK"]


def test_other_clients_get_the_message_before_it_is_synced() -> None:
    node = synced_node()
    consumer = node.consumer()
    assert node.client().answers(pub("t", b"x")) == []
    assert consumer.answers() == [b"<1> x"]


def test_messages_keep_their_order_while_oks_are_awaited() -> None:
    node = synced_node()
    client = node.consumer(ready=10)
    client.ask(pub("t", b"a"))
    node.client().ask(pub("t", b"b"))
    client.ask(pub("u", b"x"))
    client.ask(pub("t", b"c"))
    first, other, elsewhere, second = node.store.unsynced
    for receipt in (elsewhere, other, first):
        receipt.settle()
    assert client.answers() == [b"OK", b"<1> a", b"<1> b", b"OK"]
    second.settle()
    assert client.answers() == [b"OK", b"<1> c"]
    node.client().ask(pub("t", b"d"))
    assert client.answers() == [b"<1> d"]


def test_a_client_with_many_messages_that_wait_is_still_read_from() -> None:
    node = synced_node()
    client = node.consumer(ready=2000)
    client.say(mpub("t", [b"x"] * 300))
    for _ in range(5):
        node.client().say(mpub("t", [b"x"] * 300))
    assert client.hear() == b""
    assert client.protocol.reading
    sync(node)
    answers = client.answers()
    assert (answers[0], len(answers)) == (b"OK", 1801)
    assert client.protocol.reading


def test_no_message_follows_a_publish_to_its_topic_that_failed() -> None:
    client = failing_client()
    client.ask(b"SUB t c\nRDY 2\n")
    client.node.client().ask(pub("t", b"y"))
    assert client.answers(pub("t", b"x"))[-1] == b"E_PUB_FAILED PUB failed no space left on device"


def test_messages_wait_for_the_ok_of_their_sub() -> None:
    node = Node()
    assert node.client().answers(pub("t", b"x") + b"SUB t c\nRDY 1\n") == [b"OK", b"OK", b"<1> x"]


def test_messages_wait_for_the_ok_of_a_sub_that_waits_for_the_log() -> None:
    node = synced_node()
    node.consumer()  # makes the channel
    sync(node)
    node.client().ask(pub("t", b"a") + pub("t", b"b"))
    sync(node)
    client = node.client()
    assert client.answers(pub("u", b"x") + b"SUB t c\nRDY 5\n") == []
    sync(node)
    assert client.answers() == [b"OK", b"OK", b"<1> b"]
    assert client.answers(pub("u", b"c")) == []
    node.client().ask(pub("t", b"d"))
    assert client.answers() == [b"<1> d"]  # from now on messages do not wait for that OK


def test_messages_that_wait_for_a_sub_do_not_follow_a_failed_publish() -> None:
    client = failing_client()
    client.node.client().ask(b"SUB t c\n")
    assert client.answers(pub("t", b"x") + b"SUB t c\nRDY 1\n") == [b"E_PUB_FAILED PUB failed no space left on device"]


def test_publishes_of_one_turn_share_a_receipt() -> None:
    node = synced_node()
    client = node.client()
    client.say(pub("t", b"x") * 3)
    assert len(node.store.unsynced) == 1
    sync(node)
    assert client.answers() == [b"OK"] * 3


def test_receipts_may_settle_in_any_order() -> None:
    node = synced_node()
    client = node.client()
    client.ask(pub("t", b"x"))
    client.ask(mpub("u", [b"y"]))
    first, second = node.store.unsynced
    second.settle()
    assert client.answers() == []
    first.settle()
    assert client.answers() == [b"OK", b"OK"]


def test_a_fatal_error_waits_for_the_ok_before_it() -> None:
    node = synced_node()
    client = node.client()
    assert client.answers(pub("t", b"x") + b"FOO\n") == []
    assert not client.protocol.finished
    sync(node)
    assert client.answers() == [b"OK", b"E_INVALID invalid command FOO"]
    assert client.protocol.finished


def test_a_client_that_ended_its_stream_still_gets_its_ok() -> None:
    node = synced_node()
    client = node.client()
    client.say(pub("t", b"x"))
    client.protocol.end()
    assert not client.protocol.finished
    sync(node)
    assert client.answers() == [b"OK"]
    assert client.protocol.finished


def failing_client() -> Client:
    node = Node()
    client = node.client()
    client.ask(pub("t", b"x"))
    node.store.error = "no space left on device"
    return client


def test_failed_write_is_fatal_and_names_the_cause() -> None:
    client = failing_client()
    assert client.answers(pub("t", b"x")) == [b"E_PUB_FAILED PUB failed no space left on device"]
    assert client.is_closed
    assert client.protocol.finished


def test_each_way_to_publish_has_its_own_failure() -> None:
    expected = [b"E_MPUB_FAILED MPUB failed no space left on device"]
    assert failing_client().answers(mpub("t", [b"x"])) == expected
    expected = [b"E_DPUB_FAILED DPUB failed no space left on device"]
    assert failing_client().answers(dpub("t", 5, b"x")) == expected


def test_nothing_follows_a_failed_write() -> None:
    assert failing_client().answers(pub("t", b"x") * 3 + nop()) == [b"E_PUB_FAILED PUB failed no space left on device"]


def test_what_was_not_written_is_not_there() -> None:
    client = failing_client()
    client.say(pub("t", b"y"))
    assert client.node.topic().depth == client.node.topic().message_count == 1


def test_publishing_to_a_topic_that_is_being_deleted() -> None:
    node = Node()
    client = node.client()
    client.protocol.receive(pub("t", b"x"), node.now)
    node.broker.delete_topic("t")
    node.turn()
    assert client.answers() == [b"E_PUB_FAILED PUB failed exiting"]


def test_who_does_not_wait_for_answers_is_held_back() -> None:
    node = synced_node()
    client = node.client()
    for number in range(_MOST_OWED):
        assert client.protocol.reading
        client.say(pub(f"t{number % 2}", b"x"))
    assert not client.protocol.reading
    sync(node)
    client.hear()
    assert client.protocol.reading


def test_who_waits_for_an_answer_is_held_back_while_the_copy_is_behind() -> None:
    node = synced_node()
    idle, client = node.client(), node.client()
    client.say(pub("t", b"x"))
    assert client.protocol.reading
    node.broker.is_copy_behind = True
    client.say(pub("t", b"y"))
    idle.say(nop())
    client.hear()
    assert (client.protocol.reading, idle.protocol.reading) == (False, True)
    node.pass_time(1000)
    assert not client.protocol.finished, "we don't read its answers to heartbeats"
    sync(node)
    client.hear()
    assert client.protocol.reading
    node.pass_time(1000)
    assert client.protocol.finished


def test_a_consumer_that_publishes_is_not_held_back() -> None:
    node = synced_node()
    client = node.consumer()
    node.broker.is_copy_behind = True
    client.say(pub("t", b"x"))
    client.hear()
    assert client.protocol.owes_answers
    assert client.protocol.reading


def test_messages_and_responses_keep_their_own_order() -> None:
    node = Node()
    client = node.consumer(ready=2)
    node.client().say(mpub("t", [b"a", b"b", b"c"]))
    first, _ = client.messages()
    assert client.answers(fin(first.id) + cls()) == [b"CLOSE_WAIT"]
