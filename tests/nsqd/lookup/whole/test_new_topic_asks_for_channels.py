"""Which channels a new topic has elsewhere: real requests over HTTP to an nsqlookupd that answers as a test wants."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps

import pytest
import trio
import trio.testing

from nsqcommon.wire.commands import pub
from nsqcommon.wire.lookup import PeerAddress, identify_reply
from nsqd.broker.topic import Topic
from nsqd.lookup.lookup import Lookup
from nsqd.lookup.settings import LookupSettings
from tests.support.fake_lookupd import FakeLookupd, json_answer
from tests.support.node import Node, NodeTurn

LIMIT = 100.0
WAIT = 20.0  # for an answer; on a busy machine one that comes is not too late


def on_trio(test: Callable[[], Awaitable[None]], clock: trio.abc.Clock | None = None) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def limited() -> None:
            with trio.fail_after(LIMIT):
                await test()

        trio.run(limited, clock=clock)

    del run.__wrapped__  # otherwise pytest would look for the test's own arguments
    return run


class Cluster:
    def __init__(self, wait: float) -> None:
        self.node = Node()
        self.lookupds = [FakeLookupd(), FakeLookupd()]
        settings = LookupSettings(me=b"{}", most=1000, connect_timeout=wait, request_timeout=wait, tls=None)
        self.lookup = Lookup(self.node.broker, settings)
        self.node.announce = self.lookup.announce

    def new_topic(self, name: str = "t") -> Topic:
        topic = self.node.broker.topic(name)
        self.node.turn()
        return topic

    def channels(self) -> list[str]:
        return [channel.channel_name for channel in self.node.topic().channels]


@asynccontextmanager
async def cluster(wait: float = WAIT) -> AsyncIterator[Cluster]:
    """Run two nsqlookupd on real ports."""
    made = Cluster(wait)
    async with trio.open_nursery() as nursery:
        made.lookup.configure([await nursery.start(fake.listen) for fake in made.lookupds])
        nursery.start_soon(made.lookup.run, NodeTurn(made.node))
        yield made
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # the broker has no event for these
        await trio.sleep(0.005)


async def until_learned(topic: Topic) -> None:
    await until(lambda: not topic.learning)


def answers(*names: str) -> bytes:
    return json_answer(b'{"channels":[%b]}' % ",".join(f'"{name}"' for name in names).encode())


@on_trio
async def test_the_union_of_all_answers_is_created() -> None:
    async with cluster() as it:
        it.lookupds[0].http_answer = answers("b", "tail#ephemeral", "not a name")
        it.lookupds[1].http_answer = answers("a", "b")
        await until_learned(it.new_topic())
        assert it.channels() == ["a", "b"]
        assert it.lookupds[0].asked == ["GET /channels?topic=t HTTP/1.1 Accept: application/vnd.nsq; version=1.0"]


@on_trio
async def test_a_topic_made_right_after_the_start_waits_for_the_first_connections() -> None:
    async with cluster() as it:
        it.lookupds[1].http_answer = answers("c")
        topic = it.new_topic()
        assert not it.lookupds[1].visits
        await until_learned(topic)
        assert it.channels() == ["c"]


@on_trio
async def test_names_are_quoted_in_the_question() -> None:
    async with cluster() as it:
        topic = it.new_topic("t#ephemeral")
        await until_learned(topic)
        assert it.lookupds[0].asked[0].startswith("GET /channels?topic=t%23ephemeral HTTP/1.1")


@on_trio
async def test_while_the_answer_is_slow_publishing_goes_on_and_no_channel_misses_anything() -> None:
    async with cluster() as it:
        answered = trio.Event()
        it.lookupds[0].before_http_answer = answered.wait
        it.lookupds[0].http_answer = answers("there")
        assert it.node.client().answers(pub("t", b"first")) == [b"OK"]
        client = it.node.consumer(channel="here", ready=5)
        await until(lambda: bool(it.lookupds[0].asked))
        assert client.messages() == []
        answered.set()
        await until_learned(it.new_topic("t"))
        assert [message.body for message in client.messages()] == [b"first"]
        assert {channel.channel_name: channel.depth for channel in it.node.topic().channels} == {"here": 0, "there": 1}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (json_answer(b'{"message":"NO"}', b"500 Internal Server Error"), "answered with status 500"),
        (json_answer(b'{"message":"FORBIDDEN"}', b"403 Forbidden"), "answered with status 403"),
        (json_answer(b"not json"), "answered with b'not json'"),
        (json_answer(b'{"channels":"x"}'), "answered with"),
        (b"garbage\r\n\r\n", "malformed HTTP response"),
        (b"HTTP/1.1 101 Over\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "an upgrade to another protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "connection closed within the response"),
        (b"", "connection closed within the response"),
        (None, "timeout"),
    ],
)
def test_when_one_cannot_say_the_others_count(bad: bytes | None, why: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = trio.testing.MockClock(rate=1.0)

    async def test() -> None:
        async with cluster() as it:
            it.lookupds[0].http_answer = bad or b""
            if bad is None:
                it.lookupds[0].before_http_answer = trio.sleep_forever
            it.lookupds[1].http_answer = answers("c")
            topic = it.new_topic()
            if bad is None:
                await until(lambda: all(fake.asked for fake in it.lookupds))
                await trio.testing.wait_all_tasks_blocked()
                assert topic.learning
                clock.jump(WAIT)
            await until_learned(topic)
            assert it.channels() == ["c"]

    on_trio(test, clock)()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("failed to query nsqlookupd for channels to pre-create for topic t - 127.0.0.1:")
    assert why in warning


@on_trio
async def test_when_nobody_can_say_the_topic_flows_all_the_same() -> None:
    async with cluster() as it:
        for fake in it.lookupds:
            fake.http_answer = b""
        client = it.node.consumer()
        it.node.client().say(pub("t", b"x"))
        await until_learned(it.new_topic("t"))
        assert len(client.messages()) == 1


def test_who_did_not_answer_in_time_is_not_asked_for_the_next_topics() -> None:
    """Otherwise thousands of topics that wait after a start would wait one after the other."""
    clock = trio.testing.MockClock(rate=1.0)

    async def test() -> None:
        async with cluster(wait=3.0) as it:
            silent, other = it.lookupds
            silent.before_http_answer = trio.sleep_forever
            await until_learned(it.new_topic())
            clock.rate = 0.0  # from now on the other one is never too late, however busy the machine is
            silent.before_http_answer = not_again
            for number in range(200):
                topic = it.new_topic(f"t{number}")
                while topic.learning:
                    await trio.testing.wait_all_tasks_blocked()
            assert (len(silent.asked), len(other.asked)) == (1, 201)

    trio.run(test, clock=clock)


async def not_again() -> None:
    raise AssertionError("it is asked again")


@on_trio
async def test_the_address_of_a_peer_that_is_away_is_remembered() -> None:
    async with cluster() as it:
        await until_learned(it.new_topic())
        for fake in it.lookupds:
            fake.identify_answer = b"E_INVALID"
            await fake.last.stream.aclose()
        it.lookupds[0].http_answer = answers("c")
        topic = it.new_topic("u")
        await until_learned(topic)
        assert list(topic.channels) == ["c"]


def test_a_peer_that_does_not_say_where_it_is_cannot_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    @on_trio
    async def test() -> None:
        async with cluster() as it:
            for fake in it.lookupds:
                fake.identify_answer = identify_reply(PeerAddress("", "", 4161, 4160, "1.3.0"))
            await until_learned(it.new_topic())
            assert it.channels() == []
            assert it.lookupds[0].visits[0].told == ["REGISTER t"]

    test()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors.count("no available nsqlookupd to query for channels to pre-create for topic t") == 1


@on_trio
async def test_deleting_the_topic_meanwhile() -> None:
    async with cluster() as it:
        answered = trio.Event()
        it.lookupds[0].before_http_answer = answered.wait
        it.lookupds[0].http_answer = answers("c")
        it.new_topic()
        await until(lambda: bool(it.lookupds[0].asked))
        it.node.broker.delete_topic("t")
        again = it.new_topic()
        answered.set()
        await until_learned(again)
        assert len(it.lookupds[0].asked) == 2
        assert it.channels() == ["c"]
