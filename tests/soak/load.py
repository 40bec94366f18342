"""Publishers and consumers of a soak: every way to publish, and every answer that a consumer can give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import trio

from nsqclient import (
    ConnectError,
    Message,
    Producer,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Requeue,
    open_consumer,
    open_producer,
)
from nsqcommon.http_client import HttpFailed
from tests.soak.cluster import Cluster, ask
from tests.soak.ledger import Ledger
from tests.support.process import Nsqd

MSG_TIMEOUT: Final = 20.0
CHANNELS: Final = (
    ("orders", "billing"),  # its consumers requeue, touch, and answer late
    ("orders", "audit"),
    ("later", "c"),  # deferred
    ("http", "c"),
    ("held", "c"),  # paused now and then
    ("archive", "c"),  # keeps what is finished
    ("replayed", "c"),  # gets copies of the archive
)
_SIZES: Final = (20, 200, 200, 2000)
_COUNTS: Final = (1, 1, 1, 1, 5)  # most publishes are a PUB, one in five an MPUB
_MEAN_COUNT: Final = sum(_COUNTS) / len(_COUNTS)
_CALM: Final = ("audit", "c")  # channels whose consumers only finish


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of everything, and for how long."""

    rate: float  # messages a second, of all topics together
    longest_delay: float  # longest delay of a message, in seconds


class Load:
    """Everything that publishes, in a nursery that is cancelled; consumers run until everything has arrived."""

    def __init__(self, cluster: Cluster, ledger: Ledger, pace: Pace, chance: Random) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.pace = pace
        self.chance = chance
        self.archived: list[tuple[float, int]] = []  # (time of the acknowledgement, number)

    async def publish(self) -> None:
        """Publish until cancelled. Publishes under way are answered first, or count as unanswered."""
        shares: dict[str, float] = {"orders": 0.5, "later": 0.15, "http": 0.15, "held": 0.1, "archive": 0.1}
        config = self.cluster.config()
        async with (
            open_producer(self.cluster.nodes, config=config, strategy="round_robin") as both,
            open_producer(self.cluster.nodes[:1], config=config) as steady,
            trio.open_nursery() as nursery,
        ):
            publishes: dict[str, Callable[[], Awaitable[object]]] = {
                "orders": lambda: self.publish_numbers("orders", both),
                "later": lambda: self._defer(both),
                "http": self._publish_over_http,
                "held": lambda: self.publish_numbers("held", both),
                "archive": lambda: self._archive(steady),
            }
            for topic, publish in publishes.items():
                nursery.start_soon(self._paced, shares[topic] * self.pace.rate, publish)

    async def _paced(self, rate: float, publish: Callable[[], Awaitable[object]]) -> None:
        """Call `publish` so often that it publishes `rate` messages a second, at `_MEAN_COUNT` messages a call."""
        while True:
            await trio.sleep(self.chance.expovariate(rate / _MEAN_COUNT))
            with trio.CancelScope(shield=True):  # the ledger has to know the outcome
                await publish()

    def _count(self) -> int:
        return self.chance.choice(_COUNTS)

    def bodies(self, numbers: Sequence[int]) -> list[bytes]:
        return [b"%d %b" % (number, b"." * self.chance.choice(_SIZES)) for number in numbers]

    async def publish_numbers(self, topic: str, producer: Producer) -> list[int]:
        """Publish a few numbered messages, and return the numbers that were acknowledged."""
        numbers = self.ledger.sending(topic, self._count(), trio.current_time())
        bodies = self.bodies(numbers)
        if len(bodies) == 1:
            return await self._settled(topic, numbers, lambda: producer.publish(topic, bodies[0]))
        return await self._settled(topic, numbers, lambda: producer.publish_many(topic, bodies))

    async def _archive(self, producer: Producer) -> None:
        numbers = await self.publish_numbers("archive", producer)
        self.archived += ((trio.current_time(), number) for number in numbers)

    async def _defer(self, producer: Producer) -> None:
        for _ in range(self._count()):
            delay = round(self.chance.uniform(0, self.pace.longest_delay), 3)
            numbers = self.ledger.sending("later", 1, trio.current_time(), delay)
            body = self.bodies(numbers)[0]
            await self._settled("later", numbers, partial(producer.publish, "later", body, delay=delay))

    async def _settled(self, topic: str, numbers: list[int], publish: Callable[[], Awaitable[None]]) -> list[int]:
        """Return the numbers that were acknowledged."""
        try:
            await publish()
        except (ConnectError, PublishUnsent):
            self.ledger.refused(topic, numbers)
        except PublishUnknown:
            self.ledger.unanswered(numbers)
        except PublishRejected as error:
            self.ledger.refused(topic, numbers)
            self.ledger.failed("rejected", f"{topic}: {error}")
        else:
            self.ledger.acknowledged(topic, numbers)
            return numbers
        return []

    async def _publish_over_http(self) -> None:
        node = self.chance.choice((self.cluster.steady, self.cluster.victim))
        numbers = self.ledger.sending("http", self._count(), trio.current_time())
        bodies = self.bodies(numbers)
        try:
            await post(node, "http", bodies)
        except HttpFailed as error:
            if "refused" in str(error):  # the connection was refused, so nothing was sent
                self.ledger.refused("http", numbers)
            else:
                self.ledger.unanswered(numbers)
        else:
            self.ledger.acknowledged("http", numbers)

    # Consuming

    async def consume(self, topic: str, channel: str) -> None:
        """Consume until cancelled."""
        config = self.cluster.config(
            max_in_flight=200,
            msg_timeout=MSG_TIMEOUT,
            max_attempts=0,
            backoff="none",
            compression="deflate" if channel == "audit" else "none",
        )
        handle = self._finish if channel in _CALM else self._handle_roughly
        async with open_consumer(topic, channel, lookupd=self.cluster.lookupd_http, config=config) as consumer:
            await consumer.run(handle, concurrency=50)

    def _arrived(self, message: Message) -> int:
        now = trio.current_time()
        return self.ledger.delivered(
            message.topic, message.channel, message.body, message.attempts, now, message.nsqd
        )  # fmt: skip

    async def _finish(self, message: Message) -> None:
        self._finished(message, self._arrived(message))

    def _finished(self, message: Message, number: int) -> None:
        if message.finish():
            self.ledger.finishing(message.topic, message.channel, number, trio.current_time())

    async def _handle_roughly(self, message: Message) -> None:
        number = self._arrived(message)
        luck = self.chance.random()
        if luck < 0.05:
            delay = self.chance.choice((0.0, round(self.chance.uniform(0.0, self.pace.longest_delay / 4), 3)))
            self.ledger.requeueing(message.topic, message.channel, number, delay, trio.current_time())
            raise Requeue(delay, backoff=False)
        if luck < 0.08:
            message.touch()
            await trio.sleep(self.chance.uniform(0, 0.5))
            message.touch()
        self._finished(message, number)


async def post(node: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish with /pub or /mpub. Raise HttpFailed."""
    if len(bodies) == 1:
        await ask(node, f"/pub?topic={topic}", method="POST", body=bodies[0])
    else:
        await ask(node, f"/mpub?topic={topic}", method="POST", body=b"\n".join(bodies))
