"""A consumer and nsqds in memory: which commands it sends, in which order, and what an answer, a loss and nonsense do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from nsqclient import Config, ConfigError, ConnectError, Message, Requeue, events, open_consumer
from nsqclient.shell.targets import Target
from nsqclient.testing import MemoryNSQD
from nsqcommon.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, response_frame
from nsqcommon.wire.lookup import encode_reply
from tests.nsqclient.consuming import until_said
from tests.support.jumping import jumping

# The opening


@jumping
async def test_a_consumer_sends_identify_sub_and_rdy_in_this_order() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=5)):
            await until_said(server, "RDY 5")
        assert server.said()[:3] == ["IDENTIFY", "SUB t c", "RDY 5"]


@jumping
async def test_rdy_does_not_wait_for_the_answer_to_sub() -> None:
    def silent(connection: int, command: str) -> bytes | None:
        return b"" if command.startswith("SUB") else None

    async with MemoryNSQD(on_command=silent) as server, open_consumer("t", "c", nsqd=server):
        await until_said(server, "RDY 1")


@jumping
async def test_a_server_that_does_not_negotiate() -> None:
    async with MemoryNSQD(reply=b"OK") as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=5000)):
            await until_said(server, "RDY 2500")


@jumping
async def test_a_server_with_a_low_limit_is_warned_of() -> None:
    async with MemoryNSQD(reply={"max_rdy_count": 7}) as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=5000)) as consumer:
            happened = consumer.events()
            await until_said(server, "RDY 7")
            texts = [event.text for event in await some(happened, 2) if isinstance(event, events.Limited)]
            assert texts == ["max RDY count 7 < consumer max in flight 5000, truncation possible"]


async def some(happened: AsyncIterator[events.Event], count: int) -> list[events.Event]:
    return [await anext(happened) for _ in range(count)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": "x$"}, "invalid topic name"),
        ({"channel": ""}, "invalid channel name"),
        ({"nsqd": ()}, "neither nsqd nor nsqlookupd is given"),
        ({"nsqd": "localhost"}, "address localhost: missing port in address"),
        ({"lookupd": "localhost"}, "missing port"),
        ({"config": Config(heartbeat_interval=None)}, "a consumer needs heartbeats"),
    ],
)
@jumping
async def test_what_cannot_be_is_refused_before_anything_is_asked(arguments: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"topic": "t", "channel": "c", "nsqd": "127.0.0.1:1", **arguments}
    with pytest.raises(ConfigError) as refusal:
        async with open_consumer(**given):  # type: ignore[arg-type]
            pass
    assert str(refusal.value) == text


# Connections


@jumping
async def test_heartbeats_are_answered_while_all_handlers_are_busy() -> None:
    async with MemoryNSQD(heartbeats=False) as server:
        server.put("t", b"slow")
        async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:

            async def slow(message: Message) -> None:
                await trio.sleep(10)

            nursery.start_soon(consumer.run, slow)
            await until_said(server, "RDY 1")
            await trio.sleep(1)
            asked_at = trio.current_time()
            server.send(HEARTBEAT_FRAME)
            await until_said(server, "NOP")
            assert trio.current_time() - asked_at < 0.05
            await server.wait_empty("t", "c")
            consumer.stop()


@jumping
async def test_silence_ends_a_connection_and_another_one_is_made() -> None:
    async with MemoryNSQD(heartbeats=False) as server:
        config = Config(read_timeout=5, heartbeat_interval=5)
        async with open_consumer("t", "c", nsqd=server, config=config) as consumer:
            happened = consumer.events()
            await server.wait_until(lambda: server.said(2, "RDY") == ["RDY 1"])
            reasons = [event.reason for event in await some(happened, 2) if isinstance(event, events.Disconnected)]
            assert reasons == ["IO error - read: i/o timeout"]
            assert 5 <= server.commands[-1].time - server.commands[0].time < 7


@jumping
async def test_a_lost_connection_takes_its_messages_along() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server) as consumer:
            message = await anext(consumer)
            server.break_connections()
            await server.wait_until(lambda: server.said(2, "RDY") == ["RDY 1"])
            assert not message.finish()
            assert message.answered == "lost"
            again = await anext(consumer)
            assert (again.body, again.attempts, again.finish()) == (b"one", 2, True)


@jumping
async def test_pauses_between_tries_grow() -> None:
    async with MemoryNSQD() as server:
        server.is_up = False
        async with open_consumer("t", "c", nsqd=server) as consumer:
            *_, last = await some(consumer.events(), 12)
            assert last == events.ConnectFailed(str(server), f"dial {server}: connection refused", 12)
            assert 10 < trio.current_time() < 12 * 60


@jumping
async def test_who_requires_a_connection_hears_that_there_is_none() -> None:
    async with MemoryNSQD() as server:
        server.is_up = False
        with pytest.raises(ConnectError, match="connection refused"):
            async with open_consumer("t", "c", nsqd=server, startup="require"):
                pass
        server.is_up = True
        async with open_consumer("t", "c", nsqd=server, startup="require") as consumer:
            assert len(consumer.stats().connections) == 1


# Answers


@pytest.mark.parametrize(("attempts", "delay_ms"), [(1, 90_000), (2, 180_000), (11, 900_000)])
@jumping
async def test_the_delay_grows_with_the_attempts(attempts: int, delay_ms: int) -> None:
    async with MemoryNSQD() as server:
        id = server.put("t", b"one", attempts=attempts)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_attempts=0, backoff="none")) as consumer:
            message = await anext(consumer)
            assert message.requeue()
            assert not message.requeue()
            assert not message.finish()
            assert message.answered == "requeued"
        assert server.said(None, "REQ", "FIN") == [f"REQ {id} {delay_ms}"]


@jumping
async def test_a_message_tells_what_it_is() -> None:
    async with MemoryNSQD() as server:
        id = server.put("t", b'{"a": 1}')
        async with open_consumer("t", "c", nsqd=server, config=Config(msg_timeout=5)) as consumer:
            message = await anext(consumer)
            assert (message.id, message.topic, message.channel, message.nsqd) == (id, "t", "c", str(server))
            assert (message.json(), message.attempts) == ({"a": 1}, 1)
            assert message.deadline == message.received_at + 5
            assert message.hard_deadline == message.received_at + 900
            await trio.sleep(3)
            assert message.touch()
            assert message.deadline == trio.current_time() + 5
            message.finish()
            assert not message.touch()


@jumping
async def test_a_late_answer_is_counted_and_hurts_nobody() -> None:
    async with MemoryNSQD() as server:
        id = server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=1)) as consumer:
            message = await anext(consumer)
            consumer.pause()
            happened = consumer.events()
            await trio.sleep(61)
            message.finish()
            assert await anext(happened) == events.LateResponse(
                id, str(server), f"E_FIN_FAILED FIN {id} failed ID not in flight"
            )
            assert consumer.stats().late_responses == 1
            consumer.resume()
            (await anext(consumer)).finish()
            assert consumer.stats().connections[0].address == str(server)
        assert server.finished("t", "c") == [b"one"]


@jumping
async def test_who_has_a_message_that_came_again_has_it_no_more() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=2)) as consumer:
            slow = await anext(consumer)
            again = await anext(consumer)  # a minute later
            assert (slow.id, again.attempts) == (slow.id, 2)
            assert not slow.finish()
            assert again.finish()
        assert server.finished("t", "c") == [b"one"]


@jumping
async def test_a_block_answers_by_how_it_ends() -> None:
    async with MemoryNSQD() as server:
        ids = [server.put("t", b"%d" % number) for number in range(4)]
        config = Config(max_in_flight=4, backoff="none")
        async with open_consumer("t", "c", nsqd=server, config=config) as consumer:
            async with await anext(consumer):
                pass
            async with await anext(consumer):
                raise Requeue(delay=5)
            with pytest.raises(RuntimeError):
                async with await anext(consumer):
                    raise RuntimeError
            with trio.move_on_after(1):
                async with await anext(consumer):
                    await trio.sleep_forever()
        wanted = [f"FIN {ids[0]}", f"REQ {ids[1]} 5000", f"REQ {ids[2]} 90000", f"REQ {ids[3]} 0"]
        assert server.said(None, "FIN", "REQ")[:4] == wanted


@jumping
async def test_keep_alive_touches_as_long_as_it_runs() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"slow")
        async with open_consumer("t", "c", nsqd=server, config=Config(msg_timeout=10)) as consumer:
            async with await anext(consumer) as message, message.keep_alive():
                await trio.sleep(100)
        assert server.finished("t", "c") == [b"slow"]
        assert len(server.said(None, "TOUCH")) >= 19


@jumping
async def test_keep_alive_ends_before_nsqd_takes_the_message_back_anyway() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"slow")
        async with open_consumer("t", "c", nsqd=server, config=Config(msg_timeout=10)) as consumer:
            message = await anext(consumer)
            with pytest.raises(trio.TooSlowError):
                async with message.keep_alive(margin=10):
                    await trio.sleep_forever()
            assert trio.current_time() == pytest.approx(message.hard_deadline - 10)
            message.requeue()


# Threads and other tasks


def test_a_plain_function_runs_in_a_thread_and_may_answer_there() -> None:
    def handle(message: Message) -> None:
        assert message.touch()
        assert message.requeue(7, backoff=False)
        assert message.answered == "requeued"
        assert not message.finish()

    async def main() -> None:
        async with MemoryNSQD() as server:
            id = server.put("t", b"one")
            async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                with trio.fail_after(30):
                    await until_said(server, f"REQ {id} 7000")
                consumer.stop()
            assert server.said(None, "FIN") == []

    trio.run(main)  # a thread takes real time


@jumping
async def test_a_handler_that_leaves_the_answer_to_others() -> None:
    kept: list[Message] = []

    async def keep(message: Message) -> None:
        message.disable_auto_response()
        kept.append(message)

    async with MemoryNSQD() as server:
        server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, keep)
            await trio.sleep(5)
            assert server.finished("t", "c") == []
            kept[0].finish()
            await server.wait_empty("t", "c")
            consumer.stop()


@jumping
async def test_close_wait_that_nobody_asked_for_ends_the_connection() -> None:
    async with MemoryNSQD() as server, open_consumer("t", "c", nsqd=server):
        await until_said(server, "RDY 1")
        server.send(CLOSE_WAIT_FRAME)
        await server.wait_until(lambda: server.said(2, "RDY") == ["RDY 1"])


@pytest.mark.parametrize(
    ("answer", "what"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"), (encode_reply(b"E_BAD_PROTOCOL"), "nsqlookupd")],
)
@jumping
async def test_another_server_by_mistake(answer: bytes, what: str) -> None:
    class Server:
        async def connect(self) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            await theirs.send_all(answer)
            return ours

    target: Target = Server()
    with pytest.raises(ConnectError, match=f"unexpected {what} response, a nsqd TCP endpoint is required"):
        async with open_consumer("t", "c", nsqd=[target], startup="require"):
            pass


@jumping
async def test_a_frame_that_makes_no_sense_ends_the_connection() -> None:
    async with MemoryNSQD() as server, open_consumer("t", "c", nsqd=server) as consumer:
        await until_said(server, "RDY 1")
        happened = consumer.events()
        server.send(b"\xff\xff\xff\xff\0\0\0\0")
        event = await anext(happened)
        assert event == events.Disconnected(str(server), "response msg size is negative: -1", 0)
        server.send(response_frame(b"x"))
