"""How HTTP handlers call the broker.

Handlers run under an asyncio server. The broker never awaits, so handlers call it directly. A handler makes its
changes within one turn (docs/decisions/0001). Where NSQ's response promises durability, the handler then waits for the
disk with `run_trio`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from nsqcommon.http_api import ClientGone, HttpError
from nsqcommon.turn import Turn, in_turn
from nsqd.broker.store import NotSynced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nsqcommon.http_api import Request
    from nsqd.broker.batch import Receipt
    from nsqd.broker.broker import Broker

log = logging.getLogger(__name__)


class DurableTurn(Turn, Protocol):
    async def durable(self, *topics: str) -> None:
        """Wait until all changes made so far, and all messages of these topics, are on disk. Call this from trio."""


class Sliced(Protocol):
    """Work that would block other clients if it ran in one go."""

    is_over: bool

    def step(self) -> None:
        """Work for a few milliseconds, within a turn."""

    def end(self) -> None:
        """Clean up, whether the work is complete or not. Called once."""


class Bridge(Protocol):
    """Runs a trio function and awaits it from a handler: `nsqcommon.web.run_trio`."""

    async def __call__(self, function: Callable[[], Awaitable[None]], /) -> None: ...


class ClientLeft(ClientGone):
    """The client has disconnected during a long call. The slices that have run are not undone."""


class Calls:
    """Calls into the broker: in a turn, journaled, in slices, or durable."""

    def __init__(self, broker: Broker, turn: DurableTurn, run_trio: Bridge) -> None:
        self.broker = broker
        self._turn = turn
        self._run_trio = run_trio

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Enter a turn for synchronous calls. When it ends, their results are written, delivered and sent."""
        with in_turn(self._turn):
            yield

    @contextmanager
    def journaled_turn(self) -> Iterator[None]:
        """Enter a turn whose changes are in the journal when it ends. Raises a 500 if the disk refuses them."""
        broker = self.broker
        changes_before = broker.turn.journal.urgent_changes
        with self.turn():
            yield
            promise = broker.promise() if broker.turn.journal.urgent_changes != changes_before else None
        if promise is not None and promise.error is not None:
            raise _not_on_disk(promise.error)

    async def in_slices(
        self, request: Request, work: Sliced, rest: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Do long work in slices, each in its own turn, so that other clients are served in between.

        Work that has to wait for something between two slices, such as the disk, does so in `rest`.
        Raises a 500 if the disk refuses a slice, and ClientLeft if the client has gone. Both stop the work.
        """
        gone: asyncio.Future[None] | None = None
        try:
            while True:
                with self.journaled_turn():
                    work.step()
                if work.is_over:
                    break
                if gone is None:  # work of a single slice does not need it
                    gone = asyncio.ensure_future(request.wait_until_gone())
                await (asyncio.sleep(0) if rest is None else rest())
                if request.is_gone:
                    raise ClientLeft
        finally:
            work.end()
            if gone is not None:
                gone.cancel()

    async def durable(self, *topics: str) -> None:
        """Wait until all changes so far, and all messages of these topics, are on disk. Raises a 500 if the disk refuses."""
        try:
            await self._run_trio(partial(self._turn.durable, *topics))
        except NotSynced as error:
            raise _not_on_disk(error) from error

    async def settled(self, receipt: Receipt) -> None:
        if not receipt.settled:
            event = trio.Event()
            receipt.when_settled(event.set)
            await self._run_trio(event.wait)


def _not_on_disk(cause: object) -> HttpError:
    """Log the cause, and return a 500. The change is in effect, and is written once the disk works again."""
    log.error("change not yet on disk error=%s", cause)
    return HttpError(500, "INTERNAL_ERROR")
