"""Threads for requests to a store that may hang: if you give up a request, you don't have to wait for its end.

`ThreadPoolExecutor` is left when all its calls have ended, and the interpreter waits for its threads when it exits. A store
that can't be reached would keep a start from being stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class DaemonThreads(Generic[T]):
    """Runs calls in up to `most` threads. When you leave it, calls that haven't begun are dropped."""

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[tuple[Future[T], Callable[..., T], tuple[Any, ...]] | None] = SimpleQueue()
        self._waiting: set[Future[T]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for future in list(self._waiting):
            future.cancel()
        for _ in self._threads:
            self._calls.put(None)

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        self._calls.put((future, call, arguments))
        if len(self._threads) < self._most:
            thread = Thread(target=self._serve, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _serve(self) -> None:
        while (next_call := self._calls.get()) is not None:
            future, call, arguments = next_call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = call(*arguments)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)
