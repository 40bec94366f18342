"""Traffic for the demo: a shop that takes orders, and two departments that work on them.

    traffic.py produce --nsqd 127.0.0.1:4150 ...
    traffic.py consume --lookupd 127.0.0.1:4161 ... --channel billing
    traffic.py share --nsqd 127.0.0.1:4150 ...

Each says about once a second, as a line of JSON, how many messages it has published or finished. SIGTERM ends it: a producer
at once, a consumer when it has finished what it has.

`share` is a printer that ten customers share. One of them always has thousands of jobs waiting, the others have one now
and then. It says how long theirs wait, which nsqd's policy decides.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import mean
from typing import Final

import trio

import nsqclient
from nsqcommon.options import STRING, STRINGS, option
from nsqcommon.subcommands import Command, Commands, required, run_one_of

GOODS = ("kettle", "lamp", "bicycle", "umbrella", "clock")
ONE_IN_FAILS = 50  # so that there is something to see: requeues, and attempts above one

PRINTS: Final = "prints"
LARGE: Final = "acme"
SMALL: Final = ("ana", "ben", "cleo", "dora", "emil", "fay", "gus", "hana", "ivo")
CATALOGUE: Final = 10_000  # jobs that the large customer has at once
PLACES: Final = 6  # jobs at a time


class Count:
    def __init__(self, word: str) -> None:
        self._word = word
        self.value = 0

    async def tell(self) -> None:
        while True:
            self.say()
            await trio.sleep(1)

    def say(self) -> None:
        print(json.dumps({self._word: self.value}), flush=True)


async def stop_on_signal(stop: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as arrivals:
        async for _ in arrivals:
            stop()


async def produce(addresses: Sequence[str], topic: str, rate: float) -> None:
    published = Count("published")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, nursery.cancel_scope.cancel)
        nursery.start_soon(published.tell)
        async with nsqclient.open_producer(addresses, strategy="round_robin", retry_timeout=5) as producer:
            while True:
                order = {"number": published.value, "item": random.choice(GOODS), "price": random.randint(5, 500)}
                try:
                    await producer.publish(topic, json.dumps(order).encode())
                except nsqclient.PublishError as error:
                    print(json.dumps({"not published": str(error)}), flush=True)
                else:
                    published.value += 1
                await trio.sleep(random.expovariate(rate))
    published.say()


async def consume(lookupds: Sequence[str], topic: str, channel: str) -> None:
    finished = Count("finished")

    async def handle(message: nsqclient.Message) -> None:
        await trio.sleep(random.uniform(0, 0.01))  # work
        if message.attempts == 1 and random.randrange(ONE_IN_FAILS) == 0:
            raise nsqclient.Requeue(delay=1, backoff=False)
        finished.value += 1

    # Once a second also those nsqlookupd are asked that cannot wait for news.
    config = nsqclient.Config(max_in_flight=30, lookupd_poll_interval=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finished.tell)
        async with nsqclient.open_consumer(topic, channel, lookupd=lookupds, config=config) as consumer:
            nursery.start_soon(stop_on_signal, consumer.stop)
            await consumer.run(handle, concurrency=10)
        nursery.cancel_scope.cancel()
    finished.say()


class Customer:
    """One customer, or several together: jobs done, and how long the latest of them waited."""

    def __init__(self) -> None:
        self.done = 0
        self._waits: deque[float] = deque(maxlen=50)

    def begin(self, message: nsqclient.Message) -> None:
        self._waits.append((datetime.now(UTC) - message.published_at).total_seconds())

    def __str__(self) -> str:
        return f"{self.done} done, wait {mean(self._waits or [0.0]):.2f} s"


class Printer:
    def __init__(self) -> None:
        self._customers = {LARGE: Customer(), "others": Customer()}
        self._left = 0  # of the large customer

    async def work(self, message: nsqclient.Message) -> None:
        customer = self._customers[LARGE if message.group == LARGE else "others"]
        customer.begin(message)
        await trio.sleep(random.uniform(0.05, 0.15))
        customer.done += 1
        self._left -= message.group == LARGE

    async def order_much(self, producer: nsqclient.Producer) -> None:
        while True:
            if self._left < CATALOGUE / 10:
                for page in range(0, CATALOGUE, 500):
                    pages = [b"page %d" % number for number in range(page, page + 500)]
                    self._left += await _publish(producer, pages, LARGE)
            await trio.sleep(1)

    async def order_little(self, producer: nsqclient.Producer) -> None:
        while True:
            await _publish(producer, [b"a letter"], random.choice(SMALL))
            await trio.sleep(random.expovariate(5))

    async def tell(self) -> None:
        while True:
            print(f"{PRINTS}: {'; '.join(f'{name} {it}' for name, it in self._customers.items())}", flush=True)
            await trio.sleep(1)


async def _publish(producer: nsqclient.Producer, bodies: Sequence[bytes], customer: str) -> int:
    """Return the number of jobs that were published: all or none."""
    try:
        await producer.publish_many(PRINTS, bodies, group=customer)
    except nsqclient.PublishError as error:
        print(json.dumps({"not published": str(error)}), flush=True)
        return 0
    return len(bodies)


async def share(addresses: Sequence[str]) -> None:
    printer = Printer()
    config = nsqclient.Config(max_in_flight=PLACES)
    async with (
        nsqclient.open_producer(addresses, strategy="round_robin", retry_timeout=5) as producer,
        nsqclient.open_consumer(PRINTS, "printer", nsqd=addresses, config=config) as consumer,
        trio.open_nursery() as nursery,
    ):
        for job in (partial(printer.order_much, producer), partial(printer.order_little, producer), printer.tell):
            nursery.start_soon(job)
        nursery.start_soon(stop_on_signal, consumer.stop)
        await consumer.run(printer.work, concurrency=PLACES)
        nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    nsqd: tuple[str, ...] = required("HOST:PORT to publish to and to consume from", kind=STRINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    nsqd: tuple[str, ...] = required("HOST:PORT to publish to", kind=STRINGS)
    rate: float = option(50.0, "messages a second")
    topic: str = option("orders", "topic of the orders")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    lookupd: tuple[str, ...] = required("HOST:PORT of an nsqlookupd", kind=STRINGS)
    channel: str = required("the department", kind=STRING)
    topic: str = option("orders", "topic of the orders")


def run_produce(asked: ProduceOptions) -> int:
    trio.run(produce, asked.nsqd, asked.topic, asked.rate)
    return 0


def run_consume(asked: ConsumeOptions) -> int:
    trio.run(consume, asked.lookupd, asked.topic, asked.channel)
    return 0


def run_share(asked: ShareOptions) -> int:
    trio.run(share, asked.nsqd)
    return 0


def main() -> int:
    produces = Command(table=ProduceOptions, run=run_produce, summary="take orders", about="Publishes orders.")
    consumes = Command(table=ConsumeOptions, run=run_consume, summary="work on them", about="Works on orders.")
    shares = Command(table=ShareOptions, run=run_share, summary="share a printer", about="Prints for ten customers.")
    commands: Commands = {"produce": produces, "consume": consumes, "share": shares}
    return run_one_of(commands, sys.argv[1:], "traffic.py", about=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
