"""Tests under trio, with a clock that jumps to whatever is waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import trio
import trio.testing

P = ParamSpec("P")

_LONGEST = 36_000.0  # seconds on the clock that jumps: a test that waits for ever ends


def jumping(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Nothing may wait for the outside: the clock would run on."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def limited() -> None:
            with trio.fail_after(_LONGEST):
                await test(*arguments, **named)

        trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))

    return run
