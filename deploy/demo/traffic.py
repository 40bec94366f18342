"""Traffic for the demo: a shop that takes orders, and two departments that work on them.

    traffic.py produce --nsqd 127.0.0.1:4150 ...
    traffic.py consume --lookupd 127.0.0.1:4161 ... --channel billing

Each says about once a second, as a line of JSON, how many messages it has published or finished. SIGTERM ends it: a producer
at once, a consumer when it has finished what it has.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

import nsqclient
from nsqcommon.options import STRING, STRINGS, option
from nsqcommon.subcommands import Command, Commands, required, run_one_of

GOODS = ("kettle", "lamp", "bicycle", "umbrella", "clock")
ONE_IN_FAILS = 50  # so that there is something to see: requeues, and attempts above one


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


def main() -> int:
    produces = Command(table=ProduceOptions, run=run_produce, summary="take orders", about="Publishes orders.")
    consumes = Command(table=ConsumeOptions, run=run_consume, summary="work on them", about="Works on orders.")
    commands: Commands = {"produce": produces, "consume": consumes}
    return run_one_of(commands, sys.argv[1:], "traffic.py", about=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
