"""AUTH: what is asked when, what waits meanwhile, and the text of each refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.wire.commands import auth, dpub, identify, mpub, nop, pub, sub
from nsqcommon.wire.limits import SizeLimits
from tests.support.node import RULES, Client, Node

PUBLISHES = {b"PUB": pub("t", b"x"), b"DPUB": dpub("t", 0, b"x"), b"MPUB": mpub("t", [b"x", b"y"])}
GUARDED = {**PUBLISHES, b"SUB": sub("t", "c")}


def grant(*permissions: str, topic: str = "^t$", channel: str = ".*", ttl: int = 60, **fields: object) -> bytes:
    entry = {"topic": topic, "channels": [channel], "permissions": permissions}
    return json.dumps({"ttl": ttl, "authorizations": [entry], **fields}).encode()


ALL = grant("publish", "subscribe")


@pytest.fixture
def node() -> Node:
    return guarded_node()


def guarded_node(**rules: Any) -> Node:
    node = Node(**rules)
    node.questions = []
    return node


def authorized(node: Node, answer: bytes = ALL, secret: bytes = b"secret") -> Client:
    client = node.client()
    client.say(auth(secret))
    node.answer(answer)
    client.hear()
    return client


def test_auth_is_answered_with_who_one_is(node: Node) -> None:
    client = node.client()
    client.say(auth(b"secret"))
    assert client.hear() == b""
    node.answer(grant("publish", identity="me", identity_url="http://me"))
    assert client.answers() == [b'{"identity":"me","identity_url":"http://me","permission_count":1}']
    described = client.protocol.describe()
    assert (described.authed, described.auth_identity, described.auth_identity_url) == (True, "me", "http://me")


def test_the_question_has_the_secret_and_the_address(node: Node) -> None:
    client = node.client()
    client.say(auth(b"sec\xff"))
    assert node.questions is not None
    asked = node.questions[0]
    assert (asked.secret, asked.remote_ip, asked.tls, asked.common_name) == (b"sec\xff", "127.0.0.1", False, "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, b"E_AUTH_FAILED AUTH failed"),
        (b'{"ttl":1}', b"E_UNAUTHORIZED AUTH no authorizations found"),
    ],
)
def test_auth_that_leads_to_nothing(node: Node, answer: bytes | None, said: bytes) -> None:
    client = node.client()
    client.say(auth(b"secret"))
    node.answer(answer)
    assert client.answers() == [said]
    assert client.is_closed


def test_auth_twice(node: Node) -> None:
    client = authorized(node)
    assert client.answers(auth(b"other")) == [b"E_INVALID AUTH already set"]
    assert client.is_closed
    assert not node.questions


@pytest.mark.parametrize("word", GUARDED)
def test_nothing_goes_before_auth(node: Node, word: bytes) -> None:
    client = node.client()
    assert client.answers(GUARDED[word]) == [b"E_AUTH_FIRST AUTH required before " + word]
    assert client.is_closed
    assert node.broker.find("t") is None


@pytest.mark.parametrize("word", GUARDED)
def test_granted_commands_are_carried_out(node: Node, word: bytes) -> None:
    assert authorized(node).answers(GUARDED[word]) == [b"OK"]


@pytest.mark.parametrize("word", PUBLISHES)
def test_publishing_that_is_not_allowed(node: Node, word: bytes) -> None:
    client = authorized(node, grant("subscribe"))
    assert client.answers(PUBLISHES[word]) == [b"E_UNAUTHORIZED AUTH failed for " + word + b' on "t" ""']
    assert client.is_closed
    assert node.broker.find("t") is None


def test_subscribing_that_is_not_allowed(node: Node) -> None:
    client = authorized(node, grant("publish"))
    assert client.answers(sub("t", "c")) == [b'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"']
    assert node.broker.find("t") is None


# What comes before the check, and after it


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"PUB t!\n", b'E_BAD_TOPIC PUB topic name "t!" is not valid'),
        (b"PUB t\n\xff\xff\xff\xff", b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"DPUB t x\n", b"E_INVALID DPUB could not parse timeout x"),
        (b"MPUB t!\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t!" is not valid'),
        (b"MPUB t\n", b"E_AUTH_FIRST AUTH required before MPUB"),  # before its size is known
        (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB t c!\n", b'E_BAD_CHANNEL SUB channel name "c!" is not valid'),
        (b"AUTH\n\x00\x00\x00\x00", b"E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
    ],
)
def test_the_order_of_checks(node: Node, sent: bytes, answer: bytes) -> None:
    assert node.client().answers(sent) == [answer]


def test_a_body_is_read_before_a_pub_is_refused(node: Node) -> None:
    client = node.client()
    assert client.answers(b"PUB t\n\x00\x00\x00\x02x") == []
    assert client.answers(b"y") == [b"E_AUTH_FIRST AUTH required before PUB"]


# While an answer is awaited


def test_commands_wait_for_the_answer(node: Node) -> None:
    client = node.client()
    client.say(auth(b"secret") + pub("t", b"1"))
    assert not client.protocol.reading
    client.say(pub("t", b"2")[:-1])
    client.say(b"2" + sub("t", "c"))
    assert client.answers() == []
    node.answer(ALL)
    assert client.protocol.reading
    assert client.answers()[1:] == [b"OK", b"OK", b"OK"]
    assert client.answers(b"RDY 5\n") == [b"<1> 1", b"<1> 2"]


def test_heartbeats_go_on_and_nobody_is_cut_off_for_silence(node: Node) -> None:
    client = node.client()
    client.ask(identify(b'{"heartbeat_interval":1000}'))
    client.say(auth(b"secret"))
    for _ in range(5):
        node.pass_time(1.0)
    assert client.answers() == [b"_heartbeat_"] * 5
    node.answer(ALL)
    assert not client.is_closed
    client.hear()
    node.pass_time(1.0)
    assert client.protocol.next_deadline <= node.now + 1.0
    node.pass_time(1.1)
    assert client.is_closed


def test_silence_counts_again_where_there_are_no_heartbeats(node: Node) -> None:
    client = node.client()
    client.ask(identify(b'{"heartbeat_interval":-1}'))
    client.ask(identify(b'{"heartbeat_interval":1000}'))
    client.say(auth(b"secret"))
    node.pass_time(5.0)
    node.answer(ALL)
    assert client.protocol.next_deadline == node.now + 2.0


def test_a_client_that_has_left_gets_no_answer(node: Node) -> None:
    client = node.client()
    client.say(auth(b"secret"))
    assert node.questions is not None
    question = node.questions[0]
    assert question.waits
    client.protocol.abort()
    assert not question.waits
    node.answer(ALL)
    assert client.hear() == b""


def test_who_has_said_all_still_gets_the_answers(node: Node) -> None:
    client = node.client()
    client.say(auth(b"secret") + pub("t", b"x"))
    client.protocol.end()
    node.turn()
    assert not client.is_closed
    node.answer(ALL)
    assert client.answers()[1:] == [b"OK"]
    assert client.is_closed


def test_half_a_body_at_the_end_is_an_error_also_behind_a_question(node: Node) -> None:
    client = node.client()
    client.say(auth(b"secret") + pub("t", b"xyz")[:-1])
    client.protocol.end()
    node.answer(ALL)
    assert client.answers()[1:] == [b"E_BAD_MESSAGE PUB failed to read message body"]


# When the answer has expired


@pytest.mark.parametrize("word", GUARDED)
def test_what_has_expired_is_asked_again_with_the_same_secret(node: Node, word: bytes) -> None:
    client = authorized(node, grant("publish", ttl=10))
    node.pass_time(10.0)
    client.say(GUARDED[word] + nop() + pub("t", b"behind"))
    assert client.answers() == []
    assert node.broker.find("t") is None
    assert node.questions is not None
    assert [it.secret for it in node.questions] == [b"secret"]
    node.answer(ALL)
    assert client.answers() == [b"OK", b"OK"]
    assert not node.questions


def test_trap_50_nothing_is_asked_before_it_matters(node: Node) -> None:
    client = authorized(node, grant("publish", "subscribe", ttl=1))
    client.say(sub("t", "c"))
    assert client.answers() == [b"OK"]
    node.pass_time(10.0)
    client.say(b"RDY 1\n" + nop())
    assert not node.questions
    node.client()
    assert client.protocol.reading


def test_a_body_in_pieces_waits_too(node: Node) -> None:
    client = authorized(node, grant("publish", ttl=1))
    node.pass_time(1.0)
    sent = mpub("t", [b"one", b"two"])
    client.say(sent[:9])
    client.say(sent[9:15])
    client.say(sent[15:])
    node.answer(grant("publish", ttl=1))
    assert client.answers() == [b"OK"]
    assert node.topic().message_count == 2


@pytest.mark.parametrize("word", GUARDED)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, b"E_AUTH_FAILED AUTH failed"),
        (b'{"ttl":1}', b"E_UNAUTHORIZED AUTH failed for %b on %b"),
        (grant(), b"E_UNAUTHORIZED AUTH failed for %b on %b"),
    ],
)
def test_the_new_answer_counts(node: Node, word: bytes, answer: bytes | None, said: bytes) -> None:
    client = authorized(node, grant("publish", "subscribe", ttl=1))
    node.pass_time(1.0)
    client.say(GUARDED[word])
    node.answer(answer)
    names = b'"t" "c"' if word == b"SUB" else b'"t" ""'
    assert client.answers() == [said.replace(b"%b", word, 1).replace(b"%b", names)]
    assert client.is_closed


def test_the_new_answer_lasts_from_when_it_came(node: Node) -> None:
    client = authorized(node, grant("publish", ttl=10))
    node.pass_time(10.0)
    client.say(pub("t", b"x"))
    node.pass_time(4.0)
    node.answer(grant("publish", ttl=10))
    assert client.answers() == [b"OK"]
    node.pass_time(9.0)
    assert client.answers(pub("t", b"x")) == [b"OK"]


def test_a_publish_that_waits_for_the_log_is_answered_before_the_refusal(node: Node) -> None:
    client = authorized(node, grant("publish", topic="^t$"))
    assert client.answers(pub("t", b"x") + pub("u", b"x")) == [
        b"OK",
        b'E_UNAUTHORIZED AUTH failed for PUB on "u" ""',
    ]


def test_a_topic_that_was_deleted_meanwhile_is_made_anew(node: Node) -> None:
    client = authorized(node, grant("publish", ttl=10))
    assert client.answers(pub("t", b"x")) == [b"OK"]
    node.pass_time(10.0)
    client.say(pub("t", b"y"))
    node.broker.delete_topic("t")
    node.turn()
    node.answer(ALL)
    assert client.answers() == [b"OK"]
    assert node.topic().message_count == 1


def test_a_compressed_stream_is_not_unpacked_while_nobody_reads_it() -> None:
    node = guarded_node(
        features=replace(RULES.features, deflate=True), limits=SizeLimits(max_message=1 << 23, max_body=1 << 23)
    )
    client = node.client()
    client.ask(identify(b'{"feature_negotiation":true,"deflate":true}'))
    client.say(DeflateLayer(6).encode(auth(b"secret") + pub("t", bytes(4 << 20))))
    for _ in range(100):
        node.pass_time(0.01)
    assert client.protocol._reader.buffered < 1 << 20
    assert not client.handler.reading
    node.answer(ALL)
    for _ in range(100):
        node.pass_time(0.01)
    assert node.topic().message_bytes == 4 << 20
