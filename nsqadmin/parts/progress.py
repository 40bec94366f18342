"""The answer to a form that acts on nodes: progress node by node, and finally the receipt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_PROGRESS: Final = "application/x-ndjson"  # our script accepts it, to show progress while waiting for nodes

Told = Callable[[str, bool], None]  # the address of a node that has answered, and True if it succeeded


async def with_progress(
    request: Request, asked: Sequence[str], carry_out: Callable[[Told], Awaitable[Response]]
) -> Response:
    """Return the receipt that `carry_out` makes; for our script, stream its progress as well.

    If the browser leaves, the action continues.
    """
    if _PROGRESS not in request.headers.get("accept", ""):
        return await carry_out(lambda _, __: None)
    return StreamingResponse(_steps(asked, carry_out), media_type=_PROGRESS)


async def _steps(asked: Sequence[str], carry_out: Callable[[Told], Awaitable[Response]]) -> AsyncIterator[str]:
    """Yield the nodes, each answer when it comes, and finally the receipt; each as a line of JSON."""
    told: asyncio.Queue[tuple[str, bool] | None] = asyncio.Queue()
    work = asyncio.ensure_future(carry_out(lambda address, done: told.put_nowait((address, done))))
    work.add_done_callback(lambda _: told.put_nowait(None))
    yield json.dumps({"asked": asked}) + "\n"
    while (step := await told.get()) is not None:
        yield json.dumps({"step": step[0], "done": step[1]}) + "\n"
    yield json.dumps({"page": bytes((await work).body).decode()}) + "\n"
