"""Clients in processes of their own: `python -m tests.failover.peers NAME WHERE ADDRESS FIRST`.

NAME is one of PRODUCERS or CONSUMERS below. WHERE is `lookupd`, and then ADDRESS is the HTTP address of an nsqlookupd; or
it is `nsqd`, and ADDRESS is the TCP address of whoever owns the node. A producer publishes the numbers from FIRST on, each again
and again while it is certain that it isn't stored, and writes those that were answered with OK. A consumer writes those
that come. They go on until somebody kills them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import trio

import nsqclient
from nsqclient import ConnectError, PublishUnsent, aio, sync
from nsqclient.blocking import BlockingProducer, given_nodes, listed_nodes

TOPIC: Final = "orders"
TICK: Final = 0.01  # seconds between two publishes
RETRY: Final = 60.0  # seconds; so long our producers wait for the outcome of a publish
_UNSTORED: Final = (ConnectError, PublishUnsent)
_ARGUMENTS: Final = {"lookupd": "lookupd", "nsqd": "addresses"}  # of producers; a consumer calls them as we do


def tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


# nsqclient


async def publish_on_trio(where: str, address: str, first: int) -> None:
    options: Any = {_ARGUMENTS[where]: address}
    async with nsqclient.open_producer(**options, retry_timeout=RETRY) as producer:
        for number in count(first):
            while not await _is_published(producer, number):  # noqa: ASYNC110  # as programs do while a node restarts
                await trio.sleep(TICK)
            tell(number)
            await trio.sleep(TICK)


async def publish_on_asyncio(where: str, address: str, first: int) -> None:
    options: Any = {_ARGUMENTS[where]: address}
    async with aio.open_producer(**options, retry_timeout=RETRY) as producer:
        for number in count(first):
            while not await _is_published(producer, number):  # noqa: ASYNC110  # the same
                await asyncio.sleep(TICK)
            tell(number)
            await asyncio.sleep(TICK)


async def _is_published(producer: nsqclient.Producer | aio.Producer, number: int) -> bool:
    try:
        await producer.publish(TOPIC, b"%d" % number)
    except _UNSTORED:
        return False
    return True


def publish_by_threads(where: str, address: str, first: int) -> None:
    with sync.producer(**{_ARGUMENTS[where]: address}, retry_timeout=RETRY) as producer:
        _publish_plainly(producer, first)


def publish_by_sockets(where: str, address: str, first: int) -> None:
    nodes = listed_nodes([address], nsqclient.Config()) if where == "lookupd" else given_nodes([address])
    _publish_plainly(BlockingProducer(nodes, retry_timeout=RETRY), first)


def _publish_plainly(producer: sync.Producer | BlockingProducer, first: int) -> None:
    for number in count(first):
        while True:
            try:
                producer.publish(TOPIC, b"%d" % number)
                break
            except _UNSTORED:
                time.sleep(TICK)
        tell(number)
        time.sleep(TICK)


async def consume_on_trio(where: str, address: str, _: int) -> None:
    options: Any = {where: address}
    async with nsqclient.open_consumer(TOPIC, "trio", **options) as consumer:
        async for message in consumer:
            tell(int(message.body))
            message.finish()


async def consume_on_asyncio(where: str, address: str, _: int) -> None:
    options: Any = {where: address}
    async with aio.open_consumer(TOPIC, "asyncio", **options) as consumer:
        async for message in consumer:
            tell(int(message.body))
            message.finish()


def consume_by_threads(where: str, address: str, _: int) -> None:
    options: Any = {where: address}
    with sync.consumer(TOPIC, "threads", **options) as consumer:
        for message in consumer.messages():
            tell(int(message.body))
            message.finish()


# pynsq, unmodified. It has producers for fixed addresses only.


def publish_by_pynsq(where: str, address: str, first: int) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    assert where == "nsqd"
    writer = nsq.Writer([address])
    numbers = count(first)

    def publish(number: int) -> None:
        def answered(_: object, answer: object) -> None:
            if answer == b"OK":
                tell(number)
            # Other answers don't say whether it is stored, so the next number is due either way.
            IOLoop.current().call_later(TICK, publish, next(numbers))

        writer.pub(TOPIC, b"%d" % number, callback=answered)

    IOLoop.current().call_later(TICK, publish, next(numbers))
    IOLoop.current().start()


def consume_by_pynsq(where: str, address: str, _: int) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    def handle(message: Any) -> bool:
        tell(int(message.body))
        return True

    options = {"lookupd_http_addresses": [address]} if where == "lookupd" else {"nsqd_tcp_addresses": [address]}
    nsq.Reader(
        topic=TOPIC, channel="pynsq", message_handler=handle, max_in_flight=20, lookupd_poll_interval=1, **options
    )
    IOLoop.current().start()


Run = Callable[[str, str, int], Any]
PRODUCERS: Final[Mapping[str, Run]] = MappingProxyType(
    {
        "trio producer": publish_on_trio,
        "asyncio producer": publish_on_asyncio,
        "threads producer": publish_by_threads,
        "sockets producer": publish_by_sockets,
        "pynsq producer": publish_by_pynsq,
    }
)
CONSUMERS: Final[Mapping[str, Run]] = MappingProxyType(
    {
        "trio consumer": consume_on_trio,
        "asyncio consumer": consume_on_asyncio,
        "threads consumer": consume_by_threads,
        "pynsq consumer": consume_by_pynsq,
    }
)


def main() -> None:
    name, where, address, first = sys.argv[1:]
    run = {**PRODUCERS, **CONSUMERS}[name]
    match name.partition(" ")[0]:
        case "trio":
            trio.run(run, where, address, int(first))
        case "asyncio":
            asyncio.run(run(where, address, int(first)))
        case _:
            run(where, address, int(first))


if __name__ == "__main__":
    main()
