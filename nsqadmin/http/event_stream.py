"""An answer that is built while we send it, such as server-sent events.

It ends with its source, when the peer leaves, or when the peer stops reading.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from starlette.responses import Response

from nsqcommon.http_api import ABORT, ENDS_WITH_PEER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

_STALLED: Final = 60.0  # seconds without reading after which we drop a peer
_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'), ensure_ascii=False)}\n\n".encode(
        "utf-8", "replace"
    )


class Lease(Protocol):
    """The session of the user who gets the answer, in `request.state.lease`."""

    def seconds_left(self, *, until_asking: bool) -> float: ...

    def watch(self, close: Callable[[], None]) -> Callable[[], None]:
        """Call `close` when the session ends. Return the function that undoes this."""
        ...


class EventStream(Response):
    """Sends the items of an iterator as an answer."""

    def __init__(
        self,
        events: Callable[[], AsyncIterator[bytes]],
        *,
        close: Callable[[], None],
        is_reopened: bool = False,
        headers: Mapping[str, str] = _HEADERS,
    ) -> None:
        """`close` is called when the peer leaves, to end the iterator, and always after the answer.

        It's also called when the user's session ends. Browsers open some streams again by themselves (`is_reopened`):
        such a one also ends when the session has to be confirmed, because only a request can do that.
        """
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._is_reopened = is_reopened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ENDS_WITH_PEER] = True  # a peer that has closed its sending half no longer reads a stream
        leaving = asyncio.ensure_future(self._wait_until_gone(receive))
        lease: Lease | None = scope.get("state", {}).get("lease")
        stop_watching = lease.watch(self._close) if lease is not None else None
        ending = asyncio.ensure_future(self._end_with(lease)) if lease is not None else None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(cast("AsyncGenerator[bytes, None]", self._events())) as events:
                async for piece in events:
                    if leaving.done():
                        return
                    body = {"type": "http.response.body", "body": piece, "more_body": True}
                    await asyncio.wait_for(send(body), _STALLED)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            scope[ABORT]()  # the peer isn't reading, so we couldn't send the end of the answer either
        finally:
            leaving.cancel()
            if ending is not None:
                ending.cancel()
            if stop_watching is not None:
                stop_watching()
            self._close()

    async def _end_with(self, lease: Lease) -> None:
        # Other requests may confirm the session meanwhile, so there may be more time left than we saw.
        while (left := lease.seconds_left(until_asking=self._is_reopened)) > 0:  # noqa: ASYNC110  # no event to wait for
            await asyncio.sleep(left)
        self._close()

    async def _wait_until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._close()
