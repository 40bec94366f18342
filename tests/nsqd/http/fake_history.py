"""A history that has nothing, for tests of other parts of HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nsqd.http import HistoryReads

T = TypeVar("T")


class NoHistory:
    node = "node1"

    def follow(self, follower: Callable[[str], None]) -> None:
        pass

    def find(self, topic: str, *, synced: bool = True) -> None:
        return None


async def at_once(function: Callable[[], T]) -> T:
    return function()


def no_history() -> HistoryReads:
    return HistoryReads(NoHistory(), at_once)
