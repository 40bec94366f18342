"""A consumer with nsqlookupds that do what a test tells them, and nsqds in memory under the names that they list."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import pytest
import trio

from nsqclient import Config, ConnectError, events, open_consumer
from nsqclient.shell.targets import Target
from nsqclient.testing import MemoryNSQD
from tests.support.fake_lookupd import json_answer

LIMIT = 30.0
QUICK = Config(lookupd_poll_interval=0.05, lookupd_poll_jitter=0, max_in_flight=10)


class Lookupd:
    """Plain HTTP, one answer for each connection."""

    def __init__(self, *nsqds: MemoryNSQD, status: bytes = b"200 OK") -> None:
        self.nsqds = list(nsqds)
        self.status = status
        self.asked: list[str] = []
        self.has_been_asked = trio.Event()
        self.address = ""

    async def more_rounds(self, count: int) -> None:
        """Wait until it has been asked so many more times."""
        goal = len(self.asked) + count
        while len(self.asked) < goal:
            self.has_been_asked = trio.Event()
            await self.has_been_asked.wait()

    async def serve(self, stream: trio.abc.Stream) -> None:
        async with stream:
            head = bytes(await stream.receive_some())
            if not head:
                return
            self.asked.append(head.decode())
            self.has_been_asked.set()
            producers = [
                {"broadcast_address": str(nsqd).partition(":")[0], "tcp_port": 4150, "hostname": "h"}
                for nsqd in self.nsqds
            ]
            await stream.send_all(json_answer(json.dumps({"producers": producers}).encode(), self.status))


@asynccontextmanager
async def listening(*lookupds: Lookupd) -> AsyncIterator[list[str]]:
    async with trio.open_nursery() as nursery:
        for lookupd in lookupds:
            listeners = await nursery.start(partial(trio.serve_tcp, lookupd.serve, 0, host="127.0.0.1"))
            lookupd.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield [lookupd.address for lookupd in lookupds]
        nursery.cancel_scope.cancel()


def found_as(*nsqds: MemoryNSQD) -> object:
    """Replace name resolution and connecting."""
    by_name: dict[str, Target] = {str(nsqd): nsqd for nsqd in nsqds}
    return by_name.__getitem__


def in_real_time(test: object) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await test()  # type: ignore[operator]

    trio.run(limited)


def test_all_are_asked_at_once_and_one_that_is_down_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with MemoryNSQD() as one, MemoryNSQD() as two, MemoryNSQD() as three:
            first, second = Lookupd(one, two), Lookupd(two, three)
            async with (
                listening(first, second) as addresses,
                open_consumer(
                    "t",
                    "c",
                    lookupd=["127.0.0.1:1", *addresses],
                    resolve=found_as(one, two, three),  # type: ignore[arg-type]
                    config=QUICK,
                ) as consumer,
            ):
                for nsqd in (one, two, three):
                    await nsqd.wait_until(lambda nsqd=nsqd: nsqd.connections == 1)  # type: ignore[misc]
                await first.more_rounds(3)
                assert len(consumer.stats().connections) == 3
            assert two.said(None, "SUB") == ["SUB t c"]
            assert "GET /lookup?topic=t HTTP/1.1" in first.asked[0]
            assert "Accept: application/vnd.nsq; version=1.0" in first.asked[0]

    in_real_time(test)
    assert not [it for it in caplog.records if it.levelno >= logging.ERROR]


def test_a_topic_that_nobody_knows_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        lookupd = Lookupd(status=b"404 Not Found")
        async with listening(lookupd) as addresses, open_consumer("t", "c", lookupd=addresses, config=QUICK):
            await lookupd.more_rounds(2)

    in_real_time(test)
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]


def test_a_lost_connection_is_asked_for_at_once() -> None:
    async def test() -> None:
        async with MemoryNSQD() as nsqd:
            lookupd = Lookupd(nsqd)
            async with listening(lookupd) as addresses:
                config = Config(lookupd_poll_interval=60)
                async with open_consumer("t", "c", lookupd=addresses, resolve=found_as(nsqd), config=config):  # type: ignore[arg-type]
                    await nsqd.wait_until(lambda: bool(nsqd.said(1, "RDY")))
                    asked, lookupd.has_been_asked = len(lookupd.asked), trio.Event()
                    nsqd.break_connections()
                    await lookupd.has_been_asked.wait()  # before this test's limit, which is half the interval
                    assert len(lookupd.asked) == asked + 1
                    await nsqd.wait_until(lambda: bool(nsqd.said(2, "RDY")))

    in_real_time(test)


def test_one_that_is_listed_no_more_is_kept_or_dropped_as_asked() -> None:
    async def test(drop_after: float | None) -> int:
        async with MemoryNSQD() as nsqd:
            lookupd = Lookupd(nsqd)
            async with (
                listening(lookupd) as addresses,
                open_consumer(
                    "t",
                    "c",
                    lookupd=addresses,
                    resolve=found_as(nsqd),  # type: ignore[arg-type]
                    config=QUICK,
                    drop_unlisted_after=drop_after,
                ) as consumer,
            ):
                await nsqd.wait_until(lambda: bool(nsqd.said(1, "RDY")))
                lookupd.nsqds.clear()
                if drop_after is not None:
                    while consumer.stats().connections:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    assert "CLS" in nsqd.said()
                else:
                    await lookupd.more_rounds(5)
                return len(consumer.stats().connections)

    async def both() -> None:
        assert await test(None) == 1
        assert await test(0.1) == 0

    in_real_time(both)


def test_the_share_of_one_that_is_dropped_goes_to_others_while_its_messages_are_answered() -> None:
    async def test() -> None:
        async with MemoryNSQD() as one, MemoryNSQD() as two:
            lookupd = Lookupd(one, two)
            one.put("t", b"held")
            async with (
                listening(lookupd) as addresses,
                open_consumer(
                    "t",
                    "c",
                    lookupd=addresses,
                    resolve=found_as(one, two),  # type: ignore[arg-type]
                    config=QUICK,
                    drop_unlisted_after=0.1,
                ) as consumer,
            ):
                async for message in consumer:
                    await two.wait_until(lambda: two.said(None, "RDY")[-1:] == ["RDY 5"])
                    lookupd.nsqds.remove(one)
                    await two.wait_until(lambda: two.said(None, "RDY")[-1] == "RDY 10")
                    await one.wait_until(lambda: "CLS" in one.said())
                    assert one.said(None, "RDY", "CLS")[-2:] == ["RDY 0", "CLS"]
                    assert len(consumer.stats().connections) == 2
                    message.finish()
                    break
                while len(consumer.stats().connections) > 1:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert one.finished("t", "c") == [b"held"]

    in_real_time(test)


def test_a_wrong_broadcast_address_is_named() -> None:
    async def test() -> None:
        async with MemoryNSQD() as nsqd:
            nsqd.is_up = False
            async with listening(lookupd := Lookupd(nsqd)) as addresses:
                async with open_consumer("t", "c", lookupd=addresses, resolve=found_as(nsqd), config=QUICK) as consumer:  # type: ignore[arg-type]
                    async for event in consumer.events():
                        if isinstance(event, events.Unreachable):
                            assert (event.address, event.hostname, event.failures) == (str(nsqd), "h", 3)
                            break
                assert lookupd.asked

    in_real_time(test)


@pytest.mark.parametrize("tls", ["off", "require"])
def test_an_address_that_makes_no_sense_is_told(tls: Literal["off", "require"]) -> None:
    async def test() -> None:
        async with MemoryNSQD() as nsqd, listening(Lookupd(nsqd)) as addresses:
            config = Config(tls=tls, max_in_flight=10)
            async with open_consumer(
                "t", "c", lookupd=addresses, resolve=lambda _: "h:99999", config=config
            ) as consumer:
                async for event in consumer.events():
                    if isinstance(event, events.ConnectFailed):
                        assert event.reason == "dial h:99999: address 99999: invalid port"
                        break

    in_real_time(test)


def test_one_after_the_other() -> None:
    async def test() -> None:
        async with MemoryNSQD() as nsqd:
            one, two = Lookupd(), Lookupd(nsqd)
            async with listening(one, two) as addresses:
                config = Config(lookupd_poll_interval=0.05, lookupd_strategy="rotate")
                async with open_consumer("t", "c", lookupd=addresses, resolve=found_as(nsqd), config=config):  # type: ignore[arg-type]
                    await nsqd.wait_until(lambda: nsqd.connections == 1)

    in_real_time(test)


def test_a_filter_has_the_last_word() -> None:
    async def test() -> None:
        async with MemoryNSQD() as one, MemoryNSQD() as two, listening(Lookupd(one, two)) as addresses:
            async with open_consumer(
                "t",
                "c",
                lookupd=addresses,
                resolve=found_as(one, two),  # type: ignore[arg-type]
                discovery_filter=lambda listed: [it for it in listed if it == str(two)],
                config=QUICK,
            ):
                await two.wait_until(lambda: two.connections == 1)
            assert one.said() == []

    in_real_time(test)


def test_who_requires_a_start_hears_that_no_nsqlookupd_answers() -> None:
    async def test() -> None:
        with pytest.raises(ConnectError, match="no nsqlookupd could be asked"):
            async with open_consumer("t", "c", lookupd=["127.0.0.1:1"], startup="require"):
                pass

    in_real_time(test)
