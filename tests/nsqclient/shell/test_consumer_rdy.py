"""RDY of a consumer: how `max_in_flight` is shared among nsqds in memory, and when it changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import trio

from nsqclient import Config, Consumer, Message, open_consumer
from nsqclient.testing import MemoryNSQD
from tests.nsqclient.consuming import until_said
from tests.support.jumping import jumping

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
