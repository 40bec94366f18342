"""Which command is allowed when, and the text of each refusal, byte by byte."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import dpub, fin, identify, mpub, nop, pub, rdy, req, sub, touch
from nsqd.broker import stats
from nsqd.client.states import LEGAL, ClientState
from tests.support.node import RULES, Node

UNKNOWN_ID = b"0123456789abcdef"
COMMANDS = {
    b"IDENTIFY": identify(b"{}"),
    b"AUTH": b"AUTH\n\x00\x00\x00\x01x",
    b"SUB": sub("t", "c"),
    b"RDY": rdy(1),
    b"FIN": fin(UNKNOWN_ID),
    b"REQ": req(UNKNOWN_ID, 0),
    b"TOUCH": touch(UNKNOWN_ID),
    b"CLS": b"CLS\n",
    b"PUB": pub("t", b"x"),
    b"MPUB": mpub("t", [b"x"]),
    b"DPUB": dpub("t", 0, b"x"),
    b"NOP": nop(),
}
WAY_TO = {
    ClientState.INIT: b"  V2",
    ClientState.SUBSCRIBED: b"  V2SUB t c\n",
    ClientState.CLOSING: b"  V2SUB t c\nCLS\n",
}
ALLOWED = {
    ClientState.INIT: {b"IDENTIFY", b"AUTH", b"SUB", b"PUB", b"MPUB", b"DPUB", b"NOP"},
    ClientState.SUBSCRIBED: {b"RDY", b"FIN", b"REQ", b"TOUCH", b"CLS", b"PUB", b"MPUB", b"DPUB", b"NOP"},
    ClientState.CLOSING: {b"RDY", b"FIN", b"REQ", b"TOUCH", b"PUB", b"MPUB", b"DPUB", b"NOP"},
}
REFUSED = [(state, word) for state in WAY_TO for word in COMMANDS if word not in ALLOWED[state]]
ACCEPTED = [(state, word) for state in WAY_TO for word in COMMANDS if word in ALLOWED[state]]


def error(text: bytes) -> bytes:
    return (4 + len(text)).to_bytes(4, "big") + b"\x00\x00\x00\x01" + text


def test_every_command_of_the_table_is_tried() -> None:
    assert LEGAL.keys() == COMMANDS.keys()


@pytest.mark.parametrize(("state", "word"), REFUSED)
def test_command_is_refused_in_this_state(state: ClientState, word: bytes) -> None:
    client = Node().client(WAY_TO[state])
    assert client.ask(COMMANDS[word]) == error(b"E_INVALID cannot " + word + b" in current state")
    assert client.is_closed


@pytest.mark.parametrize(("state", "word"), ACCEPTED)
def test_command_is_accepted_in_this_state(state: ClientState, word: bytes) -> None:
    client = Node().client(WAY_TO[state])
    assert b"in current state" not in client.ask(COMMANDS[word])
    assert client.is_closed == (word == b"AUTH")  # AUTH is disabled here, but allowed in this state


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\n", b"E_INVALID invalid command "),
        (b"nop\n", b"E_INVALID invalid command nop"),
        (b"FOO x\n", b"E_INVALID invalid command FOO"),
        (b" NOP\n", b"E_INVALID invalid command "),
        (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n\x00\x00\x00\x01x", b"E_AUTH_DISABLED AUTH disabled"),
        (b"AUTH\n\x00\x00\x00\x00", b"E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n\x00\x00\x14\x01", b"E_BAD_BODY AUTH body too big 5121 > 5120"),
        (b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB t! c\n", b'E_BAD_TOPIC SUB topic name "t!" is not valid'),
        (b"SUB t c!\n", b'E_BAD_CHANNEL SUB channel name "c!" is not valid'),
        (b"SUB t \n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB a\xff\x01\xc3\xa9 c\n", b'E_BAD_TOPIC SUB topic name "a\\xff\\x01\xc3\xa9" is not valid'),
        (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
        (b"PUB t!\n", b'E_BAD_TOPIC PUB topic name "t!" is not valid'),
        (b"PUB t\n\x00\x00\x00\x00", b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n\xff\xff\xff\xff", b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n\x00\x00\x04\x01", b"E_BAD_MESSAGE PUB message too big 1025 > 1024"),
        (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB t! x\n", b'E_BAD_TOPIC DPUB topic name "t!" is not valid'),
        (b"DPUB t 1.5\n", b"E_INVALID DPUB could not parse timeout 1.5"),
        (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (b"DPUB t 9223372036855\n", b"E_INVALID DPUB timeout 9223372036855 out of range 0-3600000"),
        (b"DPUB t 1\n\x00\x00\x00\x00", b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 1\n\x00\x00\x04\x01", b"E_BAD_MESSAGE DPUB message too big 1025 > 1024"),
        (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
        (b"MPUB t!\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t!" is not valid'),
        (b"MPUB t\n\x00\x00\x00\x00", b"E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n\x00\x00\x14\x01", b"E_BAD_BODY MPUB body too big 5121 > 5120"),
        (b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x00", b"E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n\x00\x00\x00\x09\x00\x00\x04\x00", b"E_BAD_BODY MPUB invalid message count 1024"),
        (
            b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x00\x00",
            b"E_BAD_MESSAGE MPUB invalid message(0) body size 0",
        ),
        (
            b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x04\x01",
            b"E_BAD_MESSAGE MPUB message too big 1025 > 1024",
        ),
    ],
)
def test_bad_command_before_subscribing(sent: bytes, answer: bytes) -> None:
    client = Node().client()
    assert client.ask(sent) == error(answer)
    assert client.is_closed


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"RDY x\n", b"E_INVALID RDY could not parse count x"),
        (b"RDY +1\n", b"E_INVALID RDY could not parse count +1"),
        (b"RDY 1_0\n", b"E_INVALID RDY could not parse count 1_0"),
        (b"RDY 1.5\n", b"E_INVALID RDY could not parse count 1.5"),
        (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY 9223372036854775808\n", b"E_INVALID RDY count -9223372036854775808 out of range 0-2500"),
        (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
        (b"FIN 0123456789abcde\n", b"E_INVALID invalid message ID"),
        (b"REQ " + UNKNOWN_ID + b"\n", b"E_INVALID REQ insufficient number of params"),
        (b"REQ 0123456789abcde 0\n", b"E_INVALID invalid message ID"),
        (b"REQ " + UNKNOWN_ID + b" x\n", b"E_INVALID REQ could not parse timeout x"),
        (b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
        (b"TOUCH 0\n", b"E_INVALID invalid message ID"),
    ],
)
def test_bad_command_of_a_consumer(sent: bytes, answer: bytes) -> None:
    client = Node().consumer()
    assert client.ask(sent) == error(answer)
    assert client.is_closed


@pytest.mark.parametrize("command", [b"FIN %b\n", b"TOUCH %b\n", b"REQ %b 0\n"])
def test_id_that_is_not_in_flight_is_no_reason_to_close(command: bytes) -> None:
    client = Node().consumer()
    word = command.split()[0]
    expected = error(b"E_%b_FAILED %b %b failed ID not in flight" % (word, word, UNKNOWN_ID))
    assert client.ask(command % UNKNOWN_ID) == expected
    assert client.answers(pub("t", b"x")) == [b"OK", b"<1> x"]


@pytest.mark.parametrize("command", [b"FIN %b\n", b"TOUCH %b\n", b"REQ %b 0\n"])
def test_somebody_elses_message_is_not_for_me_to_answer(command: bytes) -> None:
    node = Node()
    owner, other = node.consumer(), node.consumer(ready=0)
    node.client().say(pub("t", b"x"))
    [message] = owner.messages()
    word = command.split()[0]
    expected = b"E_%b_FAILED %b %b failed client does not own message" % (word, word, message.id)
    assert other.answers(command % message.id) == [expected]
    assert owner.answers(fin(message.id)) == []


def test_each_fin_of_a_run_gets_its_own_error() -> None:
    node = Node()
    owner, other = node.consumer(), node.consumer(ready=0)
    node.client().say(pub("t", b"x"))
    [message] = owner.messages()
    refusal = b"E_FIN_FAILED FIN %b failed client does not own message" % message.id
    assert other.answers(fin(message.id) * 2) == [refusal] * 2


@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"\x00\x00\x00\x00"])
def test_wrong_magic(magic: bytes) -> None:
    client = Node().client(b"")
    assert client.ask(magic) == bytes.fromhex("00000012 00000001") + b"E_BAD_PROTOCOL"
    assert client.is_closed


def test_an_http_request_at_the_tcp_port_is_named_in_the_log() -> None:
    client = Node().client(b"")
    client.ask(b"GET ")
    assert ("error", b"an HTTP request at the TCP port; HTTP has a port of its own") in client.notes


def test_magic_may_come_in_pieces() -> None:
    client = Node().client(b"")
    for piece in (b" ", b" V", b"2PUB t\n\x00\x00\x00", b"\x01x"):
        client.say(piece)
    assert client.answers() == [b"OK"]


def test_nothing_is_answered_after_a_fatal_error() -> None:
    node = Node()
    client = node.client()
    assert client.answers(b"FOO\n" + pub("t", b"x")) == [b"E_INVALID invalid command FOO"]
    assert client.answers(pub("t", b"x")) == []
    assert node.broker.find("t") is None


def test_line_that_is_too_long_closes_without_a_word() -> None:
    client = Node().client()
    assert client.ask(b"NOP " + b"x" * 16379 + b"\n") == b""
    assert not client.is_closed
    assert client.ask(b"NOP " + b"x" * 16381) == b""
    assert client.is_closed


def test_surplus_parameters_do_no_harm() -> None:
    sent = b"NOP x y\nPUB t y\n\x00\x00\x00\x01xSUB t c d\nRDY 1 2 3\nCLS x\n"
    assert Node().client().answers(sent) == [b"OK", b"OK", b"CLOSE_WAIT"]


# SUB


def test_subscribing_is_refused_without_heartbeats() -> None:
    client = Node().client()
    client.say(identify(b'{"heartbeat_interval": -1}'))
    assert client.answers(sub("t", "c")) == [b"OK", b"E_INVALID cannot SUB with heartbeats disabled"]


def test_consumers_of_a_channel_are_limited() -> None:
    node = Node(max_channel_consumers=1)
    first, second = node.client(), node.client()
    assert first.answers(sub("t", "c")) == [b"OK"]
    assert second.answers(sub("t", "c")) == [b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"]
    first.protocol.close()
    assert node.client().answers(sub("t", "c")) == [b"OK"]


# Publishing


@pytest.mark.parametrize(("body", "exists"), [(b"PUB t\n\x00\x00\x00\x00", False), (b"MPUB t\n\x00\x00\x00\x00", True)])
def test_only_mpub_makes_the_topic_before_it_looks_at_the_body(body: bytes, *, exists: bool) -> None:
    node = Node()
    node.client().say(body)
    assert (node.broker.find("t") is not None) == exists


def test_mpub_does_not_believe_its_body_size() -> None:
    sent = b"MPUB t\n\x00\x00\x00\x01" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x01a" + b"\x00\x00\x00\x01b"
    node = Node()
    assert node.client().answers(sent + pub("t", b"c")) == [b"OK", b"OK"]
    assert node.topic().depth == 3


@pytest.mark.parametrize(("count", "bad"), [(39, False), (40, True)])
def test_most_messages_that_an_mpub_may_have(count: int, *, bad: bool) -> None:
    node = Node(limits=RULES.limits.__class__(max_message=100, max_body=200))
    sent = b"MPUB t\n\x00\x00\x00\xc8" + count.to_bytes(4, "big") + b"\x00\x00\x00\x01x" * count
    expected = b"E_BAD_BODY MPUB invalid message count 40" if bad else b"OK"
    assert node.client().answers(sent) == [expected]


@pytest.mark.parametrize("sent", [b"DPUB t \n\x00\x00\x00\x01x", b"DPUB t 18446744073709551616\n\x00\x00\x00\x01x"])
def test_delay_that_is_empty_or_wraps_to_zero_is_no_delay(sent: bytes) -> None:
    assert Node().consumer().answers(sent) == [b"OK", b"<1> x"]


def test_deferred_message_comes_when_it_is_due_and_not_before() -> None:
    node = Node()
    client = node.consumer()
    assert client.answers(dpub("t", 3_600_000, b"x")) == [b"OK"]
    while node.now + 59.98 < 1000 + 3600:
        node.pass_time(59.98)
        assert client.answers(nop()) in ([], [b"_heartbeat_"])
    node.pass_time(1000 + 3600.001 - node.now)
    assert b"<1> x" in client.answers()


@pytest.mark.parametrize(
    ("begun", "answer"),
    [
        (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00\x00\x02x", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t 1\n\x00\x00\x00\x02x", b"E_BAD_MESSAGE DPUB failed to read message body"),
        (b"MPUB t\n", b"E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n\x00\x00\x00\x09", b"E_BAD_BODY MPUB failed to read message count"),
        (b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x01", b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (
            b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x00\x02x",
            b"E_BAD_MESSAGE MPUB failed to read message body",
        ),
        (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\x00\x00\x00\x02{", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n\x00\x00\x00\x02x", b"E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_end_of_the_stream_within_a_body_is_answered(begun: bytes, answer: bytes) -> None:
    client = Node().client()
    client.say(begun)
    client.protocol.end()
    assert client.hear() == error(answer)
    assert client.protocol.finished


@pytest.mark.parametrize("begun", [b"", b"NO", b"PUB t\n\x00\x00\x00\x01x"])
def test_end_of_the_stream_elsewhere_is_not(begun: bytes) -> None:
    client = Node().client()
    client.say(begun)
    client.hear()
    client.protocol.end()
    assert client.hear() == b""
    assert client.protocol.finished


def test_topic_deleted_while_a_body_arrives_is_made_anew() -> None:
    node = Node()
    client = node.client()
    client.ask(pub("t", b"x"))
    client.say(b"PUB t\n\x00\x00\x00\x02y")
    node.broker.delete_topic("t")
    assert client.answers(b"y") == [b"OK"]
    assert node.topic().depth == 1


# RDY, FIN, REQ, TOUCH, CLS


def test_ready_count_is_a_ceiling_and_not_a_credit() -> None:
    node = Node()
    client = node.consumer(ready=3)
    node.client().say(mpub("t", [b"a", b"b", b"c", b"d", b"e", b"f"]))
    first = client.messages()
    assert [m.body for m in first] == [b"a", b"b", b"c"]
    assert client.answers(b"".join(fin(m.id) for m in first)) == [b"<1> d", b"<1> e", b"<1> f"]


@pytest.mark.parametrize(("line", "expected"), [(b"RDY\n", [b"<1> x"]), (b"RDY \n", []), (b"RDY 01\n", [b"<1> x"])])
def test_ready_count_may_be_left_out(line: bytes, expected: list[bytes]) -> None:
    node = Node()
    client = node.consumer(ready=0)
    node.client().say(pub("t", b"x"))
    assert client.answers(line) == expected


def test_requeue_delay_is_clamped() -> None:
    node = Node()
    client = node.consumer()
    node.client().say(pub("t", b"x"))
    [message] = client.messages()
    assert client.answers(req(message.id, 999_999_999)) == []
    assert node.channel().deferred_count == 1
    node.pass_time(3599.99)
    assert node.channel().deferred_count == 1
    node.pass_time(0.02)
    assert (node.channel().deferred_count, node.channel().depth) == (0, 1)


def test_negative_requeue_delay_is_none() -> None:
    node = Node()
    client = node.consumer()
    node.client().say(pub("t", b"x"))
    [message] = client.messages()
    assert client.answers(req(message.id, 9_223_372_036_855)) == [b"<2> x"]


def test_after_cls_nothing_new_comes_but_answers_are_taken() -> None:
    node = Node()
    client = node.consumer(ready=2)
    node.client().say(mpub("t", [b"a", b"b", b"c"]))
    first, second = client.messages()
    assert client.answers(b"CLS\n") == [b"CLOSE_WAIT"]
    assert client.answers(b"RDY 5\nRDY garbage\nRDY\n") == []
    assert client.answers(fin(first.id) + touch(second.id) + req(second.id, 0)) == []
    assert client.answers(pub("u", b"x")) == [b"OK"]
    assert client.answers(b"CLS\n") == [b"E_INVALID cannot CLS in current state"]


def test_touch_gives_more_time() -> None:
    node = Node()
    client = node.consumer()
    node.client().say(pub("t", b"x"))
    [message] = client.messages()
    node.pass_time(59)
    client.say(touch(message.id))
    node.pass_time(59)
    assert node.channel().in_flight_count == 1
    node.pass_time(1.1)
    assert node.channel().timeout_count == 1


# What /stats shows of a client


def test_stats_of_a_client() -> None:
    node = Node()
    client = node.consumer(ready=2)
    client.say(mpub("t", [b"a", b"b", b"c"]))
    messages = client.messages()
    client.say(fin(messages[0].id) + req(messages[1].id, 1000))
    told = client.protocol.describe("t")
    assert (told.client_id, told.hostname, told.remote_address) == ("127.0.0.1", "127.0.0.1", "127.0.0.1:4000")
    assert (told.state, told.ready_count, told.in_flight_count) == (3, 2, 1)
    assert (told.message_count, told.finish_count, told.requeue_count) == (3, 1, 1)
    assert told.pub_counts == (("t", 3),)


def test_producer_is_listed_from_its_first_publish_until_it_leaves() -> None:
    node = Node()
    client = node.client()
    assert stats.snapshot(node.broker).producers is None
    client.say(pub("t", b"x"))
    producers = stats.snapshot(node.broker).producers
    assert producers is not None
    assert [producer.pub_counts for producer in producers] == [(("t", 1),)]
    client.protocol.end()
    assert stats.snapshot(node.broker).producers is None


def test_deleted_channel_closes_its_consumers_without_a_word() -> None:
    node = Node()
    client = node.consumer()
    node.client().say(pub("t", b"x"))
    node.broker.topic("t").delete_channel("c")
    assert client.protocol.aborted
    assert client.hear() == b""
