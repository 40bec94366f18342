"""Headers of messages in the tools: shown by nsq_tail, and passed on by nsq_to_http, nsq_to_nsq and nsq_replay."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.support.brokers import StartNsqd
from tests.support.http_sink import HttpSink
from tests.support.process import Nsqd, eventually
from tests.support.tools import LIMIT, Tool, address, run_tool

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def publish(nsqd: Nsqd, topic: str, body: bytes, **headers: str) -> None:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    assert nsqd.http("POST", f"/pub?topic={topic}", body, headers=given).status == 200


@pytest.fixture
def source(nsqd: Nsqd, topic: str) -> Nsqd:
    """A topic with a channel, a message that has headers, and one that has none."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    publish(nsqd, topic, b"one", traceparent=TRACE, content_type="application/json", Nsq_Header_note="a\tb")
    nsqd.connect().publish(topic, b"two")
    eventually(lambda: nsqd.http("GET", f"/topic/log?topic={topic}").json["next"] == 2)
    return nsqd


def read(nsqd: Nsqd, topic: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return bodies and headers of a topic's messages, once there are as many."""

    def found() -> list[Any]:
        lines = map(json.loads, nsqd.http("GET", f"/topic/read?topic={topic}&from=0").body.splitlines())
        return [line for line in lines if "body" in line]

    assert eventually(lambda: len(found()) == count, timeout=LIMIT)
    return sorted((line["body"], line.get("headers", {})) for line in found())


ONE = {"traceparent": TRACE, "content-type": "application/json", "note": "a\tb"}


def test_nsq_tail_prints_them_live_and_from_the_log(source: Nsqd, topic: str) -> None:
    place = f"--nsqd-http-address={address(source.http_address)}"
    shown = run_tool("nsq_tail", "--peek", f"--topic={topic}", place, "--print-headers").stdout
    expected = f'traceparent: "{TRACE}"\ncontent-type: "application/json"\nnote: "a\\tb"\none\ntwo\n'.encode()
    assert sorted(shown.splitlines()) == sorted(expected.splitlines())
    assert shown.endswith(b"one\ntwo\n")
    as_json = run_tool("nsq_tail", "--peek", f"--topic={topic}", place, "--json").stdout
    assert [json.loads(line).get("headers") for line in as_json.splitlines()] == [ONE, None]
    live = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address(source.tcp)}", "-n=2")
    lines = [json.loads(line) for line in run_tool("nsq_tail", *live, "--json").stdout.splitlines()]
    assert sorted((it["body"], it.get("headers", {})) for it in lines) == [("one", ONE), ("two", {})]


def test_nsq_tail_without_the_option_prints_what_it_always_did(source: Nsqd, topic: str) -> None:
    live = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address(source.tcp)}", "-n=2")
    assert sorted(run_tool("nsq_tail", *live).stdout.splitlines()) == [b"one", b"two"]


def test_nsq_to_http_sends_them(source: Nsqd, topic: str) -> None:
    publish(source, topic, b"three", Nsq_Header_x_a="theirs", traceparent=TRACE)
    place = f"--nsqd-tcp-address={address(source.tcp)}"
    with (
        HttpSink() as sink,
        Tool(
            "nsq_to_http", f"--topic={topic}", "--channel=c", place, f"--post={sink.url}", "--header=traceparent: mine"
        ),
    ):
        assert eventually(lambda: len(sink.requests) == 3, timeout=LIMIT)
        headers = {request.body: request.headers for request in sink.requests}
    assert (headers[b"one"]["content-type"], headers[b"one"]["nsq-header-note"]) == ("application/json", "a\tb")
    assert headers[b"two"]["content-type"] == "application/octet-stream"
    assert headers[b"three"]["nsq-header-x-a"] == "theirs"
    assert {it["traceparent"] for it in headers.values()} == {"mine"}  # what the command line says goes first


def to_nsq(nsqd: Nsqd, topic: str, *destinations: Nsqd) -> Tool:
    return Tool(
        "nsq_to_nsq", f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address(nsqd.tcp)}",
        *(f"--destination-nsqd-tcp-address={address(it.tcp)}" for it in destinations),
    )  # fmt: skip


def test_nsq_to_nsq_passes_them_on_and_says_where_from(source: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    second, third = start_nsqd(), start_nsqd()
    with to_nsq(source, topic, second):
        found = dict(read(second, topic, 2))
    origin = found["one"].pop("nsq-origin")
    assert origin.startswith(f"{address(source.tcp)}/{topic}/")
    assert found["one"] == ONE
    assert list(found["two"]) == ["nsq-origin"]
    second.post(f"/channel/create?topic={topic}&channel=c")
    publish(second, topic, b"four", Nsq_Header_nsq_origin="the first one stays")
    with to_nsq(second, topic, third):
        again = dict(read(third, topic, 3))
    assert (again["one"]["nsq-origin"], again["four"]["nsq-origin"]) == (origin, "the first one stays")


def test_a_replay_passes_them_on(source: Nsqd, topic: str) -> None:
    place = f"--nsqd-http-address={address(source.http_address)}"
    arguments = (f"--topic={topic}", place, f"--destination-topic={topic}-2", "--from=earliest", "--json")
    result = run_tool("nsq_replay", *arguments)
    assert (result.returncode, json.loads(result.stdout)["published"]) == (0, 2), result.stderr
    found = dict(read(source, f"{topic}-2", 2))
    assert found["one"].pop("nsq-origin").startswith(f"{address(source.http_address)}/{topic}/")
    assert (found["one"], found["two"]) == (ONE, {})


def is_empty(nsqd: Nsqd, topic: str) -> bool:
    found = nsqd.channel(topic)
    return bool(found["depth"] == found["in_flight_count"] == found["deferred_count"] == 0)


def test_kill_9_of_nsq_to_nsq_doubles_nothing(topic: str, start_nsqd: StartNsqd) -> None:
    nsqd, destination = start_nsqd("msg-timeout=1s"), start_nsqd()
    count, kills = 2_000, 3
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    publisher = nsqd.connect()
    publisher.publish(topic, *(b"%d" % number for number in range(count)))

    def passed_on() -> int:
        found = destination.topic(topic)
        return found["message_count"] if found else 0

    for kill in range(1, kills + 1):
        with to_nsq(nsqd, topic, destination) as tool:
            assert eventually(lambda least=kill * count // (kills + 2): passed_on() > least, timeout=LIMIT)
            tool.signal(signal.SIGKILL)
    with to_nsq(nsqd, topic, destination) as tool:
        publisher.publish(topic, b"%d" % count)  # when it has come, this tool is connected to both
        assert eventually(lambda: passed_on() == count + 1, timeout=LIMIT)
        # Whatever those kills have hit: this one comes after a publish, and before its answer.
        destination.send_signal(signal.SIGSTOP)
        try:
            last = b"%01000d" % (count + 1)
            publisher.publish(topic, last)
            assert eventually(lambda: destination.unread_bytes > len(last), timeout=LIMIT)
            tool.signal(signal.SIGKILL)
            tool.process.wait(LIMIT)
        finally:
            destination.send_signal(signal.SIGCONT)
    with to_nsq(nsqd, topic, destination):
        assert eventually(lambda: passed_on() > count + 1 and is_empty(nsqd, topic), timeout=LIMIT)
    assert sorted(int(body) for body, _ in read(destination, topic, count + 2)) == list(range(count + 2))
    assert destination.topic(topic)["repeat_count"] > 0


def test_kill_9_of_nsq_to_nsq_doubles_nothing_at_several_destinations(topic: str, start_nsqd: StartNsqd) -> None:
    nsqd, destinations, count = start_nsqd("msg-timeout=1s"), [start_nsqd() for _ in range(3)], 60
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    publisher = nsqd.connect()

    def figure(name: str) -> list[int]:
        return [(it.topic(topic) or {name: 0})[name] for it in destinations]

    def all_have_some() -> bool:
        publisher.publish(topic, b"first")
        return min(figure("message_count")) > 0

    with to_nsq(nsqd, topic, *destinations) as tool:
        assert eventually(all_have_some, timeout=LIMIT)
        assert eventually(lambda: is_empty(nsqd, topic), timeout=LIMIT)
        before = sum(figure("message_count"))
        # This kill comes after the publishes, and before their answers.
        for destination in destinations:
            destination.send_signal(signal.SIGSTOP)
        try:
            publisher.publish(topic, *(b"%d" % number for number in range(count)))
            assert eventually(lambda: nsqd.channel(topic)["in_flight_count"] == count, timeout=LIMIT)
            assert eventually(lambda: all(it.unread_bytes for it in destinations), timeout=LIMIT)
            tool.signal(signal.SIGKILL)
            tool.process.wait(LIMIT)
        finally:
            for destination in destinations:
                destination.send_signal(signal.SIGCONT)
    with to_nsq(nsqd, topic, *reversed(destinations)):  # their order does not matter
        assert eventually(lambda: is_empty(nsqd, topic), timeout=LIMIT)
    assert sum(figure("message_count")) == before + count
    assert min(figure("repeat_count")) > 0
