"""The way of HTTP's handlers into the broker.

Handlers run under an asyncio server. The broker awaits nothing, so they call it directly. A handler that changes
something does so within one turn (docs/decisions/0001), and awaits the disk through `run_trio` where NSQ's answer
promises it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
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
    async def durable(self) -> None:
        """Wait until everything decided so far is on disk. Call this from trio."""


class Sliced(Protocol):
    """Work that would hold others up if it were done at once."""

    is_over: bool

    def step(self) -> None:
        """Do some milliseconds of it, within a turn."""

    def end(self) -> None:
        """Forget it, complete or not. Called once."""


class Bridge(Protocol):
    """Awaits a trio function from a handler: `nsqcommon.web.run_trio`."""

    async def __call__(self, function: Callable[[], Awaitable[None]], /) -> None: ...


class GoneMeanwhile(ClientGone):
    """The client has left while its work was under way. What was done stays done."""


class Calls:
    """The handlers' way into the broker."""

    def __init__(self, broker: Broker, turn: DurableTurn, run_trio: Bridge) -> None:
        self.broker = broker
        self._turn = turn
        self._run_trio = run_trio

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Enter a turn for synchronous calls. Its end writes, delivers and sends what they have decided."""
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

    async def in_slices(self, request: Request, work: Sliced) -> None:
        """Do long work, each slice in a turn of its own, until it is over. Others have their turns in between.

        Raises a 500 if the disk refuses a slice, and GoneMeanwhile if the client has gone: then it ends where it is.
        """
        gone: asyncio.Future[None] | None = None
        try:
            while True:
                with self.journaled_turn():
                    work.step()
                if work.is_over:
                    break
                if gone is None:
                    gone = asyncio.ensure_future(request.wait_until_gone())
                await asyncio.sleep(0)
                if request.is_gone:
                    raise GoneMeanwhile
        finally:
            work.end()
            if gone is not None:
                gone.cancel()

    async def durable(self) -> None:
        """Wait until everything decided so far is on disk. Raises a 500 if the disk refuses it."""
        try:
            await self._run_trio(self._turn.durable)
        except NotSynced as error:
            raise _not_on_disk(error) from error

    async def settled(self, receipt: Receipt) -> None:
        if not receipt.settled:
            event = trio.Event()
            receipt.when_settled(event.set)
            await self._run_trio(event.wait)


def _not_on_disk(cause: object) -> HttpError:
    """Return a 500, as NSQ has no better answer. The change is in effect, and is written once the disk works again."""
    log.error("a change is not on disk error=%s", cause)
    return HttpError(500, "INTERNAL_ERROR")
