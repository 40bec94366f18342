"""Run tests under trio with a clock that jumps to the next deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import trio
import trio.testing

P = ParamSpec("P")

_LONGEST = 36_000.0  # seconds on the jumping clock, after which a test that waits for ever ends


def jumping(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run the test with a clock that jumps.

    It must not wait for anything outside the process, because the clock would run on meanwhile.
    """

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def limited() -> None:
            with trio.fail_after(_LONGEST):
                await test(*arguments, **named)

        trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))

    return run
