"""Consumers under test: which commands an nsqd in memory got from them, and handlers that do not handle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

import trio

from nsqclient import Message
from nsqclient.testing import MemoryNSQD


async def until_said(server: MemoryNSQD, *commands: str) -> None:
    await server.wait_until(lambda: set(commands) <= set(server.said()))


def rdys(server: MemoryNSQD) -> list[int]:
    return [int(said.split(" ")[1]) for said in server.said(None, "RDY")]


EventT = TypeVar("EventT")


async def first(happened: AsyncIterator[object], kind: type[EventT]) -> EventT:
    """Return the next event of this kind."""
    async for event in happened:
        if isinstance(event, kind):
            return event
    raise AssertionError("the consumer has ended")


async def never(message: Message) -> None:
    await trio.sleep_forever()


async def failing(message: Message) -> None:
    raise RuntimeError("no luck")
