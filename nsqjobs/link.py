"""One process's access to its nsqds, for libraries with threads as workers.

    publish, counts, empty    plain sockets, in the calling thread
    take, answer              a thread that runs trio, with a consumer for each queue

A process that only publishes has no such thread. A forked process has none of its parent's threads, and must not use
its parent's connections, so it starts from scratch.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, Queue
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import ref

import trio

from nsqclient import NSQError, PublishRejected, Stopped, open_consumer
from nsqclient.blocking import BlockingProducer
from nsqclient.sync import _in_thread  # private: users have no access to the trio thread
from nsqjobs.counts import QueueCounts, counts_of, empty
from nsqjobs.delays import DelayLimit, give_back_early
from nsqjobs.held import HeldMessage, Holding
from nsqjobs.names import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqclient import Consumer, Message
    from nsqclient.sync import _Portal
    from nsqjobs.addresses import Endpoint

_A_DAY: Final = 86400.0  # jobs end on their own, or with the process
_GRACE: Final = 5.0  # seconds for the last answers to reach nsqd


class Link:
    """Publishes and receives. Any thread may use it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.limit = DelayLimit()
        self._producer = BlockingProducer(endpoint.nodes(), config=endpoint.config)
        self._forget()
        os.register_at_fork(after_in_child=partial(_forget_in_child, ref(self)))

    def _forget(self) -> None:
        self._lock = Lock()  # in the parent a thread may have held it that doesn't exist here
        self._portal: _Portal[_Inside] | None = None
        self._stack = ExitStack()

    def _open(self) -> _Portal[_Inside]:
        with self._lock:
            if self._portal is None:
                self._portal = self._stack.enter_context(_in_thread(partial(_open_inside, self.endpoint)))
            return self._portal

    def close(self) -> None:
        """Give back held messages, and disconnect. The next use connects again."""
        with self._lock:
            stack, self._stack, self._portal = self._stack, ExitStack(), None
        try:
            stack.close()
        finally:
            self._producer.close()

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float = 0.0,
        headers: Mapping[str, bytes],
        group: str | None = None,
    ) -> None:
        """Publish a message, and return when nsqd has it. Raises the errors of nsqclient's `Producer.publish`.

        A delay longer than nsqd accepts is shortened; `headers` have the due time.
        """
        while True:
            shortened, marked = self.limit.shorten(delay), self.limit.marked(headers, delay)
            try:
                return self._producer.publish(topic, body, delay=shortened, headers=marked, group=group)
            except PublishRejected as error:
                if not self.limit.learn(error, delay):
                    raise

    def counts(self, topic: str) -> QueueCounts:
        """Return how many messages all nsqds have. Raise NSQError if one doesn't answer."""
        return counts_of(self._producer, topic, CHANNEL)

    def empty(self, topic: str) -> None:
        """Drop waiting, deferred and in-flight messages. Raise NSQError if an nsqd fails."""
        empty(self._producer, topic, CHANNEL)

    def subscribe(self, topic: str, *, prefetch: int, wake: Callable[[], object] = lambda: None) -> Subscription:
        """Start receiving messages, up to `prefetch` at a time.

        `wake` is called in another thread when `take` has something to return or raise.
        """
        portal = self._open()
        subscription = Subscription(topic, prefetch, portal.client, portal.token, wake)
        portal.look(partial(portal.client.start, subscription))
        return subscription


def _forget_in_child(link: ref[Link]) -> None:
    if (it := link()) is not None:
        it._forget()


class _Inside:
    """The part of a link in the trio thread."""

    def __init__(self, endpoint: Endpoint, nursery: trio.Nursery) -> None:
        self.endpoint = endpoint
        token = trio.lowlevel.current_trio_token()
        self.holding = Holding(lambda settle: token.run_sync_soon(settle, idempotent=True))
        self._nursery = nursery
        self._subscriptions: set[Subscription] = set()
        self._ended = trio.lowlevel.ParkingLot()

    def start(self, subscription: Subscription) -> None:
        self._subscriptions.add(subscription)
        self._nursery.start_soon(self._run, subscription)

    async def _run(self, subscription: Subscription) -> None:
        try:
            await subscription.run()
        finally:
            self._subscriptions.remove(subscription)
            self._ended.unpark_all()

    async def stop(self) -> None:
        """End the subscriptions, give back messages of running jobs, and wait until nsqd has all answers."""
        for subscription in self._subscriptions:
            subscription.stop()
        for held in self.holding:
            held.give_back()
        self.holding.settle()
        with trio.move_on_after(_GRACE):
            while self._subscriptions:
                await self._ended.park()


@asynccontextmanager
async def _open_inside(endpoint: Endpoint) -> AsyncIterator[_Inside]:
    async with trio.open_nursery() as nursery:
        inside = _Inside(endpoint, nursery)
        nursery.start_soon(inside.holding.keep)
        yield inside
        await inside.stop()
        nursery.cancel_scope.cancel()


class Subscription:
    """The messages of one queue. Any thread may take them, and answer them even after `close`."""

    def __init__(
        self,
        topic: str,
        prefetch: int,
        inside: _Inside,
        token: trio.lowlevel.TrioToken,
        wake: Callable[[], object],
    ) -> None:
        self.topic = topic
        self._prefetch = prefetch
        self._config = replace(inside.endpoint.config, max_in_flight=prefetch, backoff="none", drain_timeout=_A_DAY)
        self._inside = inside
        self._token = token
        self._wake = wake
        # May contain messages already lost or given back; `take` skips those. None is a wake-up.
        # It is no SimpleQueue because CPython 3.11's may wait for ever if it is asked to wait for a few microseconds.
        self._arrived: Queue[HeldMessage | None] = Queue()
        self._consumer: Consumer | None = None
        self._is_stopped = False
        self._error: NSQError | None = None

    def take(self, timeout: float) -> HeldMessage | None:
        """Return the next message, or None after `timeout` seconds or after `close`.

        Raises NSQError if nothing can ever arrive.
        """
        until = time.monotonic() + timeout
        while True:
            try:
                held = self._arrived.get(timeout=max(until - time.monotonic(), 0.0))
            except Empty:
                held = None
            if held is None:
                if self._error is not None:
                    raise self._error
                return None
            if held.claim():  # otherwise nsqd has it again
                return held

    @property
    def has_arrived(self) -> bool:
        """True if `take` may return or raise something at once."""
        return not self._arrived.empty()

    def set_prefetch(self, count: int) -> None:
        """Change how many messages nsqd may send at a time."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._set_prefetch, count)

    def close(self) -> None:
        """Receive nothing more, and give back untaken messages."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.stop)

    # In the trio thread

    def _set_prefetch(self, count: int) -> None:
        self._prefetch = count
        if self._consumer is not None:
            self._consumer.set_max_in_flight(count)

    def _put(self, held: HeldMessage | None) -> None:
        self._arrived.put(held)
        self._wake()

    def stop(self) -> None:
        self._is_stopped = True
        if self._consumer is not None:
            self._consumer.stop()
        for held in iter(self._arrived_already, None):
            if held.claim():
                held.give_back()
        self._inside.holding.settle()
        self._put(None)

    def _arrived_already(self) -> HeldMessage | None:
        try:
            return self._arrived.get_nowait()
        except Empty:
            return None

    async def run(self) -> None:
        endpoint = self._inside.endpoint
        try:
            async with open_consumer(
                self.topic, CHANNEL, nsqd=endpoint.nsqd, lookupd=endpoint.lookupd, config=self._config
            ) as self._consumer:
                if self._is_stopped:
                    return
                self._consumer.set_max_in_flight(self._prefetch)
                async for message in self._consumer:
                    self._arrive(message)
        except NSQError as error:
            self._error = error
        finally:
            if not self._is_stopped and self._error is None:  # our bug: `take` must not wait forever
                self._error = Stopped("the thread that receives jobs has failed")
            self._put(None)

    def _arrive(self, message: Message) -> None:
        if give_back_early(message, time.time()):
            return
        if self._is_stopped:
            message.requeue(0, backoff=False, count=False)
        else:
            self._put(self._inside.holding.hold(message))
