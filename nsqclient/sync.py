"""The library for scripts: plain blocking calls. Each producer and consumer has its own thread with trio.

    with nsqclient.sync.producer("127.0.0.1:4150") as producer:
        producer.publish("clicks", b"hello", timeout=2.0)

    with nsqclient.sync.consumer("clicks", "cli", lookupd=["127.0.0.1:4161"]) as consumer:
        for message in consumer.messages(idle_timeout=5.0):
            print(message.body)
            message.finish()

or with a handler, which runs in threads:

    with nsqclient.sync.consumer("clicks", "cli", lookupd=["127.0.0.1:4161"]) as consumer:
        consumer.run(handle, concurrency=4)

A timeout raises TimeoutError. You can answer messages in any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import trio

from nsqclient._trio import open_consumer, open_producer
from nsqclient.core.errors import Stopped
from nsqclient.core.threads import for_thread
from nsqclient.shell.batches import Batch
from nsqclient.shell.consumer import Consumer as AsyncConsumer
from nsqclient.shell.consumer import is_async
from nsqclient.shell.recalling import TIMEOUT

if TYPE_CHECKING:
    from nsqclient.core.publication import Group, Headers
    from nsqclient.core.results import CancelResult, RescheduleResult
    from nsqclient.core.stats import ConsumerStats, ProducerStats
    from nsqclient.shell.message import Message
    from nsqclient.shell.producer import Producer as AsyncProducer

__all__ = ["Consumer", "Producer", "consumer", "producer"]

T = TypeVar("T")
R = TypeVar("R")

_LOOK: Final = 0.2  # Ctrl-C takes effect within this many seconds


@contextmanager
def producer(*arguments: Any, **options: Any) -> Iterator[Producer]:
    """Open a producer, which stops at the end of the block. The arguments are those of nsqclient.open_producer."""
    with _in_thread(partial(open_producer, *arguments, **options)) as portal:
        yield Producer(portal)


@contextmanager
def consumer(*arguments: Any, **options: Any) -> Iterator[Consumer]:
    """Open a consumer, which stops at the end of the block. The arguments are those of nsqclient.open_consumer."""
    with _in_thread(partial(open_consumer, *arguments, **options)) as portal:
        yield Consumer(portal)


class Producer:
    """Made by `producer`. Any number of threads may use it."""

    def __init__(self, portal: _Portal[AsyncProducer]) -> None:
        self._portal = portal

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish a message and return when nsqd has accepted it. Raise TimeoutError after `timeout` seconds.

        `delay`, `key`, `headers`, `group` and the other errors: see nsqclient's producer.
        """
        publish = self._portal.client.publish
        self._portal.call(partial(publish, topic, body, delay=delay, key=key, headers=headers, group=group), timeout)

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        headers: Iterable[Headers] | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish messages together: nsqd accepts all or none of each 5 MiB. Raises the errors of `publish`."""
        publish_many = self._portal.client.publish_many
        self._portal.call(partial(publish_many, topic, list(bodies), key=key, headers=headers, group=group), timeout)

    def ping(self, *, timeout: float | None = None) -> None:
        """Wait for the next heartbeat of each nsqd. Raise ConnectError, Disconnected or TimeoutError."""
        self._portal.call(self._portal.client.ping, timeout)

    @property
    def connected(self) -> bool:
        """True if at least one nsqd has an open connection."""
        return self._portal.look(lambda: self._portal.client.connected)

    def stats(self) -> ProducerStats:
        """Return the current figures."""
        return self._portal.look(self._portal.client.stats)

    def cancel(self, topic: str, key: str, *, channel: str | None = None, timeout: float = TIMEOUT) -> CancelResult:
        """Cancel the message with this key, like `cancel` of nsqclient's producer."""
        cancel = self._portal.client.cancel
        return self._portal.call(partial(cancel, topic, key, channel=channel, timeout=timeout))

    def reschedule(
        self, topic: str, key: str, *, delay: float, channel: str | None = None, timeout: float = TIMEOUT
    ) -> RescheduleResult:
        """Deliver the message with this key `delay` seconds from now, like `reschedule` of nsqclient's producer."""
        reschedule = self._portal.client.reschedule
        return self._portal.call(partial(reschedule, topic, key, delay=delay, channel=channel, timeout=timeout))


class Consumer:
    """Made by `consumer`."""

    def __init__(self, portal: _Portal[AsyncConsumer]) -> None:
        self._portal = portal

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[Message]:
        """Yield messages until `stop`, or until none has arrived for `idle_timeout` seconds."""
        while True:
            try:
                message = self._portal.call(self._next, idle_timeout)
            except TimeoutError:
                return
            if message is None:
                return
            yield for_thread(message, self._portal.answer)

    async def _next(self) -> Message | None:
        return await anext(self._portal.client, None)

    def batches(self, max_size: int, max_wait: float) -> Iterator[Batch[Message]]:
        """Yield up to `max_size` messages at a time until `stop`.

        A batch is smaller if `max_wait` seconds have passed since its first message, or if no more can come until you
        answer some.
        """
        batches = self._portal.client.batches(max_size, max_wait)

        async def next_batch() -> Batch[Message] | None:
            return await anext(batches, None)

        while (batch := self._portal.call(next_batch)) is not None:
            yield Batch(for_thread(message, self._portal.answer) for message in batch)

    def run(self, handler: Callable[[Message], None], *, concurrency: int = 1) -> None:
        """Call `handler` with each message, in `concurrency` threads, until `stop` and the end of the last call.

        If the handler returns, the message is finished. If it raises, the exception decides: Requeue, GiveUp, or any
        other. A handler may call `stop`.
        """
        if is_async(handler):
            raise TypeError(
                "a handler of nsqclient.sync is a plain function; nsqclient and nsqclient.aio take async ones"
            )

        async def run() -> None:
            limiter = trio.CapacityLimiter(max(concurrency, 1))
            await self._portal.client.run(handler, concurrency=concurrency, thread_limiter=limiter)

        self._portal.call(run)

    # Flow control and figures

    def pause(self) -> None:
        """Receive no new messages until `resume`. You can still answer messages that were already delivered."""
        self._portal.look(self._portal.client.pause)

    def resume(self) -> None:
        """Receive messages again."""
        self._portal.look(self._portal.client.resume)

    @property
    def max_in_flight(self) -> int:
        """The maximum number of messages in flight here, of all nsqds and topics together."""
        return self._portal.look(lambda: self._portal.client.max_in_flight)

    def set_max_in_flight(self, count: int) -> None:
        """Change `max_in_flight` at once. Raise ValueError for a negative number."""
        self._portal.look(lambda: self._portal.client.set_max_in_flight(count))

    @property
    def has_waiting(self) -> bool:
        """True if a message is available at once."""
        return self._portal.look(lambda: self._portal.client.has_waiting)

    def is_starved(self) -> bool:
        """Return True if no message is waiting here and some nsqd sends no more until you answer messages."""
        return self._portal.look(self._portal.client.is_starved)

    def stats(self) -> ConsumerStats:
        """Return the current figures."""
        return self._portal.look(self._portal.client.stats)

    def stop(self) -> None:
        """End `messages`. You can call it in any thread."""
        try:
            trio.from_thread.run_sync(self._portal.client.stop, trio_token=self._portal.token)
        except trio.RunFinishedError:
            pass  # the thread has already ended


class _Portal(Generic[T]):
    """Calls into the thread that runs trio."""

    def __init__(self, client: T, token: trio.lowlevel.TrioToken, fatal: Callable[[], BaseException | None]) -> None:
        self.client = client
        self.token = token
        self._fatal = fatal

    def call(self, function: Callable[[], Awaitable[R]], timeout: float | None = None) -> R:
        """Run an async function in the thread and return its result. Raise its errors, or TimeoutError."""

        async def limited() -> R:
            with trio.fail_after(timeout if timeout is not None else float("inf")):
                return await function()

        try:
            return trio.from_thread.run(limited, trio_token=self.token)
        except trio.TooSlowError as error:
            raise TimeoutError(f"not within {timeout} seconds") from error
        except (trio.RunFinishedError, trio.Cancelled):
            raise self._fatal() or Stopped("stopped") from None

    def look(self, function: Callable[[], R]) -> R:
        """Call a plain function in the thread and return its result. Raise Stopped once the thread has ended."""
        try:
            return trio.from_thread.run_sync(function, trio_token=self.token)
        except trio.RunFinishedError:
            raise self._fatal() or Stopped("stopped") from None

    def answer(self, answer: Callable[[], bool]) -> bool:
        """Answer a message in the thread. Return True if that had an effect; False once the thread has ended."""
        try:
            return trio.from_thread.run_sync(answer, trio_token=self.token)
        except trio.RunFinishedError:
            return False


@contextmanager
def _in_thread(open_it: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[_Portal[T]]:
    """Open it in its own thread. At the end, drain and close it, or close it at once if the block raises."""
    trio_thread = _TrioThread(open_it)
    thread = threading.Thread(target=trio_thread.run, name="nsqclient", daemon=True)
    try:
        thread.start()
        yield trio_thread.opened()
    except BaseException:  # Ctrl-C may come anywhere in the block, even before the thread has started
        trio_thread.end(at_once=True)
        if thread.is_alive():
            thread.join()
        raise
    trio_thread.end(at_once=False)
    while thread.is_alive():
        thread.join(_LOOK)
    if trio_thread.error is not None:
        raise trio_thread.error


class _TrioThread(Generic[T]):
    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.error: BaseException | None = None
        self._open = open_it
        self._portal: _Portal[T] | None = None
        self._token: trio.lowlevel.TrioToken | None = None  # None: trio never ran
        self._is_unwanted = False  # `end` was called, perhaps before trio ran
        self._is_settled = threading.Event()  # set once opening has succeeded or failed
        self._end = trio.Event()
        self._scope = trio.CancelScope()

    def opened(self) -> _Portal[T]:
        self._is_settled.wait()
        if self._portal is None:
            assert self.error is not None
            raise self.error
        return self._portal

    def end(self, *, at_once: bool) -> None:
        """End the thread, even while it opens or before it runs."""
        self._is_unwanted = True  # before we read the token: the thread sets the token first, and then reads this
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._scope.cancel if at_once else self._end.set)
            except trio.RunFinishedError:
                pass

    def run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self.error = error
        finally:
            self._is_settled.set()

    async def _live(self) -> None:
        self._token = token = trio.lowlevel.current_trio_token()
        if self._is_unwanted:
            return
        with self._scope:
            async with self._open() as it:
                self._portal = _Portal(it, token, lambda: self.error)
                self._is_settled.set()
                await self._end.wait()
