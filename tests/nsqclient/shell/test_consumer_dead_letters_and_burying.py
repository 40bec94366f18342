"""The last attempt of a message, dead letters, and messages that a consumer buries."""

from __future__ import annotations

import pytest
import trio

from nsqclient import Config, GiveUp, Message, Requeue, Unsupported, events, open_consumer
from nsqclient.testing import MemoryNSQD
from nsqcommon.wire.faults import Fault, ProtocolError
from tests.nsqclient.consuming import failing, first, never, rdys, until_said
from tests.support.jumping import jumping

# Attempts and dead letters


@jumping
async def test_a_message_that_was_tried_too_often_is_buried_without_its_handler() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"bad", attempts=6)
        async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, never)
            await server.wait_until(lambda: bool(server.buried("t", "c")))
            stats = consumer.stats()
            assert (stats.given_up, stats.buried, stats.finished, stats.backoff_level) == (1, 1, 0, 0)
            consumer.stop()
        assert server.buried("t", "c") == [(b"bad", "attempted 6 times")]


@pytest.mark.parametrize(("topic", "channel"), [("t", "c#ephemeral"), ("t#ephemeral", "c")])
@jumping
async def test_what_is_not_on_disk_is_finished_when_it_was_tried_too_often(topic: str, channel: str) -> None:
    async with MemoryNSQD() as server:
        server.put(topic, b"bad", attempts=6)
        async with open_consumer(topic, channel, nsqd=server) as consumer:
            await server.wait_until(lambda: bool(server.finished(topic, channel)))
            assert (consumer.stats().given_up, consumer.stats().buried) == (1, 0)
        assert server.said(None, "BURY") == []


@jumping
async def test_an_nsqd_that_buries_nothing_has_given_up_messages_finished() -> None:
    async with MemoryNSQD(extensions=()) as server:
        server.put("t", b"bad", attempts=6)
        async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, never)
            await server.wait_empty("t", "c")
            stats = consumer.stats()
            assert (stats.given_up, stats.finished, stats.backoff_level) == (1, 1, 0)
            consumer.stop()
        assert len(rdys(server)) == 1


@jumping
async def test_dead_letters_go_to_a_topic_and_are_finished_then() -> None:
    async with MemoryNSQD() as server:
        server.put("orders", b"boom", attempts=6)
        async with open_consumer("orders", "billing", nsqd=[server], dead_letter="orders.dead") as consumer:
            await server.wait_empty("orders", "billing")
            consumer.stop()
        assert server.bodies("orders.dead") == [b"boom"]


@jumping
async def test_a_dead_letter_that_cannot_be_sent_leaves_the_message_where_it_is() -> None:
    async def undertaker(message: Message) -> None:
        raise OSError("no room")

    async with MemoryNSQD() as server:
        id = server.put("t", b"boom", attempts=6)
        async with open_consumer("t", "c", nsqd=[server], dead_letter=undertaker):
            await until_said(server, f"REQ {id} 540000")
        assert server.finished("t", "c") == []


@jumping
async def test_a_handler_gives_up() -> None:
    buried: list[bytes] = []

    async def undertaker(message: Message) -> None:
        buried.append(message.body)

    async def handle(message: Message) -> None:
        raise GiveUp("never")

    async with MemoryNSQD() as server:
        server.put("t", b"bad")
        async with open_consumer("t", "c", nsqd=server, dead_letter=undertaker) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                await server.wait_empty("t", "c")
                consumer.stop()
        assert buried == [b"bad"]
        assert server.finished("t", "c") == [b"bad"]


@jumping
async def test_a_handler_that_gives_up_says_why_the_message_is_buried() -> None:
    async def handle(message: Message) -> None:
        raise GiveUp("no such\norder")

    async with MemoryNSQD() as server:
        server.put("t", b"bad")
        async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:
            happened = consumer.events()
            nursery.start_soon(consumer.run, handle)
            await server.wait_until(lambda: bool(server.buried("t", "c")))
            gave_up = await first(happened, events.GaveUp)
            assert (gave_up.buried, gave_up.message.answered) == (True, "buried")
            consumer.stop()
        assert server.buried("t", "c") == [(b"bad", "no such order")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("boom"), "RuntimeError: boom"),
        (Requeue(5), "2 attempts, the last one requeued"),
        (Requeue(5, count=False), None),
    ],
)
@jumping
async def test_the_last_attempt_that_fails_buries_with_its_error(error: Exception, reason: str | None) -> None:
    async def handle(message: Message) -> None:
        raise error

    async with MemoryNSQD() as server:
        id = server.put("t", b"x", attempts=2)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_attempts=2)) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                await server.wait_until(lambda: bool(server.said(None, "BURY", "REQ")))
                consumer.stop()
            assert consumer.stats().backoff_level == 1
        answer = f"BURY {id} {reason}" if reason is not None else f"REQ {id} 5000 free"
        assert server.said(None, "BURY", "REQ", "FIN") == [answer]


@pytest.mark.parametrize("extensions", [("bury",), ()])
@jumping
async def test_before_the_last_attempt_or_where_nobody_buries_it_is_requeued(extensions: tuple[str, ...]) -> None:
    async with MemoryNSQD(extensions=extensions) as server:
        id = server.put("t", b"x", attempts=1 if extensions else 2)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_attempts=2)) as consumer:
            with pytest.raises(RuntimeError):
                async with await anext(consumer):
                    raise RuntimeError
        assert server.said(None, "BURY", "REQ", "FIN") == [f"REQ {id} {90 if extensions else 180}000"]


@jumping
async def test_with_dead_letters_the_last_attempt_is_requeued_and_the_letter_sent_with_the_next() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"x", attempts=2)
        config = Config(max_attempts=2, backoff="none")
        async with open_consumer("t", "c", nsqd=server, config=config, dead_letter="dead") as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, failing)
                await server.wait_empty("t", "c")
                consumer.stop()
        assert (server.bodies("dead"), server.buried("t", "c")) == ([b"x"], [])


# Burying, and attempts that do not count


@jumping
async def test_a_message_is_buried_once() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"bad")
        async with open_consumer("t", "c", nsqd=server) as consumer:
            message = await anext(consumer)
            assert message.can_bury
            assert message.bury("why")
            assert not message.bury("again")
            assert not message.finish()
            await server.wait_empty("t", "c")
        assert server.buried("t", "c") == [(b"bad", "why")]
        assert server.said(None, "BURY", "FIN", "REQ") == [f"BURY {message.id} why"]


@jumping
async def test_of_two_nsqds_only_the_one_that_can_buries() -> None:
    async with MemoryNSQD() as ours, MemoryNSQD(extensions=()) as other:
        for server in (ours, other):
            server.put("t", b"bad", attempts=6)
        async with open_consumer("t", "c", nsqd=[ours, other]) as consumer:
            await ours.wait_until(lambda: bool(ours.buried("t", "c")))
            await other.wait_empty("t", "c")
            assert (consumer.stats().given_up, consumer.stats().buried, consumer.stats().finished) == (2, 1, 1)
        assert other.finished("t", "c") == [b"bad"]


@jumping
async def test_a_batch_is_buried() -> None:
    async with MemoryNSQD() as server:
        for number in range(3):
            server.put("t", b"%d" % number)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=3)) as consumer:
            async for batch in consumer.batches(3, 1.0):
                batch.bury("all of them")
                break
        assert server.buried("t", "c") == [(b"%d" % number, "all of them") for number in range(3)]


@jumping
async def test_who_buries_at_an_nsqd_that_cannot_hears_it_and_still_has_the_message() -> None:
    async with MemoryNSQD(extensions=()) as server:
        server.put("t", b"bad")
        async with open_consumer("t", "c", nsqd=server) as consumer:
            message = await anext(consumer)
            assert not message.can_bury
            with pytest.raises(Unsupported, match="can't bury messages: it does not grant the extension `bury`"):
                message.bury("why")
            with pytest.raises(Unsupported, match="counts every attempt"):
                message.requeue(1, count=False)
            assert message.answered == "no"
            assert message.finish()


@jumping
async def test_who_buries_what_is_not_on_disk_hears_it() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"bad")
        async with open_consumer("t", "c#ephemeral", nsqd=server) as consumer:
            message = await anext(consumer)
            with pytest.raises(Unsupported, match="t/c#ephemeral, which is ephemeral"):
                message.bury("why")
            assert message.requeue(0, count=False)
            assert (await anext(consumer)).attempts == 1


@jumping
async def test_a_bury_that_comes_too_late_is_reported_as_every_late_answer() -> None:
    def late(connection: int, command: str) -> None:
        if command.startswith("BURY"):
            raise ProtocolError(Fault.BURY_FAILED, f"{command} failed ID not in flight", fatal=False)

    async with MemoryNSQD(on_command=late) as server:
        id = server.put("t", b"slow")
        async with open_consumer("t", "c", nsqd=server) as consumer:
            happened = consumer.events()
            (await anext(consumer)).bury()
            late_response = await first(happened, events.LateResponse)
            assert (late_response.id, consumer.stats().late_responses) == (id, 1)
            assert consumer.stats().connections


@pytest.mark.parametrize(("extensions", "attempts"), [(("bury",), 1), ((), 2)])
@jumping
async def test_a_handler_asks_for_an_attempt_that_does_not_count(extensions: tuple[str, ...], attempts: int) -> None:
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.attempts)
        if len(seen) == 1:
            raise Requeue(1, backoff=False, count=False)

    async with MemoryNSQD(extensions=extensions) as server:
        server.put("t", b"x")
        async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await server.wait_empty("t", "c")
            consumer.stop()
    assert seen == [1, attempts]


@pytest.mark.parametrize(("extensions", "attempts"), [(("bury",), 1), ((), 2)])
@jumping
async def test_what_no_handler_has_seen_goes_back_without_counting(extensions: tuple[str, ...], attempts: int) -> None:
    async with MemoryNSQD(extensions=extensions) as server:
        for number in range(3):
            server.put("t", b"%d" % number)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=3)) as consumer:
            (await anext(consumer)).finish()
            await server.wait_until(lambda: server.depth("t", "c") == 0)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=3)) as consumer:
            others = [await anext(consumer), await anext(consumer)]
            assert [message.attempts for message in others] == [attempts, attempts]
            for message in others:
                message.finish()
