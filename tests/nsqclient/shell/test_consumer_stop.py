"""A consumer that ends: it drains, waits for its handlers as long as `drain_timeout`, and gives back what is left."""

from __future__ import annotations

import pytest
import trio

from nsqclient import Config, Message, open_consumer, serve_consumer
from nsqclient.testing import MemoryNSQD
from tests.nsqclient.consuming import never, until_said
from tests.support.jumping import jumping


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
