"""Counts the entries of a channel that somebody looks at, on the pure core as well as on the compiled one.

Neither build lets a test put itself between two lines of a core. But both work on the entries that they find: numbers
that count how often somebody unpacks them, and dictionaries that count what somebody goes through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.deferred_queue import DeferredQueue

T = TypeVar("T")


class Looks:
    """How many entries were looked at, and how many at most between two turns of a loop."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0
        self._before = 0
        self._number = _counted_numbers(self)
        self._dictionary = _counted_dictionaries(self)

    def turn(self) -> None:
        self.most = max(self.most, self.count - self._before)
        self._before = self.count

    def watch(self, channel: Channel) -> None:
        """Count from now on what somebody looks at in this channel."""
        retries, deferred, buried = channel.ledger.retries, channel.ledger.deferred, channel.buried_queue.buried
        retries._queue = deque(self.counted(it) for it in retries._queue)
        self.watch_deferred(deferred)
        channel.in_flight._entries = self.dictionary(channel.in_flight._entries)
        for number, block in buried._blocks.items():
            buried._blocks[number] = self.dictionary(block)

    def watch_deferred(self, deferred: DeferredQueue) -> None:
        deferred._heap = [self.counted(it) for it in deferred._heap]
        for blocks in (deferred._blocks, deferred._former):
            for at, (_, place, block) in enumerate(blocks):
                entries = [self.counted(it) for it in block]
                blocks[at] = entries[place], place, entries

    def counted(self, number: int) -> int:
        return self._number(number)

    def dictionary(self, entries: dict[Any, T]) -> dict[Any, T]:
        return self._dictionary(entries)

    def through(self, entries: Iterator[T]) -> Iterator[T]:
        for entry in entries:
            self.count += 1
            yield entry

    def during(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a request beside somebody who wants every other turn."""

        async def both() -> T:
            request = asyncio.ensure_future(coroutine)
            while not request.done():
                self.turn()
                await asyncio.sleep(0)
            self.turn()
            return await request

        return asyncio.run(both())


def _counted_numbers(looks: Looks) -> type[int]:
    class Counted(int):
        def __rshift__(self, bits: int) -> int:
            looks.count += 1
            return int(self) >> bits

    return Counted


def _counted_dictionaries(looks: Looks) -> type[dict[Any, Any]]:
    class Counted(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            return looks.through(super().__iter__())

        def values(self) -> Iterator[Any]:  # type: ignore[override]
            return looks.through(iter(super().values()))

        def items(self) -> Iterator[tuple[Any, Any]]:  # type: ignore[override]
            return looks.through(iter(super().items()))

    return Counted
