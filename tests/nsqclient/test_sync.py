"""Plain calls: what the thread of a producer or consumer does when its caller is interrupted."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from nsqclient import sync
from tests.support.client import TIMEOUT


def test_ctrl_c_while_it_opens_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, was_cancelled = threading.Event(), threading.Event()

    @asynccontextmanager
    async def opening_for_ever() -> AsyncIterator[None]:
        opens.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            was_cancelled.set()
            raise
        yield

    def interrupted(self: object) -> None:
        opens.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(sync._TrioThread, "opened", interrupted)

    def open_it() -> None:
        with pytest.raises(KeyboardInterrupt), sync._in_thread(opening_for_ever):
            pass

    script = threading.Thread(target=open_it, daemon=True)
    script.start()
    script.join(TIMEOUT)
    assert not script.is_alive()
    assert was_cancelled.is_set()


def test_ctrl_c_before_the_thread_has_begun_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    may_begin, has_opened = threading.Event(), threading.Event()
    run = sync._TrioThread.run
    threads: list[threading.Thread] = []

    def run_later(self: sync._TrioThread[None]) -> None:
        threads.append(threading.current_thread())
        may_begin.wait()
        run(self)

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        has_opened.set()
        yield

    def interrupted(self: threading.Thread) -> None:
        start(self)
        raise KeyboardInterrupt

    start = threading.Thread.start
    monkeypatch.setattr(sync._TrioThread, "run", run_later)
    monkeypatch.setattr(threading.Thread, "is_alive", lambda self: False)  # as in `start`, until it has begun
    with monkeypatch.context() as interruption, pytest.raises(KeyboardInterrupt):
        interruption.setattr(threading.Thread, "start", interrupted)
        with sync._in_thread(opened):
            pass
    may_begin.set()
    (thread,) = threads
    thread.join(TIMEOUT)
    assert not has_opened.is_set()


def test_a_thread_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        yield

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"), sync._in_thread(opened):
        pass
