"""A consumer: the tasks around `Consumption`. On trio and on asyncio.

services, which run until the end of the block of `open_consumer`
    ticks            backoff and redistribution
    dead letters
    nsqds            of each topic: subscription.py
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from nsqclient.core.consumption import Consumption, check_names
from nsqclient.core.delivery import only_one
from nsqclient.core.errors import GiveUp, Requeue
from nsqclient.core.shares import checked_weights
from nsqclient.core.topics import SeveralTopics, checked_topics
from nsqclient.shell.batches import Batch, Batches
from nsqclient.shell.identity import our_identity
from nsqclient.shell.log import logging_events
from nsqclient.shell.message import Message
from nsqclient.shell.producer import Producer
from nsqclient.shell.runtime import Flag, within
from nsqclient.shell.sources import Sources
from nsqclient.shell.subscribers import Subscribers
from nsqclient.shell.subscription import Dials, Subscription

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.consumption import Together
    from nsqclient.core.events import Event
    from nsqclient.core.stats import ConsumerStats
    from nsqclient.shell.runtime import CancelScope, ClientTasks, Runtime
    from nsqclient.shell.targets import Target

_REQUEUE_TIMEOUT: Final = 1.0  # seconds that a cancelled consumer has to requeue its messages
_DEAD_LETTER_TIMEOUT: Final = 30.0
_TURN: Final = 0.001  # seconds of handing out messages before other tasks get a chance

AsyncHandler = Callable[[Message], Awaitable[None]]
Handler = AsyncHandler | Callable[[Message], None]
DeadLetter = str | AsyncHandler


@asynccontextmanager
async def opened_consumer(
    make_runtime: Callable[[], Runtime],
    topic: str | Sequence[str],
    channel: str,
    *,
    weights: Sequence[float] | None,
    nsqd: Sequence[Target] | Target,
    lookupd: Sequence[str] | str,
    config: Config,
    resolve: Callable[[str], str] | None,
    discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None,
    dead_letter: DeadLetter | None,
    startup: Literal["background", "require"],
    drop_unlisted_after: float | None,
    logger: logging.Logger,
) -> AsyncIterator[Consumer]:
    """Open a consumer. `nsqclient.open_consumer` describes the arguments."""
    runtime = make_runtime()
    consumer = Consumer(
        runtime,
        topic,
        channel,
        Sources(
            nsqd if isinstance(nsqd, Sequence) and not isinstance(nsqd, str) else [nsqd],
            [lookupd] if isinstance(lookupd, str) else lookupd,
            resolve=resolve,
            discovery_filter=discovery_filter,
        ),
        weights=weights,
        config=config,
        dead_letter=dead_letter,
        drop_unlisted_after=drop_unlisted_after,
        logger=logger,
    )
    async with consumer._running(startup):
        yield consumer


class Consumer:
    """Made by `open_consumer`. Any number of tasks may iterate over it; each message goes to one of them.

    Iteration ends after `stop`. It raises ProtocolError or AuthError if the consumer can never get a message. Use it in
    the trio or asyncio loop in which you opened it. In other threads you can only answer messages, and only in the
    handler of `run`.

    `topics` are its topics, and `topic` is their names, separated by commas.
    """

    def __init__(
        self,
        runtime: Runtime,
        topic: str | Sequence[str],
        channel: str,
        sources: Sources[Target],
        *,
        weights: Sequence[float] | None,
        config: Config,
        dead_letter: DeadLetter | None,
        drop_unlisted_after: float | None,
        logger: logging.Logger,
    ) -> None:
        self.topics = checked_topics(topic)
        for name in self.topics:
            check_names(name, channel, config)
        weights = checked_weights(weights, self.topics)
        sources.check()
        self.topic = ",".join(self.topics)
        self.channel = channel
        self.config = config
        self._runtime = runtime
        self._logger = logger
        self._log = logging_events(logger, f"[{self.topic}/{channel}] ")
        self._random = Random()
        self._changed = runtime.parking_lot()  # woken when an nsqd's task or connection has ended
        dials = Dials(runtime, config)
        self._subscriptions = [
            Subscription(
                runtime,
                name,
                sources,
                config,
                random=self._random,
                emit=self._emit,
                dials=dials,
                changed=self._changed,
                drop_unlisted_after=drop_unlisted_after,
            )
            for name in self.topics
        ]
        self._has_dead_letters = dead_letter is not None
        self._core = (
            self._consumption(0)
            if len(self.topics) == 1
            else SeveralTopics(weights, config, self._consumption, clock=runtime.clock, random=self._random)
        )
        self._queue = self._core.queue
        self._turn_ends = 0.0  # when to let other tasks run, on the real clock
        self._sources = sources
        self._dead_letter = dead_letter
        self._subscribers = Subscribers(runtime)
        self._arrivals = runtime.parking_lot()
        self._ticks = Flag(runtime)
        self._dead_letters_arrived = Flag(runtime)
        self._drained_by = inf  # the deadline for handlers
        self._handling: set[CancelScope] = set()  # of each `run`
        self._tasks: ClientTasks | None = None
        self._dead_letter_producers: dict[str, Producer] = {}  # for dead letters, by nsqd

    def _consumption(self, number: int, *, together: Together | None = None) -> Consumption:
        """Return the core of a topic. If it shares `max_in_flight` with others, it begins with nothing."""
        subscription = self._subscriptions[number]
        return Consumption(
            subscription.topic,
            self.channel,
            self.config if together is None else replace(self.config, max_in_flight=0),
            our_identity(),
            clock=self._runtime.clock,
            notify=self._notify,
            emit=subscription.emit,
            random=self._random,
            delivery=Message,
            has_dead_letters=self._has_dead_letters,
            runtime=self._runtime,
            together=together,
        )

    # Messages, one by one

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        # A checkpoint for each message would cost too much, so we make one every _TURN seconds.
        if self._queue and monotonic() < self._turn_ends:
            message = self._queue.popleft()
            if message.answered == "no":
                return cast(Message, message)
        return await self._next()

    async def _next(self) -> Message:
        await self._runtime.checkpoint()
        while (message := self._core.take()) is None:
            if self._core.failure is not None:
                raise self._core.failure
            if self._core.is_stopping:
                raise StopAsyncIteration
            await self._arrivals.park()
        self._turn_ends = monotonic() + _TURN
        return cast(Message, message)

    # Handlers

    async def run(self, handler: Handler, *, concurrency: int = 1, thread_limiter: Any = None) -> None:
        """Call `handler` with each message, `concurrency` at a time, until `stop` and the end of the last call.

        A plain function runs in a thread. If the handler returns, the message is finished. If it raises, the exception
        decides: Requeue, GiveUp, or any other. Cancelling `run` cancels the handlers and requeues their messages, and
        so does the end of `drain_timeout` after `stop`. Threads can't be cancelled. `thread_limiter` limits the
        threads: on trio a trio.CapacityLimiter, on asyncio a concurrent.futures.Executor.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency of {concurrency}")
        if self._core.max_in_flight > 4 * concurrency and concurrency > 1:
            self._logger.info(
                "[%s/%s] %d messages may wait here for %d handlers, while their timeout runs",
                self.topic,
                self.channel,
                self._core.max_in_flight,
                concurrency,
            )
        call = cast(AsyncHandler, handler if is_async(handler) else partial(self._in_thread, handler, thread_limiter))
        scope = self._runtime.scope(self._drained_by)
        self._handling.add(scope)
        try:
            await scope.run(partial(self._handle_all, call, concurrency), None)
        finally:
            self._handling.remove(scope)

    async def _handle_all(self, call: AsyncHandler, concurrency: int) -> None:
        await self._runtime.together([partial(self._work, call)] * concurrency)

    async def _in_thread(self, handler: Callable[[Message], Any], limiter: Any, message: Message) -> None:
        await self._runtime.call_in_thread(handler, message, limiter)

    async def _work(self, call: Callable[[Message], Awaitable[None]]) -> None:
        async for message in self:
            try:
                await call(message)
            except Exception as error:
                self._failed(message, error)
            except BaseException as error:
                if self._runtime.is_stray(error):
                    self._failed(message, _cancelled_elsewhere(error))
                    continue
                rest = message.answer_for(error)
                if rest is error:
                    raise
                if rest is not None:
                    raise rest from None
            else:
                if message.auto_response:
                    message.finish()

    def _failed(self, message: Message, error: Exception) -> None:
        alone = only_one(error)
        if isinstance(alone, GiveUp):
            self._core.give_up(message, alone.reason or "its handler says so")
            return
        if not isinstance(alone, Requeue):
            text = "[%s/%s] Handler returned error (%s) for msg %s"
            self._logger.error(text, message.topic, self.channel, error, message.id, exc_info=error)
        message.answer_for(error)

    async def _handle_dead_letters(self, handle: Callable[[Message], Awaitable[None]]) -> None:
        while self._core.dead_letters:
            message, _ = self._core.dead_letters.popleft()
            try:
                await handle(cast(Message, message))
            except BaseException as error:
                if not isinstance(error, Exception) and not self._runtime.is_stray(error):
                    raise
                text = "[%s/%s] dead letter failed for msg %s, requeued"
                self._logger.exception(text, message.topic, self.channel, message.id, exc_info=error)
                message.requeue()
            else:
                self._core.finish_dead_letter(message)

    # Batches

    def batches(self, max_size: int, max_wait: float) -> AsyncIterator[Batch[Message]]:
        """Yield up to `max_size` messages at a time.

        A batch is smaller if `max_wait` seconds have passed since its first message, or if no more can come until you
        answer some.
        """
        return Batches(self, max_size, max_wait, within=self._within)

    async def _within(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        await within(self._runtime, seconds, work, None)

    @property
    def has_waiting(self) -> bool:
        """True if a message is available at once."""
        return bool(self._queue)

    # Flow control

    def pause(self) -> None:
        """Receive no new messages until `resume`. You can still answer messages that were already delivered."""
        self._core.pause()

    def resume(self) -> None:
        """Receive messages again."""
        self._core.resume()

    @property
    def max_in_flight(self) -> int:
        """The maximum number of messages in flight here, of all nsqds and topics together."""
        return self._core.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Change `max_in_flight` at once. Raise ValueError for a negative number."""
        self._core.set_max_in_flight(count)

    # Figures

    def is_starved(self) -> bool:
        """Return True if no message is waiting here and some nsqd sends no more until you answer messages."""
        return self._core.is_starved()

    def stats(self) -> ConsumerStats:
        """Return the current figures."""
        return self._core.stats()

    def events(self) -> AsyncIterator[Event]:
        """Yield events from now on. If a thousand events are waiting for you, further ones are dropped."""
        return self._subscribers.subscribe()

    # Stop

    def stop(self) -> None:
        """Drain: iteration and `run` end once the messages in your hands are done. You can call it again."""
        if not self._core.is_stopping:
            self._drained_by = self._runtime.clock() + self.config.drain_timeout
            for scope in self._handling:
                scope.set_deadline(self._drained_by)
        self._core.stop()
        for subscription in self._subscriptions:
            subscription.stop()

    # --- from the core

    def _notify(self) -> None:
        core = self._core
        if core.is_stopping or core.failure is not None:
            self._arrivals.unpark_all()
        elif core.queue:
            self._arrivals.unpark(count=len(core.queue))
        if core.dead_letters:
            self._dead_letters_arrived.set()
        if core.needs_tick:
            self._ticks.set()

    def _emit(self, event: Event) -> None:
        self._log(event)
        self._subscribers.publish(event)

    # --- services

    @asynccontextmanager
    async def _running(self, startup: Literal["background", "require"]) -> AsyncIterator[None]:
        """Consume until the block ends, and then until all messages are answered."""
        try:
            async with self._runtime.tasks(self._failed_to_go_on) as tasks:
                try:
                    self._start(tasks)
                    if startup == "require":
                        await self._wait_for_start()
                    yield
                    self.stop()
                    await within(self._runtime, self.config.drain_timeout, self._wait_until_drained, None)
                finally:
                    await self._shut_down()
        finally:
            self._subscribers.close()

    def _start(self, tasks: ClientTasks) -> None:
        self._tasks = tasks
        tasks.start(self._keep_time)
        if self._dead_letter is not None:
            tasks.start(partial(self._serve_dead_letters, self._dead_letter))
        for subscription, part in zip(self._subscriptions, self._core.parts, strict=True):
            subscription.start(part, tasks)

    def _our_tasks(self) -> ClientTasks:
        assert self._tasks is not None
        return self._tasks

    def _failed_to_go_on(self, error: BaseException) -> None:
        """Wake everything that waits for messages, because a task has failed."""
        self._core.failure = error
        self._notify()

    async def _wait_for_start(self) -> None:
        for subscription in self._subscriptions:
            await subscription.wait_for_start()

    async def _keep_time(self) -> None:
        while True:
            if self._core.failure is not None:
                raise self._core.failure
            await self._runtime.scope(self._core.next_tick()).run(self._ticks.wait, None)
            self._ticks.clear()
            self._core.tick(self._runtime.clock())

    async def _wait_until_drained(self) -> None:
        while self._core.connections or any(subscription.nodes for subscription in self._subscriptions):
            await self._changed.park()

    async def _shut_down(self) -> None:
        """Requeue all unanswered messages, however the consumer ended."""
        self.stop()
        self._core.abandon()
        until = self._runtime.clock() + _REQUEUE_TIMEOUT
        await self._runtime.scope(until, is_shielded=True).run(self._wait_until_drained, None)

    # --- dead letters

    async def _serve_dead_letters(self, dead_letter: DeadLetter) -> None:
        handle = dead_letter if callable(dead_letter) else partial(self._publish_dead, dead_letter)
        while True:
            await self._dead_letters_arrived.wait()
            self._dead_letters_arrived.clear()
            await self._handle_dead_letters(handle)

    async def _publish_dead(self, topic: str, message: Message) -> None:
        """Publish a dead letter to the nsqd that the message came from."""
        producer = self._dead_letter_producers.get(message.nsqd)
        if producer is None:
            target = self._sources.target(message.nsqd)
            producer = Producer(self._runtime, [target], config=self.config, logger=self._logger)
            self._dead_letter_producers[message.nsqd] = producer
            producer._start(self._our_tasks())
        await producer.publish(topic, message.body, timeout=_DEAD_LETTER_TIMEOUT)


def _cancelled_elsewhere(error: BaseException) -> RuntimeError:
    """Return the error of a handler that wasn't cancelled but awaited something that was."""
    failure = RuntimeError("it awaited something that was cancelled")
    failure.__cause__ = error
    return failure


def is_async(handler: Callable[..., Any]) -> bool:
    """Return True if a handler has to be awaited."""
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
