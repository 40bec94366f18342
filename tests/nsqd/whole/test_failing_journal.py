"""The journal alone cannot be written: old promises are kept, no new ones are given, and nsqd recovers by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqcommon.wire.commands import dpub, pub, rdy, req, sub
from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, eventually

LIMIT = 4096  # bytes of any file


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    """Run an nsqd whose journal is so long that it cannot grow once `full` limits files; its logs are shorter."""
    broker = start_nsqd()
    broker.connect().publish("t", b"before")
    broker.post("/channel/create?topic=t&channel=c")
    while journal_of(broker).stat().st_size < LIMIT:
        broker.post("/channel/create?topic=t&channel=" + "x" * 60)
        broker.post("/channel/delete?topic=t&channel=" + "x" * 60)
    return broker


def journal_of(broker: Nsqd) -> Path:
    return broker.data_path / "journal.000001"


@contextmanager
def full(broker: Nsqd) -> Iterator[None]:
    broker.limit_file_size(LIMIT)
    yield
    broker.limit_file_size(None)
    eventually(lambda: broker.http("GET", "/ping").status == 200)


def test_what_was_not_promised_may_be_gone_and_the_rest_is_there(nsqd: Nsqd) -> None:
    nsqd.limit_file_size(LIMIT)
    assert nsqd.http("POST", "/channel/create?topic=t&channel=new").status == 500
    assert nsqd.http("POST", "/channel/pause?topic=t&channel=c").status == 500
    assert nsqd.http("POST", "/topic/create?topic=new").status == 500
    ping = nsqd.http("GET", "/ping")
    assert ping.status == 500
    assert b"journal.000001: file too large" in ping.body
    nsqd.kill()
    nsqd.start()
    assert nsqd.channel("t", "new") is None
    assert nsqd.channel("t", "c")["depth"] == 1
    assert not nsqd.channel("t", "c")["paused"]


def test_first_dpub_that_is_not_in_the_journal_is_refused(nsqd: Nsqd) -> None:
    nsqd.limit_file_size(LIMIT)
    client = nsqd.connect()
    client.send(dpub("t", 60_000, b"late"))
    frame = client.frame()
    assert frame.data.startswith(b"E_DPUB_FAILED DPUB failed write ")
    assert b"file too large" in frame.data
    assert nsqd.http("POST", "/pub?topic=t", b"x").status == 503
    nsqd.kill()
    nsqd.start()
    assert nsqd.channel("t", "c")["depth"] == 1


def test_sub_that_makes_a_channel_fails_and_others_go_on(nsqd: Nsqd) -> None:
    with full(nsqd):
        client = nsqd.connect()
        client.send(sub("t", "new"))
        assert client.frame().data.startswith(b"E_SUB_FAILED SUB failed write ")
        client = nsqd.connect()
        client.send(sub("t", "c") + rdy(1))
        assert client.frame().data == b"OK"
        assert client.frame().data.endswith(b"before")
    client = nsqd.connect()
    client.send(pub("t", b"after") + dpub("t", 60_000, b"late"))
    assert [client.frame().data for _ in range(2)] == [b"OK"] * 2
    nsqd.kill()
    nsqd.start()
    assert nsqd.channel("t", "c")["deferred_count"] == 1
    assert nsqd.channel("t", "new") is not None  # it existed all the time; now the journal has it


def test_attempts_after_a_crash_are_those_that_the_journal_knew(nsqd: Nsqd) -> None:
    """They can be fewer than consumers have seen, as delivery goes on, but not fewer than before the failure."""

    def deliver_and_requeue(times: int) -> int:
        client = nsqd.connect()
        assert client.ask(sub("t", "c")) == b"OK"
        attempts = 0
        for _ in range(times):
            client.send(rdy(1))
            message = client.message()
            attempts = message.attempts
            client.send(rdy(0) + req(message.id, 0))
        eventually(lambda: nsqd.channel("t", "c")["requeue_count"] >= attempts)
        client.close()
        return attempts

    assert deliver_and_requeue(3) == 3
    nsqd.limit_file_size(LIMIT)
    assert deliver_and_requeue(3) == 6
    nsqd.kill()
    nsqd.start()
    client = nsqd.connect()
    client.send(sub("t", "c") + rdy(1))
    assert client.response() == b"OK"
    assert client.message().attempts == 4
