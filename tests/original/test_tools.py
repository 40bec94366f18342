"""Our tools with NSQ's daemons, and NSQ's tools with ours."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

import pytest

from tests.original.conftest import Daemons
from tests.original.programs import Whose, other, tool_of
from tests.support.http_sink import HttpSink
from tests.support.process import Nsqd, eventually
from tests.support.tools import Tool, address, run_tool

BODIES = [b"one", b'{"number":2}', b"\xff\x00three"]

tools = pytest.mark.parametrize("whose", ["ours", "nsq"])  # the tool; the daemon is the other's


def at(nsqd: Nsqd) -> str:
    return f"--nsqd-tcp-address={address(nsqd.tcp)}"


def prepare(nsqd: Nsqd) -> None:
    """Make the topic `t` with the channel `c` and three messages."""
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.connect().publish("t", *BODIES)


def is_done(nsqd: Nsqd, count: int) -> bool:
    """Whether the channel has had so many messages, and nothing is left of them."""
    found = nsqd.channel("t")
    return (found["message_count"], found["depth"], found["in_flight_count"]) == (count, 0, 0)


def consumed(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    client = nsqd.connect()
    client.subscribe(topic, "check", ready=count)
    return sorted(client.bodies(count))


@tools
def test_to_nsq(daemons: Daemons, whose: Whose) -> None:
    nsqd = daemons.nsqd(other(whose))
    done = run_tool("to_nsq", "--topic=t", at(nsqd), input=b"one\ntwo\n\nthree\n", program=tool_of(whose, "to_nsq"))
    assert done.returncode == 0, done.stderr
    assert consumed(nsqd, "t", 3) == [b"one", b"three", b"two"]


@tools
def test_nsq_tail(daemons: Daemons, whose: Whose) -> None:
    nsqd = daemons.nsqd(other(whose))
    prepare(nsqd)
    said = run_tool(
        "nsq_tail", "--topic=t", "--channel=c", "-n=3", "--print-topic", at(nsqd), program=tool_of(whose, "nsq_tail")
    )
    assert said.returncode == 0, said.stderr
    assert sorted(said.stdout.splitlines()) == sorted(b"t | " + body for body in BODIES)


@tools
def test_nsq_tail_finds_its_nsqd(daemons: Daemons, whose: Whose) -> None:
    lookupd = daemons.nsqlookupd(other(whose))
    nsqd = daemons.nsqd(other(whose), lookupd=lookupd)
    prepare(nsqd)
    eventually(lambda: lookupd.producers("t"))
    place = f"--lookupd-http-address={address(lookupd.http_address)}"
    said = run_tool("nsq_tail", "--topic=t", "--channel=c", "-n=3", place, program=tool_of(whose, "nsq_tail"))
    assert said.returncode == 0, said.stderr
    assert sorted(said.stdout.splitlines()) == sorted(BODIES)


@tools
@pytest.mark.parametrize("is_compressed", [False, True])
def test_nsq_to_file(daemons: Daemons, tmp_path: Path, whose: Whose, is_compressed: bool) -> None:
    nsqd = daemons.nsqd(other(whose))
    prepare(nsqd)
    out = tmp_path / "out"
    form = "--filename-format=<TOPIC>.<HOST><REV>.log"
    more = ["--gzip"] if is_compressed else []
    with Tool(
        "nsq_to_file", "--topic=t", "--channel=c", f"--output-dir={out}", "--host-identifier=h", form, at(nsqd),
        "--sync-interval=100ms", *more, program=tool_of(whose, "nsq_to_file"),
    ) as tool:  # fmt: skip
        eventually(lambda: is_done(nsqd, 3))
        assert tool.stop(signal.SIGTERM) == 0, tool.log
    (written,) = (it for it in out.rglob("*") if it.is_file())
    assert written.name == ("t.h-000000.log.gz" if is_compressed else "t.h.log")
    data = written.read_bytes()
    assert sorted((gzip.decompress(data) if is_compressed else data).splitlines()) == sorted(BODIES)


@tools
def test_nsq_to_http(daemons: Daemons, whose: Whose) -> None:
    nsqd = daemons.nsqd(other(whose))
    prepare(nsqd)
    with (
        HttpSink() as sink,
        Tool(
            "nsq_to_http", "--topic=t", "--channel=c", f"--post={sink.url}/there", at(nsqd),
            program=tool_of(whose, "nsq_to_http"),
        ) as tool,
    ):  # fmt: skip
        eventually(lambda: is_done(nsqd, 3))
        assert tool.stop(signal.SIGTERM) == 0, tool.log
        assert sorted(request.body for request in sink.requests) == sorted(BODIES)
        assert {(request.method, request.target) for request in sink.requests} == {("POST", "/there")}


@tools
@pytest.mark.parametrize("source", ["ours", "nsq"])
def test_nsq_to_nsq(daemons: Daemons, whose: Whose, source: Whose) -> None:
    nsqd, elsewhere = daemons.nsqd(source), daemons.nsqd(other(source))
    prepare(nsqd)
    to = f"--destination-nsqd-tcp-address={address(elsewhere.tcp)}"
    with Tool(
        "nsq_to_nsq", "--topic=t", "--channel=c", "--destination-topic=u", at(nsqd), to,
        program=tool_of(whose, "nsq_to_nsq"),
    ) as tool:  # fmt: skip
        assert consumed(elsewhere, "u", 3) == sorted(BODIES)
        eventually(lambda: is_done(nsqd, 3))
        assert tool.stop(signal.SIGTERM) == 0, tool.log


@pytest.mark.parametrize("whose_daemon", ["ours", "nsq"])
def test_nsq_stat_prints_the_same(daemons: Daemons, whose_daemon: Whose) -> None:
    nsqd = daemons.nsqd(whose_daemon)
    prepare(nsqd)
    arguments = ("--topic=t", "--channel=c", "--count=1", f"--nsqd-http-address={address(nsqd.http_address)}")
    whose: tuple[Whose, Whose] = ("ours", "nsq")
    ours, theirs = (run_tool("nsq_stat", *arguments, program=tool_of(it, "nsq_stat")) for it in whose)
    assert ours.returncode == theirs.returncode == 0, (ours, theirs)
    assert ours.stdout == theirs.stdout
