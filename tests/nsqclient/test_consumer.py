"""A consumer and nsqds in memory: which commands it sends to which nsqd, in which order, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import pytest
import trio
import trio.testing

from nsqclient import (
    AuthError,
    Config,
    ConfigError,
    ConnectError,
    Consumer,
    GiveUp,
    Message,
    Requeue,
    TLSRefused,
    Unsupported,
    events,
    open_consumer,
    serve_consumer,
)
from nsqclient import ProtocolError as ClientProtocolError
from nsqclient._dial import Target
from nsqclient.testing import MemoryNSQD
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, error_frame, response_frame
from tests.support.jumping import jumping


async def until_said(server: MemoryNSQD, *commands: str) -> None:
    await server.wait_until(lambda: set(commands) <= set(server.said()))


def rdys(server: MemoryNSQD) -> list[int]:
    return [int(said.split(" ")[1]) for said in server.said(None, "RDY")]


EventT = TypeVar("EventT")


async def first(happened: AsyncIterator[object], kind: type[EventT]) -> EventT:
    """Return the next event of this kind."""
    async for event in happened:
        if isinstance(event, kind):
            return event
    raise AssertionError("the consumer has ended")


async def never(message: Message) -> None:
    await trio.sleep_forever()


async def failing(message: Message) -> None:
    raise RuntimeError("no luck")


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


# RDY, shared


Heard = list[tuple[int, str]]


async def open_all(stack: AsyncExitStack, count: int) -> tuple[list[MemoryNSQD], Heard]:
    """Open a consumer of several nsqds, and return the commands that they get, in order."""
    heard: Heard = []

    def ear(number: int) -> Callable[[int, str], None]:
        return lambda connection, command: heard.append((number, command))

    return [await stack.enter_async_context(MemoryNSQD(on_command=ear(number))) for number in range(count)], heard


def told(heard: Heard) -> Heard:
    return [it for it in heard if it[1].startswith("RDY")]


def highest_sum(heard: Heard) -> int:
    """Return the highest sum of the last RDYs of all nsqds at any time."""
    last: dict[int, int] = {}
    sums = [0]
    for number, command in told(heard):
        last[number] = int(command.split(" ")[1])
        sums.append(sum(last.values()))
    return max(sums)


@jumping
async def test_a_second_nsqd_gets_half_and_the_first_hears_it_first() -> None:
    async with AsyncExitStack() as stack:
        servers, heard = await open_all(stack, 2)
        servers[1].is_up = False
        async with open_consumer("t", "c", nsqd=servers, config=Config(max_in_flight=6)):
            await until_said(servers[0], "RDY 6")
            servers[1].is_up = True
            await until_said(servers[1], "RDY 3")
    assert told(heard) == [(0, "RDY 6"), (0, "RDY 3"), (1, "RDY 3")]


@jumping
async def test_everything_is_shared_out_and_a_loss_goes_to_the_others() -> None:
    async with AsyncExitStack() as stack:
        servers, _heard = await open_all(stack, 3)
        async with open_consumer("t", "c", nsqd=servers, config=Config(max_in_flight=8)) as consumer:
            await until(lambda: sorted(shares(consumer)) == [2, 3, 3])
            servers[1].is_up = False
            servers[1].break_connections()
            lost_at = trio.current_time()
            await until(lambda: shares(consumer) == [4, 4])
            assert trio.current_time() - lost_at < 0.1


def shares(consumer: Consumer) -> list[int]:
    return [connection.rdy for connection in consumer.stats().connections]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.001)


@jumping
async def test_a_single_rdy_goes_round_and_leaves_who_has_it_for_long() -> None:
    async with AsyncExitStack() as stack:
        servers, heard = await open_all(stack, 3)
        for number in range(100):
            servers[0].put("t", b"%d" % number)
        config = Config(max_in_flight=1, low_rdy_idle_timeout=1, low_rdy_timeout=3, rdy_redistribute_interval=0.5)
        async with open_consumer("t", "c", nsqd=servers, config=config) as consumer, trio.open_nursery() as nursery:

            async def work(message: Message) -> None:
                await trio.sleep(0.2)

            nursery.start_soon(consumer.run, work)
            await trio.sleep(3 * (1 + 0.5) + 3.5)
            assert all("RDY 1" in server.said() for server in servers)
            assert "RDY 0" in servers[0].said()
            await servers[0].wait_empty("t", "c")
            consumer.stop()
    assert highest_sum(heard) == 1


@jumping
async def test_without_a_max_in_flight_every_nsqd_is_served_at_once() -> None:
    async with AsyncExitStack() as stack:
        servers, heard = await open_all(stack, 3)
        for server in servers:
            server.put("t", b"from each")
        async with open_consumer("t", "c", nsqd=servers) as consumer:
            assert consumer.max_in_flight == 1
            with trio.fail_after(1):
                for _ in servers:
                    (await anext(consumer)).finish()
            assert consumer.max_in_flight == 3
            consumer.pause()
            assert consumer.max_in_flight == 3
            consumer.resume()
    assert highest_sum(heard) == 3


@jumping
async def test_pause_resume_and_another_max_in_flight() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=4)) as consumer:
            await until_said(server, "RDY 4")
            consumer.pause()
            await until_said(server, "RDY 0")
            consumer.set_max_in_flight(9)
            consumer.resume()
            await until_said(server, "RDY 9")


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


# Refused consumers


@pytest.mark.parametrize("fault", [Fault.BAD_TOPIC, Fault.BAD_CHANNEL, Fault.INVALID, Fault.UNAUTHORIZED])
@jumping
async def test_a_consumer_that_no_nsqd_accepts_fails(fault: Fault) -> None:
    def refuse(connection: int, command: str) -> bytes | None:
        if command.startswith("SUB"):
            raise ProtocolError(fault, "no")
        return None

    async with MemoryNSQD(on_command=refuse) as server:
        with pytest.raises(ClientProtocolError, match=f"{fault.value} no"):
            async with open_consumer("t", "c", nsqd=server) as consumer:
                async for _ in consumer:
                    pass


@jumping
async def test_one_nsqd_that_refuses_does_not_end_a_consumer_that_others_accept() -> None:
    def refuse(connection: int, command: str) -> bytes | None:
        if command.startswith("SUB"):
            raise ProtocolError(Fault.INVALID, "no")
        return None

    async with MemoryNSQD(on_command=refuse) as bad, MemoryNSQD() as good:
        good.put("t", b"one")
        async with open_consumer("t", "c", nsqd=[bad, good]) as consumer:
            (await anext(consumer)).finish()
            await trio.sleep(60)
            good.put("t", b"two")
            (await anext(consumer)).finish()
        assert good.finished("t", "c") == [b"one", b"two"]


@jumping
async def test_a_secret_that_is_required_and_missing() -> None:
    async with MemoryNSQD(reply={"auth_required": True}) as server:
        with pytest.raises(AuthError, match=r"^Auth Required$"):
            async with open_consumer("t", "c", nsqd=server) as consumer:
                await anext(consumer)
        assert server.said() == ["IDENTIFY"]


@jumping
async def test_a_wrong_secret() -> None:
    def refuse(connection: int, command: str) -> bytes | None:
        return error_frame(ProtocolError(Fault.AUTH_FAILED, "AUTH failed")) if command == "AUTH" else None

    async with MemoryNSQD(reply={"auth_required": True}, on_command=refuse) as server:
        with pytest.raises(AuthError, match=r"^Error authenticating E_AUTH_FAILED AUTH failed$"):
            async with open_consumer("t", "c", nsqd=server, config=Config(auth_secret="wrong")) as consumer:
                await anext(consumer)
        assert server.said() == ["IDENTIFY", "AUTH"]


@jumping
async def test_a_secret_that_nobody_wants_is_not_sent() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(auth_secret="it")):
            await until_said(server, "RDY 1")
        assert "AUTH" not in server.said()


@jumping
async def test_tls_that_is_not_granted() -> None:
    async with MemoryNSQD() as server:
        with pytest.raises(TLSRefused):
            async with open_consumer("t", "c", nsqd=server, config=Config(tls="require")) as consumer:
                await anext(consumer)
        assert server.said() == ["IDENTIFY"]
        async with open_consumer("t", "c", nsqd=server, config=Config(tls="prefer", compression="snappy")):
            await until_said(server, "SUB t c")


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
            with pytest.raises(Unsupported, match="buries nothing: it does not grant the extension `bury`"):
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
            with pytest.raises(Unsupported, match="t/c#ephemeral, which is not on disk"):
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


# Stop and drain


@jumping
async def test_a_drain_waits_for_handlers_and_gives_back_what_waits() -> None:
    async with MemoryNSQD() as server:
        ids = [server.put("t", b"%d" % number) for number in range(6)]

        async def slow(message: Message) -> None:
            await trio.sleep(3)

        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=6)) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, slow)
                await server.wait_until(lambda: server.depth("t", "c") == 0)
                await trio.sleep(1)
                consumer.stop()
                consumer.stop()
            assert trio.current_time() >= 3
        answers = server.said(None, "CLS", "FIN", "REQ")
        assert answers == ["CLS", *(f"REQ {id} 0 free" for id in ids[1:]), f"FIN {ids[0]}"]
        await server.wait_until(lambda: server.connections == 0)


@jumping
async def test_a_drain_ends_without_close_wait() -> None:
    def deaf(connection: int, command: str) -> bytes | None:
        return b"" if command == "CLS" else None

    async with MemoryNSQD(on_command=deaf) as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(drain_timeout=7)):
            await until_said(server, "RDY 1")
            began = trio.current_time()
        assert 7 <= trio.current_time() - began < 9


@jumping
async def test_a_drain_does_not_wait_for_ever_for_a_handler() -> None:
    async with MemoryNSQD() as server:
        id = server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server, config=Config(drain_timeout=7)) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, never)
                await server.wait_until(lambda: server.depth("t", "c") == 0)
                await trio.sleep(1)
                consumer.stop()
                began = trio.current_time()
            assert trio.current_time() - began == 7
        assert server.said(None, "FIN", "REQ") == [f"REQ {id} 0"]


@jumping
async def test_a_message_that_races_the_stop_goes_back() -> None:
    def late(connection: int, command: str) -> bytes | None:
        if command == "CLS":
            server.put("t", b"late")  # nsqd sends it before it carries out CLS
        return None

    async with MemoryNSQD(on_command=late) as server:
        async with open_consumer("t", "c", nsqd=server):
            await until_said(server, "RDY 1")
        assert len(server.said(None, "REQ")) == 1


@jumping
async def test_cancelling_run_gives_everything_back() -> None:
    async with MemoryNSQD() as server:
        ids = [server.put("t", b"%d" % number) for number in range(5)]
        with trio.move_on_after(2):
            async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=5)) as consumer:
                await consumer.run(never, concurrency=2)
        assert trio.current_time() < 3.1
        # nsqd may send the two that handlers had once more before it reads the CLS.
        assert {said for said in server.said(None, "REQ") if not said.endswith("free")} == {
            f"REQ {id} 0" for id in ids[:2]
        }
        assert {f"REQ {id} 0 free" for id in ids[2:]} <= set(server.said(None, "REQ"))
        assert server.said(None, "FIN") == []
        await server.wait_until(lambda: server.connections == 0)


@jumping
async def test_an_error_in_the_block_gives_everything_back_and_comes_out_alone() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"one")
        with pytest.raises(KeyError):
            async with open_consumer("t", "c", nsqd=server) as consumer:
                await anext(consumer)
                raise KeyError
        assert len(server.said(None, "REQ")) == 1


@jumping
async def test_stop_may_be_called_by_a_handler() -> None:
    async with MemoryNSQD() as server:
        for number in range(3):
            server.put("t", b"%d" % number)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=3)) as consumer:

            async def once(message: Message) -> None:
                consumer.stop()

            await consumer.run(once)
        assert server.finished("t", "c") == [b"0"]


@jumping
async def test_a_consumer_as_a_service() -> None:
    async with MemoryNSQD() as server, trio.open_nursery() as nursery:
        server.put("t", b"one")

        async def handle(message: Message) -> None:
            assert message.body == b"one"

        consumer = await nursery.start(serve_consumer, "t", "c", handle, {"nsqd": server})
        await server.wait_empty("t", "c")
        consumer.stop()
    assert server.finished("t", "c") == [b"one"]


# Many consumers at once


@jumping
async def test_batches_are_not_held_back_when_nothing_more_can_come() -> None:
    async with MemoryNSQD() as server:
        for number in range(10):
            server.put("t", b"%d" % number)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=4)) as consumer:
            sizes = []
            async for batch in consumer.batches(max_size=500, max_wait=60):
                sizes.append(len(batch))
                batch.finish()
                if sum(sizes) == 10:
                    break
            assert sizes[0] == 4
            assert trio.current_time() < 130


@jumping
async def test_a_batch_that_is_full_comes_at_once_and_another_after_its_time() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=100)) as consumer:
            for number in range(5):
                server.put("t", b"%d" % number)
            batches = consumer.batches(max_size=3, max_wait=2)
            first = await anext(batches)
            began = trio.current_time()
            second = await anext(batches)
            assert (len(first), len(second)) == (3, 2)
            assert trio.current_time() - began == pytest.approx(2)
            first.finish()
            second.requeue(0, backoff=False)
        assert server.finished("t", "c") == [b"0", b"1", b"2"]


@jumping
async def test_a_batch_that_is_cancelled_while_it_grows_goes_back() -> None:
    async with MemoryNSQD() as server:
        id = server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=100)) as consumer:
            with trio.move_on_after(1):
                async for _ in consumer.batches(max_size=3, max_wait=20):
                    pass
            await until_said(server, f"REQ {id} 0")


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


@jumping
async def test_a_web_server_by_mistake() -> None:
    class WebServer:
        async def connect(self) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            await theirs.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return ours

    target: Target = WebServer()
    with pytest.raises(ConnectError, match="unexpected HTTP response, a nsqd TCP endpoint is required"):
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
