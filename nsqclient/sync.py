"""The library for scripts: plain calls that wait. Each producer and consumer has a thread of its own with trio in it.

    with nsqclient.sync.producer("127.0.0.1:4150") as producer:
        producer.publish("clicks", b"hello", timeout=2.0)

    with nsqclient.sync.consumer("clicks", "cli", lookupd=["127.0.0.1:4161"]) as consumer:
        for message in consumer.messages(idle_timeout=5.0):
            print(message.body)
            message.finish()

Times that are over raise TimeoutError. Messages may be answered in any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import trio

from nsqclient._consumer import Consumer as TrioConsumer
from nsqclient._consumer import open_consumer
from nsqclient._errors import Stopped
from nsqclient._producer import Producer as TrioProducer
from nsqclient._producer import open_producer
from nsqclient._threads import for_thread

if TYPE_CHECKING:
    from nsqclient._message import Message

__all__ = ["Consumer", "Producer", "consumer", "producer"]

T = TypeVar("T")
R = TypeVar("R")

_LOOK: Final = 0.2  # seconds between two looks at whether somebody has pressed Ctrl-C


@contextmanager
def producer(*arguments: Any, **options: Any) -> Iterator[Producer]:
    """A producer for as long as the block runs; takes what nsqclient.open_producer takes."""
    with _in_thread(partial(open_producer, *arguments, **options)) as portal:
        yield Producer(portal)


@contextmanager
def consumer(*arguments: Any, **options: Any) -> Iterator[Consumer]:
    """A consumer for as long as the block runs; takes what nsqclient.open_consumer takes."""
    with _in_thread(partial(open_consumer, *arguments, **options)) as portal:
        yield Consumer(portal)


class Producer:
    """Made by `producer`. May be used from several threads."""

    def __init__(self, portal: _Portal[TrioProducer]) -> None:
        self._portal = portal

    def publish(self, topic: str, body: bytes, *, delay: float | None = None, timeout: float | None = None) -> None:
        """Returns when nsqd has it. Raises as nsqclient's."""
        self._portal.call(partial(self._portal.it.publish, topic, body, delay=delay), timeout)

    def publish_many(self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
        """All of them, as one, as far as 5 MiB hold them."""
        self._portal.call(partial(self._portal.it.publish_many, topic, list(bodies)), timeout)


class Consumer:
    """Made by `consumer`."""

    def __init__(self, portal: _Portal[TrioConsumer]) -> None:
        self._portal = portal

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[Message]:
        """Messages as they come, until `stop`; also until none has come for `idle_timeout` seconds."""
        while True:
            try:
                message = self._portal.call(self._next, idle_timeout)
            except TimeoutError:
                return
            if message is None:
                return
            yield for_thread(message, self._portal.answer)

    async def _next(self) -> Message | None:
        return await anext(self._portal.it, None)

    def stop(self) -> None:
        """Ends `messages`."""
        try:
            trio.from_thread.run_sync(self._portal.it.stop, trio_token=self._portal.token)
        except trio.RunFinishedError:
            pass  # it has


class _Portal(Generic[T]):
    """The way into the thread."""

    def __init__(self, it: T, token: trio.lowlevel.TrioToken, fatal: Callable[[], BaseException | None]) -> None:
        self.it = it
        self.token = token
        self._fatal = fatal

    def call(self, function: Callable[[], Awaitable[R]], timeout: float | None = None) -> R:
        """Its result. Raises TimeoutError, and what it raises."""

        async def limited() -> R:
            with trio.fail_after(timeout if timeout is not None else float("inf")):
                return await function()

        try:
            return trio.from_thread.run(limited, trio_token=self.token)
        except trio.TooSlowError as error:
            raise TimeoutError(f"not within {timeout} seconds") from error
        except (trio.RunFinishedError, trio.Cancelled):
            raise self._fatal() or Stopped("stopped") from None

    def answer(self, answer: Callable[[], bool]) -> bool:
        """What an answer to a message says; where all is over, that it had no effect."""
        try:
            return trio.from_thread.run_sync(answer, trio_token=self.token)
        except trio.RunFinishedError:
            return False


@contextmanager
def _in_thread(open_it: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[_Portal[T]]:
    """Opens it in a thread of its own, and closes it at the end: drained, or at once where the block raises."""
    life = _Life(open_it)
    thread = threading.Thread(target=life.run, name="nsqclient", daemon=True)
    thread.start()
    try:
        yield life.opened()
    except BaseException:
        life.end(at_once=True)
        thread.join()
        raise
    life.end(at_once=False)
    while thread.is_alive():
        thread.join(_LOOK)
    if life.error is not None:
        raise life.error


class _Life(Generic[T]):
    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.error: BaseException | None = None
        self._open = open_it
        self._portal: _Portal[T] | None = None
        self._is_settled = threading.Event()  # open, or never to be
        self._end = trio.Event()
        self._scope = trio.CancelScope()

    def opened(self) -> _Portal[T]:
        self._is_settled.wait()
        if self._portal is None:
            assert self.error is not None
            raise self.error
        return self._portal

    def end(self, *, at_once: bool) -> None:
        if self._portal is not None:
            try:
                self._portal.token.run_sync_soon(self._scope.cancel if at_once else self._end.set)
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
        with self._scope:
            async with self._open() as it:
                self._portal = _Portal(it, trio.lowlevel.current_trio_token(), lambda: self.error)
                self._is_settled.set()
                await self._end.wait()
