"""The message class for trio and asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Self, cast

from nsqclient.core.delivery import Delivery

if TYPE_CHECKING:
    from nsqclient.shell.runtime import Runtime

_SHORTEST_TOUCH: Final = 0.1  # seconds between two touches
_TOUCHES: Final = 2  # in one message timeout


class Message(Delivery):
    """One delivery of a message. `async with message:` answers it when the block ends, depending on the error.

    Answer it in the loop of its consumer. A handler in a thread gets a copy, which it answers in that thread.
    """

    __slots__ = ()

    @asynccontextmanager
    async def keep_alive(self, *, margin: float = 1.0) -> AsyncIterator[Self]:
        """Touch the message while the block runs.

        nsqd limits the total time, however often you touch. `margin` seconds before that limit the block is cancelled:
        trio.TooSlowError on trio, TimeoutError on asyncio.
        """
        runtime = cast("Runtime", self._source.runtime)
        async with runtime.beside(partial(self._touch_for_ever, runtime), self.hard_deadline - margin):
            yield self

    async def _touch_for_ever(self, runtime: Runtime) -> None:
        while runtime.clock() < self.hard_deadline and self.answered == "no":
            self.touch()
            await runtime.sleep(max(_SHORTEST_TOUCH, (self.deadline - runtime.clock()) / _TOUCHES))
