"""A message on trio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

import trio

from nsqclient._groups import unwrapped
from nsqclient.core.delivery import Delivery

_SHORTEST_TOUCH: Final = 0.1  # seconds between two touches
_TOUCHES: Final = 2  # in the time after which nsqd would take the message back


class Message(Delivery):
    """A message on trio."""

    __slots__ = ()

    @asynccontextmanager
    async def keep_alive(self, *, margin: float = 1.0) -> AsyncIterator[Self]:
        """Touch the message while the block runs.

        nsqd takes a message back in the end, however often it is touched. `margin` seconds before that, the block is
        cancelled and trio.TooSlowError raised.
        """
        with unwrapped(), trio.fail_at(self.hard_deadline - margin):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._touch_for_ever)
                yield self
                nursery.cancel_scope.cancel()

    async def _touch_for_ever(self) -> None:
        while trio.current_time() < self.hard_deadline and self.answered == "no":
            self.touch()
            await trio.sleep(max(_SHORTEST_TOUCH, (self.deadline - trio.current_time()) / _TOUCHES))
