"""Traffic for the demo: a shop that takes orders, and two departments that work on them.

    traffic.py produce --nsqd 127.0.0.1:4150 ...
    traffic.py consume --lookupd 127.0.0.1:4161 ... --channel billing

Each says about once a second, as a line of JSON, how many messages it has published or finished. SIGTERM ends it: a producer
at once, a consumer when it has finished what it has.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
from collections.abc import Callable

import trio

import nsqclient

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


async def produce(addresses: list[str], topic: str, rate: float) -> None:
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


async def consume(lookupds: list[str], topic: str, channel: str) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    producing = kinds.add_parser("produce")
    producing.add_argument("--nsqd", action="append", required=True, metavar="HOST:PORT")
    producing.add_argument("--rate", type=float, default=50, help="messages a second (default: %(default)s)")
    consuming = kinds.add_parser("consume")
    consuming.add_argument("--lookupd", action="append", required=True, metavar="HOST:PORT")
    consuming.add_argument("--channel", required=True)
    for one in (producing, consuming):
        one.add_argument("--topic", default="orders")
    chosen = parser.parse_args()
    if chosen.kind == "produce":
        trio.run(produce, chosen.nsqd, chosen.topic, chosen.rate)
    else:
        trio.run(consume, chosen.lookupd, chosen.topic, chosen.channel)


if __name__ == "__main__":
    main()
