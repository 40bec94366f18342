"""`cancel` and `reschedule` with nsqds in memory."""

from __future__ import annotations

import pytest
import trio

from nsqclient import (
    CancelResult,
    Incomplete,
    NodeFailure,
    RescheduleResult,
    Stopped,
    Unsupported,
    open_consumer,
    open_producer,
)
from nsqclient.testing import MemoryNSQD
from tests.support.jumping import jumping


@jumping
async def test_what_was_taken_back_never_arrives() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        async with open_consumer("t", "c", nsqd=[server]) as consumer:
            await server.wait_until(lambda: bool(server.said(None, "RDY")))
            for key in ("k-1", "k-2", "k-3"):
                await producer.publish("t", key.encode(), key=key, delay=60)
            assert await producer.cancel("t", "k-1") == CancelResult(cancelled=1)
            assert await producer.reschedule("t", "k-2", delay=3) == RescheduleResult(moved=1)
            began = trio.current_time()
            message = await anext(consumer)
            assert (message.body, trio.current_time() - began) == (b"k-2", 3)
            assert await producer.cancel("t", "k-2") == CancelResult(in_flight=1)
            message.finish()
            message = await anext(consumer)
            assert (message.body, trio.current_time() - began) == (b"k-3", 60)
            message.bury("why")
            await server.wait_empty("t", "c")
        assert await producer.cancel("t", "k-1") == CancelResult(done=1)
        assert await producer.cancel("t", "k-3") == CancelResult(buried=1)
        assert await producer.cancel("t", "k-4") == await producer.cancel("other", "k-1") == CancelResult()
        assert server.said(0)[:2] == [
            "POST /message/cancel?topic=t&key=k-1", "POST /message/due?topic=t&key=k-2&defer=3000",
        ]  # fmt: skip


@jumping
async def test_one_channel_and_a_topic_without_channels() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        await producer.publish("t", b"one", key="k-1", delay=60)
        await producer.publish("t", b"two", key="k-2")
        assert await producer.cancel("t", "k-1") == CancelResult(cancelled=1)
        for channel in ("a", "b"):
            server.depth("t", channel)  # makes the channel
        assert (server.depth("t", "a"), server.depth("t", "b")) == (1, 0)
        await producer.publish("t", b"three", key="k-3")
        assert await producer.cancel("t", "k-3", channel="b") == CancelResult(cancelled=1)
        assert await producer.cancel("t", "k-3", channel="none") == CancelResult()
        assert (server.depth("t", "a"), server.depth("t", "b")) == (2, 0)


@jumping
async def test_a_node_without_an_answer_is_no_node_without_the_message() -> None:
    async with MemoryNSQD() as one, MemoryNSQD() as two, open_producer([one, two]) as producer:
        await producer.publish("t", b"x", key="k", delay=60)
        await producer.publish("t", b"x", key="k", delay=60)
        two.is_up = False
        two.break_connections()
        with pytest.raises(Incomplete) as raised:
            await producer.cancel("t", "k")
        [failure] = raised.value.result.failures
        assert failure.address == str(two)
        assert raised.value.result == CancelResult(cancelled=1, failures=(failure,))
        two.is_up = True
        assert await producer.cancel("t", "k") == CancelResult(cancelled=1, done=1)


@jumping
async def test_a_node_that_hangs_is_waited_for_until_the_timeout() -> None:
    async with (
        MemoryNSQD() as one,
        MemoryNSQD(on_command=lambda number, text: b"" if text == "IDENTIFY" else None) as two,
        open_producer([one, two]) as producer,
    ):
        began = trio.current_time()
        with pytest.raises(Incomplete) as raised:
            await producer.cancel("t", "k", timeout=5)
        assert trio.current_time() - began == 5
        assert raised.value.result.failures == (NodeFailure(str(two), "no answer within 5 seconds"),)
        assert str(raised.value) == f"not known: {two}: no answer within 5 seconds"


@jumping
async def test_an_nsqd_of_nsq_cannot_do_it() -> None:
    async with MemoryNSQD(extensions=()) as old, MemoryNSQD() as new:
        async with open_producer(old) as producer:
            with pytest.raises(Unsupported, match="knows no keys"):
                await producer.cancel("t", "k")
            with pytest.raises(Unsupported, match="knows no keys"):
                await producer.reschedule("t", "k", delay=0)
        async with open_producer([old, new]) as producer:
            with pytest.raises(Incomplete, match="knows no keys"):
                await producer.cancel("t", "k")


@pytest.mark.parametrize(
    ("topic", "key", "channel", "delay"),
    [
        ("x$", "k", None, 0),
        ("t#ephemeral", "k", None, 0),
        ("t", "a b", None, 0),
        ("t", "", None, 0),
        ("t", "k", "c$", 0),
        ("t", "k", None, -1),
        ("t", "k", None, float("nan")),
    ],
)
@jumping
async def test_what_no_nsqd_takes_is_refused_here(topic: str, key: str, channel: str | None, delay: float) -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        with pytest.raises(ValueError):
            await producer.reschedule(topic, key, channel=channel, delay=delay)
        assert server.said() == []


@jumping
async def test_a_producer_that_was_stopped_asks_nobody() -> None:
    async with MemoryNSQD() as server:
        async with open_producer(server) as producer:
            pass
        with pytest.raises(Stopped):
            await producer.cancel("t", "k")


@jumping
async def test_a_key_that_was_cancelled_may_be_used_again() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        for channel in ("a", "b"):
            server.depth("t", channel)
        for number in (b"1", b"2"):
            await producer.publish("t", number, key="k", delay=60)
            await producer.publish("t", b"a repeat", key="k", delay=60)
            assert await producer.cancel("t", "k") == CancelResult(cancelled=2)
            assert await producer.cancel("t", "k") == CancelResult(done=2)
        await producer.publish("t", b"3", key="k", delay=60)
        assert await producer.cancel("t", "k", channel="b") == CancelResult(cancelled=1)
        await producer.publish("t", b"is taken for a repeat", key="k", delay=60)
        assert server.bodies("t") == [b"1", b"2", b"3"]
