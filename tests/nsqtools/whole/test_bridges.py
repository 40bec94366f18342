"""nsq_to_http and nsq_to_nsq with real servers."""

from __future__ import annotations

import re
import signal
import threading
import time

import pytest

from tests.support.brokers import StartNsqd
from tests.support.http_server import Request
from tests.support.http_sink import HttpSink
from tests.support.process import Nsqd, SteadyNsqd, eventually
from tests.support.tools import LIMIT, Tool, address, last_line, run_tool

# After a failure the consumer and the requeued message wait; here only briefly.
QUICK = (
    "--consumer-opt=default_requeue_delay,100ms",
    "--consumer-opt=backoff_multiplier,10ms",
    "--consumer-opt=max_backoff_duration,50ms",
)


def prepare(nsqd: Nsqd, topic: str, *bodies: bytes, channel: str = "c") -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    publisher = nsqd.connect()
    for body in bodies:
        publisher.publish(topic, body)


def to_http(nsqd: Nsqd, topic: str, *arguments: str) -> Tool:
    place = f"--nsqd-tcp-address={address(nsqd.tcp)}"
    return Tool("nsq_to_http", f"--topic={topic}", "--channel=c", place, *QUICK, *arguments)


def is_done(nsqd: Nsqd, topic: str) -> bool:
    found = nsqd.channel(topic)
    return bool(found["depth"] == found["in_flight_count"] == found["deferred_count"] == 0)


def all_done(nsqd: Nsqd, topic: str) -> None:
    eventually(lambda: is_done(nsqd, topic), timeout=LIMIT)


# nsq_to_http


def test_a_post_for_each_message(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"\0\xff", b"two")
    with (
        HttpSink(lambda request: 204) as sink,
        to_http(nsqd, topic, f"--post={sink.url}/x?y=z", "--header=X-A: b") as tool,
    ):
        all_done(nsqd, topic)
        assert sorted(sink.bodies) == [b"\0\xff", b"two"]
        request = sink.requests[0]
        assert (request.method, request.target) == ("POST", "/x?y=z")
        assert request.headers["content-type"] == "application/octet-stream"
        assert request.headers["user-agent"] == "nsq_to_http v1.3.0"
        assert request.headers["x-a"] == "b"
        assert tool.stop(signal.SIGTERM) == 0
    assert nsqd.channel(topic)["requeue_count"] == 0


def test_a_get_has_the_message_in_its_url_and_succeeds_with_200_only(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"a b&c")
    statuses = iter((204, 500, 200))
    with (
        HttpSink(lambda request: next(statuses)) as sink,
        to_http(nsqd, topic, f"--get={sink.url}/?m=%s&p=1%%25%20") as tool,
    ):
        eventually(lambda: len(sink.requests) == 3, timeout=LIMIT)
        all_done(nsqd, topic)
        assert {request.target for request in sink.requests} == {"/?m=a+b%26c&p=1%25%20"}
        assert nsqd.channel(topic)["requeue_count"] == 2
        tool.wait_for_log("got status code 204")
        assert "Traceback" not in tool.log


def test_headers_that_are_given_win(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"x")
    given = ("--header=user-agent: me", "--header=content-type: text/x")
    with HttpSink() as sink, to_http(nsqd, topic, f"--post={sink.url}", *given):
        all_done(nsqd, topic)
        # The port may have been that of a daemon which has ended, and which somebody still asks.
        (request,) = (it for it in sink.requests if it.body == b"x")
        assert request.headers["user-agent"] == "me"
        assert request.headers["content-type"] == "text/x"


def test_connections_are_kept(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, *(b"%d" % number for number in range(30)))
    with HttpSink() as sink, to_http(nsqd, topic, f"--post={sink.url}", "-n=3"):
        all_done(nsqd, topic)
        assert len(sink.requests) == 30
        assert sink.connections <= 3


def test_redirects_are_followed(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"x")

    def answer(request: Request) -> int:
        return 307 if request.target == "/" else 200

    with HttpSink(answer) as sink, to_http(nsqd, topic, f"--post={sink.url}"):
        all_done(nsqd, topic)
        assert [(it.method, it.target, it.body) for it in sink.requests] == [
            ("POST", "/", b"x"), ("POST", "/elsewhere", b"x"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "first", "second"), [("round-robin", 6, 6), ("hostpool", 1, 11), ("epsilon-greedy", 1, 11)]
)
def test_which_target_gets_a_message_when_the_first_fails(
    nsqd: Nsqd, topic: str, mode: str, first: int, second: int
) -> None:
    prepare(nsqd, topic, *(b"%d" % number for number in range(12)))
    with HttpSink(lambda request: 500) as bad, HttpSink() as good:
        targets = (f"--post={bad.url}", f"--post={good.url}")
        # Requeued messages come after the end of this test.
        settings = (
            "-n=1",
            f"--mode={mode}",
            "--consumer-opt=default_requeue_delay,1h",
            "--consumer-opt=max_requeue_delay,1h",
        )
        with to_http(nsqd, topic, *targets, *settings):
            eventually(lambda: len(bad.requests) + len(good.requests) == 12, timeout=LIMIT)
    assert (len(bad.requests), len(good.requests)) == (first, second)


def test_all_targets_get_each_message_and_again_when_one_fails(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"x")
    statuses = iter((500, 200))
    with (
        HttpSink() as one,
        HttpSink(lambda request: next(statuses)) as two,
        to_http(nsqd, topic, f"--post={one.url}", f"--post={two.url}", "--mode=all"),
    ):
        eventually(lambda: len(two.requests) == 2, timeout=LIMIT)
        all_done(nsqd, topic)
    assert (one.bodies, two.bodies) == ([b"x"] * 2, [b"x"] * 2)


def test_nothing_is_sent_of_an_empty_sample(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, *(b"%d" % number for number in range(10)))
    with HttpSink() as sink, to_http(nsqd, topic, f"--post={sink.url}", "--sample=0"):
        all_done(nsqd, topic)
        assert sink.requests == []


def test_status_lines(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, *(b"%d" % number for number in range(11)))
    with HttpSink() as sink, to_http(nsqd, topic, f"--post={sink.url}", "--status-every=5") as tool:
        all_done(nsqd, topic)
        form = r"\[aggregate\]: finished 5 - 99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms"
        eventually(lambda: len(re.findall(form, tool.log)) == 2)
        assert tool.log.count("Warning: use more than 100 status values") == 1


def test_a_slow_one_is_given_up_and_the_others_go_on(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"slow", b"quick")
    release = threading.Event()

    def answer(request: Request) -> int:
        if request.body == b"slow" and not release.is_set():
            release.wait(LIMIT)
        return 200

    with (
        HttpSink(answer) as sink,
        to_http(nsqd, topic, f"--post={sink.url}", "--http-client-request-timeout=2s") as tool,
    ):
        tool.wait_for_log("timeout")
        eventually(lambda: b"quick" in sink.bodies)
        release.set()
        all_done(nsqd, topic)
        assert sink.bodies.count(b"slow") >= 2


HTTP = "--topic=t", "--nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--header=x"], "--header value format should be 'Name: value'"),
        (["--header=:x"], "--header value format should be 'Name: value'"),
        ([], "--topic and --channel are required"),
        (["--topic=t", "--content-type=x", "--get=x"], "--content-type only used with --post"),
        (["--topic=t", "--content-type=", "--post=x"], "--content-type requires a value when used"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ["--topic=t", "--nsqd-tcp-address=a:1", "--lookupd-http-address=a:1"],
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        ([*HTTP], "--get or --post required"),
        ([*HTTP, "--get=http://a/%s", "--post=http://a/"], "use --get or --post not both"),
        ([*HTTP, "--get=http://a/"], "invalid GET address - must be a printf string"),
        ([*HTTP, "--get=http://a/%s%s"], "invalid GET address - must be a printf string"),
        ([*HTTP, "--post=http://a/", "--sample=1.5"], "ERROR: --sample must be between 0.0 and 1.0"),
        ([*HTTP, "--post=http://a/", "-n=0"], "no handlers"),
        ([*HTTP, "--post=nowhere"], "invalid address 'nowhere' - must be a URL with http or https"),
        ([*HTTP, "--post=http://a/", "--topic=a b"], "invalid topic name 'a b'"),
        ([*HTTP, "--post=http://127.0.0.1/"], "dial 127.0.0.1:1: connection refused"),
    ],
)
def test_what_nsq_to_http_refuses(arguments: list[str], line: str) -> None:
    result = run_tool("nsq_to_http", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (1, b"", 1)
    assert last_line(result.stderr) == line


def test_a_mode_that_there_is_not() -> None:
    result = run_tool("nsq_to_http", "--mode=roundrobin")
    assert result.returncode == 2
    assert result.stderr.startswith(
        b'nsq_to_http: invalid value "roundrobin" for flag -mode: must be one of round-robin, '
    )


# nsq_to_nsq


def to_nsq(nsqd: Nsqd, topic: str, destination: str, *arguments: str) -> Tool:
    return Tool(
        "nsq_to_nsq", f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address(nsqd.tcp)}",
        f"--destination-nsqd-tcp-address={destination}", *QUICK, *arguments,
    )  # fmt: skip


def bodies_in(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    client = nsqd.connect()
    client.subscribe(topic, "check", ready=100)
    return client.bodies(count, LIMIT)


def test_messages_are_forwarded_as_they_are(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"\0\xff", b"not JSON")
    with to_nsq(nsqd, topic, address(nsqd.tcp), f"--destination-topic={topic}-2") as tool:
        all_done(nsqd, topic)
        assert sorted(bodies_in(nsqd, f"{topic}-2", 2)) == [b"\0\xff", b"not JSON"]
        assert tool.stop(signal.SIGTERM) == 0


def test_to_the_same_topic_elsewhere_and_several_topics(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    elsewhere = start_nsqd()
    topics = [f"{topic}-1", f"{topic}-2"]
    for it in topics:
        prepare(nsqd, it, it.encode())
    with to_nsq(nsqd, topics[0], address(elsewhere.tcp), f"--topic={topics[1]}"):
        for it in topics:
            assert bodies_in(elsewhere, it, 1) == [it.encode()]


def test_only_what_the_filter_lets_through(nsqd: Nsqd, topic: str) -> None:
    prepare(
        nsqd, topic, b'{"kind":"a","id":9007199254740993,"x":1}', b'{"kind":"b"}', b"{}", b"[1]", b'{"kind":"a"}'
    )  # fmt: skip
    wanted = ("--require-json-field=kind", "--require-json-value=a", "--whitelist-json-field=id")
    with to_nsq(nsqd, topic, address(nsqd.tcp), f"--destination-topic={topic}-2", *wanted) as tool:
        all_done(nsqd, topic)
        assert sorted(bodies_in(nsqd, f"{topic}-2", 2)) == [b'{"id":9007199254740993}', b"{}"]
        tool.wait_for_log("ERROR: Unable to decode json: [1]")
        tool.wait_for_log("ERROR: missing field to check required value: message ")
        assert tool.stop(signal.SIGTERM) == 0
        assert "3 messages were dropped by the filter" in tool.log
    assert nsqd.channel(topic)["requeue_count"] == 0


def test_while_the_destination_is_down_nothing_is_finished(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    elsewhere = start_nsqd(kind=SteadyNsqd)
    prepare(nsqd, topic, *(b"%d" % number for number in range(20)))
    elsewhere.stop()
    never = ("--consumer-opt=max_attempts,0",)
    destination = elsewhere.tcp
    with to_nsq(nsqd, topic, address(destination), *never) as tool:
        eventually(lambda: nsqd.channel(topic)["requeue_count"] > 5, timeout=LIMIT)
        found = nsqd.channel(topic)
        assert found["depth"] + found["in_flight_count"] + found["deferred_count"] == 20
        assert "Traceback" not in tool.log
        with Nsqd(elsewhere.data_path.parent / "again") as again:
            assert tool.stop(signal.SIGTERM) == 0
            with to_nsq(nsqd, topic, address(again.tcp), *never):
                assert sorted(bodies_in(again, topic, 20), key=int) == [b"%d" % number for number in range(20)]


def test_a_destination_that_drops_loses_nothing(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    elsewhere = start_nsqd(kind=SteadyNsqd)
    prepare(nsqd, topic)
    with to_nsq(nsqd, topic, address(elsewhere.tcp), "--consumer-opt=max_attempts,0"):
        wanted = {b"%d" % number for number in range(500)}
        publisher = threading.Thread(target=prepare, args=(nsqd, topic, *sorted(wanted)))
        publisher.start()
        eventually(lambda: elsewhere.topic(topic) and elsewhere.topic(topic)["depth"] > 20, timeout=LIMIT)
        elsewhere.kill()
        time.sleep(0.2)
        elsewhere.start()
        publisher.join(LIMIT)
        all_done(nsqd, topic)
    client = elsewhere.connect()
    client.subscribe(topic, "check", ready=1000)
    found: set[bytes] = set()
    while found != wanted:
        found.add(client.message(LIMIT).body)


NSQ = "--topic=t", "--nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--topic and --channel are required"),
        (["--topic=a b"], "--topic is invalid"),
        (["--topic=t", "--destination-topic=a b"], "--destination-topic is invalid"),
        (["--topic=t", "--channel=a b"], "--channel is invalid"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ["--topic=t", "--nsqd-tcp-address=a:1", "--lookupd-http-address=a:1"],
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        ([*NSQ], "--destination-nsqd-tcp-address or --destination-lookupd-http-address required"),
        ([*NSQ, "--destination-nsqd-tcp-address=127.0.0.1:1"], "dial 127.0.0.1:1: connection refused"),
    ],
)
def test_nsq_to_nsq_refuses_bad_arguments(arguments: list[str], line: str) -> None:
    result = run_tool("nsq_to_nsq", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (1, b"", 1)
    assert last_line(result.stderr) == line
