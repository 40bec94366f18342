"""A message as its users have it, on trio and on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Self, cast

from nsqclient.core.delivery import Delivery

if TYPE_CHECKING:
    from nsqclient.shell.runtime import Runtime

_SHORTEST_TOUCH: Final = 0.1  # seconds between two touches
_TOUCHES: Final = 2  # in the time after which nsqd would take the message back


class Message(Delivery):
    """A message, delivered once. `async with message:` answers it according to how the block ends.

    Answer it in the loop of its consumer. A handler that runs in a thread gets a copy that may be answered in that
    thread.
    """

    __slots__ = ()

    @asynccontextmanager
    async def keep_alive(self, *, margin: float = 1.0) -> AsyncIterator[Self]:
        """Touch the message while the block runs.

        nsqd takes a message back in the end, however often it is touched. `margin` seconds before that, the block is
        cancelled, and trio.TooSlowError raised on trio or TimeoutError on asyncio.
        """
        runtime = cast("Runtime", self._source.runtime)
        async with runtime.beside(partial(self._touch_for_ever, runtime), self.hard_deadline - margin):
            yield self

    async def _touch_for_ever(self, runtime: Runtime) -> None:
        while runtime.clock() < self.hard_deadline and self.answered == "no":
            self.touch()
            await runtime.sleep(max(_SHORTEST_TOUCH, (self.deadline - runtime.clock()) / _TOUCHES))
