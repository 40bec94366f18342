"""SIGUSR1 is heeded from the moment that nsqd says it is ready: a signal that comes earlier is ignored."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from nsqcommon.options import parse
from nsqd import daemon
from nsqd.drain import Drain, drain_on_signal
from nsqd.options import Options
from tests.support.node import Node

LIMIT = 30.0


def test_the_receiver_is_there_when_it_has_started() -> None:
    drain = Drain(Node().broker, deadline=0.0)

    async def main() -> None:
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                await nursery.start(drain_on_signal, drain)
                assert signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, signal.SIG_IGN)
                signal.raise_signal(signal.SIGUSR1)
                await drain.wait()
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_nsqd_is_ready_only_when_the_receiver_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "tune_garbage_collection", lambda: None)  # which would hold for all tests
    flags = [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    options = parse(Options, flags, {}, "nsqd")
    is_there = False

    async def slowly(drain: Drain, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        nonlocal is_there
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        is_there = True
        task_status.started()

    async def main() -> None:
        end = trio.Event()
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(daemon.run, options, wait_for_shutdown=end.wait, watch_drain_signal=slowly))
                assert is_there
                end.set()

    trio.run(main)
