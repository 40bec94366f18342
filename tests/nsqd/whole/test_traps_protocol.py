"""What ports of nsqd usually miss on the TCP side. The numbers are rows of docs/reference/nsq-traps.md."""

from __future__ import annotations

import time
from pathlib import Path
from struct import pack

import pytest

from nsqcommon.wire.commands import cls, dpub, fin, identify, mpub, nop, pub, rdy, req, sub
from nsqcommon.wire.frames import FrameType
from tests.support.brokers import StartNsqd
from tests.support.client import HEARTBEAT, TIMEOUT, Client, Refused
from tests.support.go_data import GoData, messages
from tests.support.lengths import sized
from tests.support.process import Nsqd, eventually

BEFORE = sized(short=65_500, long=0)  # attempts of a message that comes from a Go nsqd


def refusal(nsqd: Nsqd, *sent: bytes) -> bytes:
    """Send these bytes on a new connection, and return the error that ends it."""
    client = nsqd.connect()
    client.send(*sent)
    error = client.error()
    assert client.closes()
    return error


def test_in_one_packet_the_answers_come_before_the_messages(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.send(pub(topic, b"hello") + sub(topic, "c") + rdy(1))
    frames = [client.frame() for _ in range(3)]
    assert [frame.type for frame in frames] == [FrameType.RESPONSE, FrameType.RESPONSE, FrameType.MESSAGE]


@pytest.mark.parametrize("size", [(1 << 20) + 1, 20 << 20])
def test_the_reason_reaches_a_client_that_first_sends_all_of_what_is_refused(nsqd: Nsqd, topic: str, size: int) -> None:
    refused = b"PUB %b\n" % topic.encode() + pack(">I", size) + bytes(size)
    for _ in range(50):
        with nsqd.connect() as client:
            client.sock.sendall(refused)
            assert client.error() == b"E_BAD_MESSAGE PUB message too big %d > 1048576" % size
            assert client.closes()


# Ready counts and parameters


def test_trap_01_rdy_is_a_ceiling_on_what_is_in_flight(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic, ready=3)
    nsqd.connect().publish(topic, *[b"%d" % number for number in range(6)])
    first = consumer.messages(3)
    assert consumer.stays_silent(0.1)
    consumer.finish(*first)
    assert consumer.bodies(3) == [b"3", b"4", b"5"]


def test_trap_02_rdy_without_a_count_is_one(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    nsqd.connect().publish(topic, b"one", b"two")
    consumer.send(b"RDY\n")
    assert consumer.bodies(1) == [b"one"]
    assert consumer.stays_silent(0.1)


def test_trap_02_rdy_with_an_empty_count_is_none(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    nsqd.connect().publish(topic, b"one")
    consumer.send(b"RDY \n")
    assert consumer.stays_silent(0.1)


@pytest.mark.parametrize("count", [b"+1", b"1_0", b"1.5", b"-1", b"1\t"])
def test_trap_03_a_count_is_digits_only(nsqd: Nsqd, topic: str, count: bytes) -> None:
    consumer = nsqd.connect()
    consumer.subscribe("trap-03")
    consumer.send(b"RDY " + count + b"\n")
    assert consumer.error() == b"E_INVALID RDY could not parse count " + count
    assert consumer.closes()


def test_trap_03_an_empty_delay_is_none(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.connect().ask(f"DPUB {topic} \n".encode() + pack(">i", 1) + b"x") == b"OK"
    assert nsqd.topic(topic)["depth"] == 1


def test_trap_03_a_count_wraps_at_64_bits(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    nsqd.connect().publish(topic, b"one")
    consumer.send(b"RDY 18446744073709551616\n")
    assert consumer.stays_silent(0.05)
    consumer.send(b"RDY 18446744073709551617\n")
    assert consumer.bodies(1) == [b"one"]


def test_trap_03_a_count_of_more_than_63_bits_is_negative(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    consumer.send(b"RDY 9223372036854775808\n")
    error = consumer.error()
    assert error == b"E_INVALID RDY count -9223372036854775808 out of range 0-2500"


# Publishing


def test_trap_05_mpub_says_bad_topic_twice(nsqd: Nsqd) -> None:
    error = refusal(nsqd, b"MPUB bad!name\n", pack(">iii", 9, 1, 1), b"x")
    assert error == b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad!name" is not valid'
    assert refusal(nsqd, b"PUB bad!name\n") == b'E_BAD_TOPIC PUB topic name "bad!name" is not valid'


def test_trap_06_mpub_does_not_go_by_its_body_size(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    body = pack(">iii", 1, 2, 1) + b"a" + pack(">i", 1) + b"b"
    assert client.ask(f"MPUB {topic}\n".encode() + body) == b"OK"
    client.publish(topic, b"c")
    assert nsqd.topic(topic)["message_count"] == 3


def test_trap_07_a_bad_mpub_leaves_its_topic_behind(nsqd: Nsqd, topic: str) -> None:
    error = refusal(nsqd, f"MPUB {topic}\n".encode(), pack(">ii", 8, 0))
    assert error == b"E_BAD_BODY MPUB invalid message count 0"
    assert nsqd.topic(topic)["message_count"] == 0


def test_trap_07_a_bad_pub_leaves_nothing_behind(nsqd: Nsqd, topic: str) -> None:
    error = refusal(nsqd, f"PUB {topic}\n".encode(), pack(">i", 0))
    assert error == b"E_BAD_MESSAGE PUB invalid message body size 0"
    assert nsqd.topic(topic) is None


def test_trap_08_the_count_of_mpub_has_a_limit_of_its_own(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-body-size=200")
    assert nsqd.connect().ask(mpub("t", [b"x"] * 39)) == b"OK"
    assert refusal(nsqd, b"MPUB t\n", pack(">ii", 100, 40)) == b"E_BAD_BODY MPUB invalid message count 40"


def test_trap_09_an_unknown_id_is_no_reason_to_close(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    for word, rest in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b"")):
        consumer.send(word + b" 0123456789abcdef" + rest + b"\n")
        assert consumer.error() == b"E_%b_FAILED %b 0123456789abcdef failed ID not in flight" % (word, word)
    consumer.send(nop())
    consumer.in_step()


@pytest.mark.parametrize("command", [b"FIN 0123456789abcde\n", b"REQ 0123456789abcdef0 0\n", b"TOUCH \n"])
def test_trap_09_a_malformed_id_is(nsqd: Nsqd, command: bytes) -> None:
    consumer = nsqd.connect()
    consumer.subscribe("trap-09")
    consumer.send(command)
    assert consumer.error() == b"E_INVALID invalid message ID"
    assert consumer.closes()


def test_trap_10_a_requeue_is_clamped_a_deferral_refused(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic, ready=1)
    nsqd.connect().publish(topic, b"x")
    consumer.requeue(consumer.message(), 999_999_999)
    consumer.in_step()
    assert nsqd.channel(topic)["deferred_count"] == 1
    error = refusal(nsqd, dpub(topic, 3_600_001, b"x"))
    assert error == b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"
    assert nsqd.connect().ask(dpub(topic, 3_600_000, b"x")) == b"OK"
    answer = nsqd.http("POST", f"/pub?topic={topic}&defer=3600001", b"x")
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_DEFER"}')


def test_trap_11_after_cls_the_rest_still_works(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.subscribe(topic, ready=2)
    client.publish(topic, b"one", b"two")
    one, two = client.messages(2)
    assert client.ask(cls()) == b"CLOSE_WAIT"
    client.send(b"RDY nonsense\n", rdy(5), fin(one.id), req(two.id, 0))
    client.publish(topic, b"three")
    client.in_step()
    channel = nsqd.channel(topic)
    assert (channel["depth"], channel["in_flight_count"], channel["client_count"]) == (2, 0, 1)
    assert channel["clients"][0]["state"] == 4
    client.send(cls())
    assert client.error() == b"E_INVALID cannot CLS in current state"
    assert client.closes()


# IDENTIFY


def test_trap_12_identify_takes_the_default_name_away(nsqd: Nsqd, topic: str) -> None:
    silent, named = nsqd.connect(), nsqd.connect()
    silent.subscribe(topic, "silent")
    assert named.identify() == b"OK"
    named.subscribe(topic, "named")
    (before,) = nsqd.channel(topic, "silent")["clients"]
    (after,) = nsqd.channel(topic, "named")["clients"]
    assert (before["client_id"], before["hostname"]) == ("127.0.0.1", "127.0.0.1")
    assert (after["client_id"], after["hostname"]) == ("", "")


def test_trap_13_a_second_identify_moves_the_deadline_not_the_heartbeats(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    client.identify(heartbeat_interval=-1)
    began = time.monotonic()
    client.identify(heartbeat_interval=1000)
    client.send(nop())
    assert client.closes()
    assert 1.9 < time.monotonic() - began < 20  # the deadline of the usual heartbeats is a minute


def test_trap_14_null_is_a_fine_identify(nsqd: Nsqd) -> None:
    assert nsqd.connect().ask(identify(b"null")) == b"OK"


def test_trap_14_keys_are_found_in_any_case(nsqd: Nsqd) -> None:
    answer = nsqd.connect().identify(FEATURE_Negotiation=True, Msg_Timeout=1234)
    assert answer["msg_timeout"] == 1234


@pytest.mark.parametrize(
    "body", [b'{"heartbeat_interval":1000.0}', b'{"feature_negotiation":1}', b'{"client_id":7}', b"[]"]
)
def test_trap_14_kinds_are_strict(nsqd: Nsqd, body: bytes) -> None:
    assert refusal(nsqd, identify(body)) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_trap_15_no_buffer_is_a_buffer_of_one_and_no_timeout(nsqd: Nsqd) -> None:
    answer = nsqd.connect().identify(feature_negotiation=True, output_buffer_size=-1, output_buffer_timeout=1000)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


# Delivery


@pytest.mark.parametrize("timeout", [30_000, -1])
def test_trap_16_17_a_message_never_waits_for_a_buffer(nsqd: Nsqd, topic: str, timeout: int) -> None:
    consumer, publisher = nsqd.connect(), nsqd.connect()
    consumer.identify(output_buffer_timeout=timeout, output_buffer_size=65536)
    consumer.subscribe(topic, ready=100)
    for number in range(5):  # the first comes after a pause, the others between the ticks of NSQ's timer
        publisher.publish(topic, b"%d" % number)
        consumer.message(15)


def test_trap_18_messages_and_responses_share_one_order(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.identify(output_buffer_timeout=-1)
    client.subscribe(topic, ready=10)
    nsqd.connect().publish(topic, b"before")
    eventually(lambda: nsqd.channel(topic)["in_flight_count"] == 1)
    client.send(pub(topic + "-other", b"x"))
    assert [client.frame().type, client.frame().type] == [FrameType.MESSAGE, FrameType.RESPONSE]


def test_trap_19_a_sample_rate_of_99_lets_everything_pass(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.identify(sample_rate=99)
    consumer.subscribe(topic, ready=2500)
    nsqd.connect().publish(topic, *[b"x"] * 2000)
    assert len(consumer.messages(2000)) == 2000


def test_trap_19_what_a_sample_leaves_out_is_gone_for_good(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.identify(sample_rate=1)
    consumer.subscribe(topic, ready=2500)
    nsqd.connect().publish(topic, *[b"x"] * 20_000)
    eventually(lambda: nsqd.channel(topic)["depth"] == 0)
    assert 250 < nsqd.channel(topic)["in_flight_count"] < 600  # 2 % are 400, ± eight standard deviations


def test_trap_20_attempts_wrap_and_never_end(tmp_path: Path) -> None:
    go = GoData(tmp_path)
    go.queue("t:c", messages(1, attempts=(BEFORE,)))
    go.metadata({"t": {"c": False}})
    with Nsqd(tmp_path) as nsqd:
        consumer = nsqd.connect()
        consumer.identify(heartbeat_interval=60_000)
        consumer.subscribe("t", ready=1)
        assert attempts_of_endless_requeues(consumer, 65_536 - BEFORE)[-4:] == [65_534, 65_535, 0, 1]


def attempts_of_endless_requeues(consumer: Client, count: int) -> list[int]:
    message = consumer.message()
    again, size, sock = req(message.id, 0), 8 + 26 + len(message.body), consumer.sock
    heartbeat = pack(">ii", 4 + len(HEARTBEAT), 0) + HEARTBEAT
    sock.settimeout(TIMEOUT)
    attempts = [message.attempts]
    for _ in range(count):
        sock.sendall(again)
        while not (frame := sock.recv(4096).replace(heartbeat, b"")):
            pass  # a slow machine takes longer than a minute for all of them
        assert len(frame) == size
        attempts.append(int.from_bytes(frame[16:18], "big"))
    return attempts


def test_trap_21_no_two_messages_have_the_same_id(nsqd: Nsqd, topic: str) -> None:
    publisher, ids = nsqd.connect(), set()
    consumers = [nsqd.connect() for _ in range(2)]
    for place, consumer in enumerate(consumers):
        consumer.subscribe(f"{topic}-{place}", ready=100)
    for number in range(100):
        publisher.publish(f"{topic}-{number % 2}", b"x")
    for consumer in consumers:
        ids |= {message.id for message in consumer.messages(50)}
    assert len(ids) == 100


# Deadlines


def test_trap_22_the_deadline_is_for_the_whole_command(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    began = time.monotonic()
    client.identify(heartbeat_interval=1000)
    client.send(f"PUB {topic}\n".encode(), pack(">i", 1000))
    error = None
    while error is None:  # a byte now and then does not help
        assert time.monotonic() - began < 30
        client.send(b"x")
        try:
            client.response(0.2)
        except TimeoutError:
            continue
        except Refused as refused:
            error = str(refused)
    assert error == "E_BAD_MESSAGE PUB failed to read message body"
    assert time.monotonic() - began > 1.8


def test_trap_23_heartbeats_come_to_the_busy_as_well(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    began = time.monotonic()
    client.identify(heartbeat_interval=1000)
    frame = None
    while frame is None:
        assert time.monotonic() - began < 20  # the usual interval is 30 s
        client.send(nop() * 50)
        try:
            frame = client.frame(0.005)
        except TimeoutError:
            continue
    assert frame.data == HEARTBEAT
    assert time.monotonic() - began > 0.9


def test_trap_24_a_line_may_have_16384_bytes(nsqd: Nsqd) -> None:
    fits = nsqd.connect()
    fits.send(b"NOP ".ljust(16_383, b"x") + b"\n")
    assert fits.ask(pub("trap-24", b"x")) == b"OK"
    too_long = nsqd.connect()
    too_long.send(b"NOP ".ljust(16_384, b"x") + b"\n")
    assert too_long.closes()


def test_trap_25_a_lost_consumer_keeps_its_messages_until_their_time(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("msg-timeout=4s")
    lost, other = nsqd.connect(), nsqd.connect()
    lost.subscribe("t", ready=1)
    began = time.monotonic()
    lost.publish("t", b"x")
    lost.message()
    lost.close()
    other.subscribe("t", ready=1)
    eventually(lambda: nsqd.channel("t")["client_count"] == 1)
    assert nsqd.channel("t")["in_flight_count"] == 1
    assert other.message().attempts == 2
    assert time.monotonic() - began >= 4


def test_trap_64_only_auth_minds_more_parameters(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.send(b"NOP x y\n")
    assert client.ask(f"SUB {topic} c more\n".encode(), b"RDY 1 more\n") == b"OK"
    client.send(b"FIN 0123456789abcdef more\n")
    assert client.error() == b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
    assert client.ask(f"PUB {topic} more\n".encode() + pack(">i", 1) + b"x") == b"OK"
    assert refusal(nsqd, b"AUTH x\n", pack(">i", 1), b"s") == b"E_INVALID AUTH invalid number of parameters"


def test_trap_64_commands_are_in_capitals(nsqd: Nsqd) -> None:
    assert refusal(nsqd, b"nop\n") == b"E_INVALID invalid command nop"


def test_trap_65_no_subscription_without_heartbeats(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.identify(heartbeat_interval=-1)
    client.send(sub(topic, "c"))
    assert client.error() == b"E_INVALID cannot SUB with heartbeats disabled"
    assert client.closes()


# The order on one connection


@pytest.mark.parametrize("ack", ["memory", "written", "synced"])
def test_who_consumes_what_it_publishes_gets_the_ok_first(start_nsqd: StartNsqd, ack: str) -> None:
    nsqd = start_nsqd(f"ack={ack}")
    with nsqd.connect() as client:
        client.subscribe("t", ready=10)
        for number in range(50):
            body = b"%d" % number
            client.send((pub("t", body), mpub("t", [body]), dpub("t", 0, body))[number % 3])
            assert client.frame().data == b"OK"
            message = client.message()
            assert message.body == body
            client.finish(message)
        client.send(*(pub("t", b"%d" % number) for number in range(10)))
        kinds = [client.frame().type for _ in range(20)]
    published = [number for number, kind in enumerate(kinds) if kind is FrameType.RESPONSE]
    got = [number for number, kind in enumerate(kinds) if kind is FrameType.MESSAGE]
    assert all(ok < message for ok, message in zip(published, got, strict=True))
