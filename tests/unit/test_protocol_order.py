"""Responses leave in the order of their commands, an OK never before its receipt; messages do not wait for them."""

from __future__ import annotations

from common.wire.commands import cls, dpub, fin, mpub, nop, pub
from nsqd.protocol import _MOST_OWED
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


def test_messages_do_not_wait() -> None:
    node = synced_node()
    client = node.consumer()
    assert client.answers(pub("t", b"x")) == [b"<1> x"]
    sync(node)
    assert client.answers() == [b"OK"]


def test_messages_wait_for_the_ok_of_their_sub() -> None:
    node = Node()
    assert node.client().answers(pub("t", b"x") + b"SUB t c\nRDY 1\n") == [b"OK", b"OK", b"<1> x"]


def test_messages_wait_for_the_ok_of_a_sub_that_waits_for_the_log() -> None:
    node = synced_node()
    node.consumer()  # so that the channel is there
    sync(node)
    node.client().ask(pub("t", b"a") + pub("t", b"b"))
    sync(node)
    client = node.client()
    assert client.answers(pub("u", b"x") + b"SUB t c\nRDY 5\n") == []
    sync(node)
    assert client.answers() == [b"OK", b"OK", b"<1> b"]
    assert client.answers(pub("t", b"c")) == [b"<1> c"]  # from now on they wait for nothing


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


def test_messages_and_responses_keep_their_own_order() -> None:
    node = Node()
    client = node.consumer(ready=2)
    node.client().say(mpub("t", [b"a", b"b", b"c"]))
    first, _ = client.messages()
    assert client.answers(fin(first.id) + cls()) == [b"CLOSE_WAIT"]
