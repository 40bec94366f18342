"""Producers and consumers under a ledger, while the node or the network to it is disturbed.

The node has one address: a link of a bad network (network.py), a process that is stopped now and then, or one whose
clock jumps. `run_load` publishes and consumes until `disturb` has returned; then everything has to arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from nsqclient import (
    Config,
    ConnectError,
    Consumer,
    Message,
    Producer,
    PublishUnknown,
    PublishUnsent,
    Requeue,
    open_consumer,
    open_producer,
)
from nsqclient.events import Disconnected
from tests.soak.ledger import Ledger, LostConnection
from tests.support.process import Nsqd

TOPIC: Final = "orders"
CHANNELS: Final = ("a", "b")
_PAUSE: Final = 0.02  # seconds between two publishes of a producer, on average
_PULSE: Final = 0.05
_QUIET: Final = logging.getLogger("tests.simulation.clients")  # clients log much on a bad network


@dataclass(frozen=True, slots=True)
class Load:
    """How much is published, and how patient clients are."""

    producers: int = 3
    longest_delay: float = 2.0
    longest_requeue: float | None = None  # None: half of that
    heartbeat: float = 1.0
    msg_timeout: float = 10.0  # of seconds; messages in flight on a lost connection come back after it, as in NSQ
    drain: float = 60.0  # seconds for everything to arrive in the end

    @property
    def patience(self) -> float:
        """The seconds without a sign of life after which a client drops a connection."""
        return 3 * self.heartbeat

    @property
    def config(self) -> Config:
        return Config(
            heartbeat_interval=self.heartbeat,
            read_timeout=self.patience,
            write_timeout=self.heartbeat,
            dial_timeout=self.heartbeat,
            reconnect_delay="fixed",  # a growing delay reaches a minute on such a network
            lookupd_poll_interval=1.0,
            max_in_flight=100,
            msg_timeout=self.msg_timeout,
            max_attempts=0,
            backoff="none",
        )


DEFAULT: Final = Load()


async def run_load(
    node: Nsqd,
    address: tuple[str, int],
    ledger: Ledger,
    chance: Random,
    disturb: Callable[[], Awaitable[None]],
    load: Load = DEFAULT,
) -> None:
    """Run the load. Raise AssertionError, with what was wrong, if a promise was broken."""
    await trio.to_thread.run_sync(node.post, f"/topic/create?topic={TOPIC}")
    for channel in CHANNELS:
        await trio.to_thread.run_sync(node.post, f"/channel/create?topic={TOPIC}&channel={channel}")
        ledger.add_channel(TOPIC, channel)
    where = f"{address[0]}:{address[1]}"
    pulse = Pulse()
    async with trio.open_nursery() as consumers:
        consumers.start_soon(pulse.beat)
        for channel in CHANNELS:
            consumers.start_soon(_consume, where, channel, ledger, chance, load, pulse)
        async with trio.open_nursery() as producers:
            for _ in range(load.producers):
                producers.start_soon(_produce, where, ledger, chance, load)
            await disturb()
            producers.cancel_scope.cancel()
        with trio.move_on_after(load.drain):
            while ledger.waiting():  # noqa: ASYNC110 -- a count, which goes down with each FIN
                await trio.sleep(0.05)
        consumers.cancel_scope.cancel()
    ledger.close()
    assert not ledger.wrong, f"{dict(ledger.wrong)}\n" + "\n".join(ledger.texts)


async def _produce(where: str, ledger: Ledger, chance: Random, load: Load) -> None:
    async with open_producer(where, config=load.config, logger=_QUIET) as producer:
        while True:
            await trio.sleep(chance.expovariate(1 / _PAUSE))
            with trio.CancelScope(shield=True):  # the ledger has to know the outcome
                await _publish(producer, ledger, chance, load)


async def _publish(producer: Producer, ledger: Ledger, chance: Random, load: Load) -> None:
    delay = round(chance.uniform(0, load.longest_delay), 3) if chance.random() < 0.2 else None
    count = 1 if delay is not None or chance.random() < 0.7 else 10
    numbers = ledger.sending(TOPIC, count, trio.current_time(), delay or 0.0)
    bodies = [b"%d %b" % (number, b"." * chance.choice((0, 100, 5000))) for number in numbers]
    try:
        if count == 1:
            await producer.publish(TOPIC, bodies[0], delay=delay)
        else:
            await producer.publish_many(TOPIC, bodies)
    except (ConnectError, PublishUnsent):
        ledger.refused(TOPIC, numbers)
    except PublishUnknown:
        ledger.unanswered(numbers)
    else:
        ledger.acknowledged(TOPIC, numbers)


async def _consume(where: str, channel: str, ledger: Ledger, chance: Random, load: Load, pulse: Pulse) -> None:
    async def handle(message: Message) -> None:
        number = ledger.delivered(TOPIC, channel, message.body, message.attempts, trio.current_time())
        if chance.random() < 0.1:
            longest = load.longest_requeue if load.longest_requeue is not None else load.longest_delay / 2
            delay = chance.choice((0.0, round(chance.uniform(0, longest), 3)))
            ledger.requeueing(TOPIC, channel, number, delay, trio.current_time())
            raise Requeue(delay, backoff=False)
        if message.finish():
            ledger.finishing(TOPIC, channel, number, trio.current_time())

    async with (
        open_consumer(TOPIC, channel, nsqd=where, config=load.config, logger=_QUIET) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_note_lost_connections, consumer, channel, ledger, load, pulse)
        await consumer.run(handle, concurrency=20)


async def _note_lost_connections(consumer: Consumer, channel: str, ledger: Ledger, load: Load, pulse: Pulse) -> None:
    """Note lost connections, each with the age beyond which all its answers were certainly read.

    Each end drops a silent connection after its patience, so an answer that is older than both patiences has been read.
    nsqd counts from when it sent a message, which may be a patience before the client has read and answered it. If this
    process stood still, all of that takes longer.
    """
    async for event in consumer.events():
        if isinstance(event, Disconnected):
            now = trio.current_time()
            patience = load.patience + pulse.longest_gap(since=now - load.msg_timeout)
            lost = LostConnection(since=now - 2 * patience, until=now, timeout=load.msg_timeout - patience)
            ledger.connection_lost(TOPIC, channel, lost)


class Pulse:
    """Notes when this process, and with it all clients, did not run: on a busy machine, or stopped."""

    def __init__(self) -> None:
        self._last = trio.current_time()
        self._gaps: list[tuple[float, float]] = []  # (end, length) of each pause

    async def beat(self) -> None:
        while True:
            self._last = trio.current_time()
            await trio.sleep(_PULSE)
            now = trio.current_time()
            if now - self._last > 2 * _PULSE:
                self._gaps.append((now, now - self._last))

    def longest_gap(self, since: float) -> float:
        now = trio.current_time()
        return max([now - self._last, *(length for at, length in self._gaps if at >= since)])
