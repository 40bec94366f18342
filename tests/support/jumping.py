"""Run tests under trio with a clock that jumps to the next deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import wraps
from math import inf
from typing import Any, ParamSpec
from unittest.mock import patch

import trio
import trio.testing

P = ParamSpec("P")

_LONGEST = 36_000.0  # seconds on the jumping clock, after which a test that waits for ever ends


def jumping(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run the test with a clock that jumps.

    It must not wait for anything outside the process, because the clock would run on meanwhile; nor for a thread, for
    which there is `run_with_threads`.
    """

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def limited() -> None:
            with trio.fail_after(_LONGEST):
                await test(*arguments, **named)

        trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def jumping_with(*clocks: str) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, None]]:
    """Have the product read the jumping clock as well, where it calls `time.monotonic` by these names."""

    def decorate(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
        @wraps(test)
        def run(*arguments: P.args, **named: P.kwargs) -> None:
            with ExitStack() as stack:
                for clock in clocks:
                    stack.enter_context(patch(clock, trio.current_time))
                jumping(test)(*arguments, **named)

        return run

    return decorate


class _Threads(trio.abc.Instrument):
    """Holds a jumping clock while a thread works for the loop, however long a busy machine takes to run it."""

    def __init__(self) -> None:
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.others: list[Callable[[], bool]] = []
        self._at_work = 0
        self._is_held = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        is_held = self._at_work > 0 or any(is_busy() for is_busy in self.others)
        if is_held != self._is_held:
            self._is_held = is_held
            self.clock.autojump_threshold = inf if is_held else 0

    def counting(self, run_sync: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(run_sync)
        async def counted(*arguments: Any, **named: Any) -> Any:
            self._at_work += 1
            try:
                return await run_sync(*arguments, **named)
            finally:
                self._at_work -= 1

        return counted


_threads: trio.lowlevel.RunVar[_Threads | None] = trio.lowlevel.RunVar("threads", None)


def run_with_threads(test: Callable[[], Awaitable[None]]) -> None:
    """Run the test with a clock that jumps, but never while a thread of `trio.to_thread.run_sync` is at work.

    There is no deadline around it, because the clock jumps to it if everything else waits for ever.
    """
    threads = _Threads()

    async def main() -> None:
        _threads.set(threads)
        await test()

    with patch.object(trio.to_thread, "run_sync", threads.counting(trio.to_thread.run_sync)):
        trio.run(main, clock=threads.clock, instruments=[threads])


def hold_clock_while(is_busy: Callable[[], bool]) -> None:
    """Hold the clock of `run_with_threads` for a thread that gets its work in another way.

    `is_busy` has to become false in a task of the loop. With other clocks this does nothing.
    """
    if threads := _threads.get():
        threads.others.append(is_busy)
