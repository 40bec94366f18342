"""Commands that exist only on connections that were granted an extension; without one nothing differs from NSQ."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.commands import dpub, identify, mpub, pub, req
from nsqcommon.wire.extensions import bury, req_free
from tests.support.node import Client, Message, Node

UNKNOWN_ID = b"0123456789abcdef"


def identified(**fields: object) -> bytes:
    return identify(json.dumps({"feature_negotiation": True, **fields}).encode())


GRANTED = b"  V2" + identified(extensions=["bury"], client_id="tester")


def consumer(node: Node, *, topic: bytes = b"t", said: bytes = GRANTED, ready: int = 5) -> Client:
    return node.client(said + b"SUB %b c\nRDY %d\n" % (topic, ready))


def with_message(said: bytes = GRANTED) -> tuple[Node, Client, Message]:
    """Return a node whose consumer has a message in flight."""
    node = Node()
    client = consumer(node, said=said)
    node.client().say(pub("t", b"x"))
    [message] = client.messages()
    return node, client, message


def reasons(node: Node) -> list[tuple[str, str, int]]:
    """Return reason, name and attempts of each buried message of the channel."""
    buried = node.broker.topic("t").channel("c").buried_queue.buried
    found = (buried.get(sequence) for piece in buried.sequences() for sequence in piece)
    return [(it.note.reason, it.note.who, it.attempts) for it in found if it is not None]


# Negotiation


def test_answer_tells_extensions_to_who_asks_and_to_nobody_else() -> None:
    [asked] = Node().client().answers(identified(extensions=["headers", "bury", "nonsense"]))
    [unknown] = Node().client().answers(identified(extensions=[]))
    [silent] = Node().client().answers(identified())
    assert json.loads(asked)["extensions"] == ["headers", "bury"]
    assert json.loads(unknown)["extensions"] == []
    assert asked == silent[:-1] + b',"extensions":["headers","bury"]}'
    assert b"extensions" not in silent


def test_nothing_is_granted_without_negotiation() -> None:
    client = Node().client()
    assert client.answers(identify(b'{"extensions":["bury"]}')) == [b"OK"]
    assert client.answers(b"SUB t c\n" + bury(UNKNOWN_ID)) == [b"OK", b"E_INVALID invalid command BURY"]


@pytest.mark.parametrize("value", ["bury", 1, {"bury": True}, [1], [["bury"]], True])
def test_extensions_of_a_wrong_type_are_a_bad_body(value: object) -> None:
    client = Node().client()
    assert client.answers(identified(extensions=value)) == [b"E_BAD_BODY IDENTIFY failed to decode JSON body"]
    assert client.is_closed


def test_the_latest_identify_counts() -> None:
    client = Node().client(GRANTED)
    client.answers(identified())
    assert client.answers(b"SUB t c\n" + bury(UNKNOWN_ID)) == [b"OK", b"E_INVALID invalid command BURY"]


# Without the extension


@pytest.mark.parametrize("said", [b"  V2", b"  V2" + identified(), b"  V2" + identified(extensions=["keys"])])
def test_bury_is_unknown_where_it_was_not_granted(said: bytes) -> None:
    node, client, message = with_message(said)
    assert client.answers(bury(message.id, "why")) == [b"E_INVALID invalid command BURY"]
    assert client.is_closed
    assert reasons(node) == []


def test_free_is_a_word_too_many_where_it_was_not_granted() -> None:
    _, client, message = with_message(b"  V2" + identified())
    assert client.answers(req_free(message.id, 0)) == [b"<2> x"]


# BURY


def test_a_buried_message_comes_to_nobody() -> None:
    node, client, message = with_message()
    assert client.answers(bury(message.id, "no such order")) == []
    node.pass_time(3600)
    assert not node.consumer(ready=5).messages()
    assert reasons(node) == [("no such order", "tester", 1)]
    assert (node.channel().in_flight_count, node.channel().depth) == (0, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"BURY %b\n", ""),
        (b"BURY %b \r\n", ""),
        (b"BURY %b two  spaces \n", "two  spaces "),
        (b"BURY %b bad \xff\tbyte\r\n", "bad \ufffd byte"),
        (b"BURY %b " + "ü".encode() * 1000 + b"\n", "ü" * 128),
    ],
)
def test_reason_goes_to_the_end_of_the_line(line: bytes, reason: str) -> None:
    node, client, message = with_message()
    assert client.answers(line % message.id) == []
    assert reasons(node) == [(reason, "tester", 1)]


def test_after_cls_messages_may_still_be_buried() -> None:
    node, client, message = with_message()
    assert client.answers(b"CLS\n" + bury(message.id, "late")) == [b"CLOSE_WAIT"]
    assert reasons(node) == [("late", "tester", 1)]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"BURY\n", b"E_INVALID BURY insufficient number of params"),
        (b"BURY short why\n", b"E_INVALID invalid message ID"),
        (b"bury 0123456789abcdef\n", b"E_INVALID invalid command bury"),
    ],
)
def test_bad_bury_is_fatal(line: bytes, answer: bytes) -> None:
    client = consumer(Node())
    assert client.answers(line) == [answer]
    assert client.is_closed


def test_bury_before_sub_is_refused() -> None:
    client = Node().client(GRANTED)
    assert client.answers(bury(UNKNOWN_ID)) == [b"E_INVALID cannot BURY in current state"]
    assert client.is_closed


def test_id_that_is_not_in_flight_is_no_reason_to_close() -> None:
    _, client, message = with_message()
    failed = b"E_BURY_FAILED BURY %b failed ID not in flight"
    assert client.answers(bury(message.id) + bury(message.id) + bury(UNKNOWN_ID)) == [
        failed % message.id,
        failed % UNKNOWN_ID,
    ]
    assert client.answers(req(message.id, 0)) == [b"E_REQ_FAILED REQ %b failed ID not in flight" % message.id]
    assert not client.is_closed


def test_somebody_elses_message_is_not_for_me_to_bury() -> None:
    node, _, message = with_message()
    other = consumer(node, ready=0)
    assert other.answers(bury(message.id))[0].startswith(b"E_BURY_FAILED BURY " + message.id)
    assert reasons(node) == []


def test_what_is_not_on_disk_is_not_buried() -> None:
    node = Node()
    client = consumer(node, topic=b"t#ephemeral")
    node.client().say(pub("t#ephemeral", b"x"))
    [message] = client.messages()
    failed = b"E_BURY_FAILED BURY %b failed channel is not on disk" % message.id
    assert client.answers(bury(message.id)) == [failed]
    assert client.answers(req(message.id, 0)) == [b"<2> x"]


def test_many_buried_at_once_give_others_their_turn_and_survive_a_crash() -> None:
    node = Node(mem_queue_size=3000)
    client = consumer(node, ready=1000)
    node.client().say(mpub("t", [b"x"] * 1000))
    ids = [message.id for message in client.messages()]
    client.say(b"".join(bury(message_id, "all of them") for message_id in ids))
    assert not client.handler.reading  # it gives way
    client.go_on()
    assert node.channel().buried_count == 1000
    node.crash()
    assert reasons(node) == [("all of them", "tester", 1)] * 1000


# REQ ... free


@pytest.mark.parametrize("delay", [0, 50])
def test_a_free_requeue_does_not_count_the_attempt(delay: int) -> None:
    node, client, message = with_message()
    answers = client.answers(req_free(message.id, delay))
    if delay:
        node.pass_time(0.06)
        answers = client.answers()
    assert answers == [b"<1> x"]
    assert node.channel().requeue_count == 1


def test_an_attempt_that_does_not_count_does_not_count_after_a_crash_either() -> None:
    node, client, message = with_message()
    client.answers(req_free(message.id, 50))
    node.crash()
    node.pass_time(0.06)
    client = consumer(node)
    node.load()
    assert client.messages() == [(message.id, 1, b"x")]


@pytest.mark.parametrize("words", [b"", b" freely", b" FREE", b" x free", b" "])
def test_any_other_word_is_ignored(words: bytes) -> None:
    _, client, message = with_message()
    assert client.answers(b"REQ %b 0%b\n" % (message.id, words)) == [b"<2> x"]


# Any stream

BODIES = st.sampled_from([b"x", b"FIN 0123456789abcdef\n", b"\nBURY \n"])
SAID = st.one_of(
    st.builds(pub, st.just("t"), BODIES),
    st.builds(mpub, st.just("t"), st.lists(BODIES, min_size=1, max_size=4)),
    st.builds(dpub, st.just("t"), st.just(1), BODIES),
    st.tuples(st.sampled_from([bury, req_free, req]), st.integers(0, 5)),
    st.binary(max_size=12).map(lambda rest: b"BURY " + UNKNOWN_ID + b" " + rest.replace(b"\n", b"") + b"\n"),
)


@given(st.lists(SAID, max_size=12), st.lists(st.integers(1, 30), max_size=40))
def test_a_message_is_in_one_place_whatever_is_said_in_whatever_pieces(said: list[object], cuts: list[int]) -> None:
    node = Node()
    client = consumer(node, ready=2)
    held: list[Message] = []
    published = 0
    for it in said:
        if isinstance(it, tuple):
            function, number = it
            message_id = held[number % len(held)].id if held else UNKNOWN_ID
            data = bury(message_id, "why not") if function is bury else function(message_id, 0)
        else:
            assert isinstance(it, bytes)
            data = it
            published += {b"PUB ": 1, b"DPUB": 1}.get(data[:4], 0) or (
                int.from_bytes(data[11:15]) if data[:4] == b"MPUB" else 0
            )
        for cut in cuts:
            client.say(data[:cut])
            data = data[cut:]
        client.say(data)
        held += client.messages()
        channel = node.channel()
        places = channel.depth + channel.in_flight_count + channel.deferred_count + channel.buried_count
        assert places == published
        assert not client.is_closed
