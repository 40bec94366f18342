"""A file of all hits of a search, as JSON lines: one per message, and a last one that says where the search ended.

We build the file while sending it. Each step of the search begins when the previous step's hits have been sent, so only
the hits of one step are in memory, however long the history and however slow the reader. A file without its last line
is incomplete.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.messages.model import message_json, progress_json

if TYPE_CHECKING:
    from nsqadmin.messages.model import Gap, SearchResult
    from nsqadmin.messages.searching import Search

_STEP: Final = 5000  # hits; the searcher limits their bytes
_SECONDS: Final = 10.0  # of one step; we only notice after it that a reader has left
_PIECE: Final = 50  # lines to send at once
_MOST_GAPS: Final = 1000


async def lines(
    step: Callable[[Search], Awaitable[SearchResult]],
    search: Search,
    *,
    most: int | None,
    began: float,
    raw: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[bytes, None]:
    """Yield the lines for up to `most` hits. A forward search ends at messages that were published after `began`.

    With `raw`, bodies are as they were published. Once `is_over` returns True, nothing more is sent: its reader has left,
    or the session has ended.
    """
    hits = 0
    gaps: dict[Gap, None] = {}
    while True:
        limit = _STEP if most is None else min(_STEP, most - hits)
        found = await step(replace(search, limit=limit, seconds=_SECONDS))
        hits += len(found.messages)
        gaps |= dict.fromkeys(found.gaps)
        for at in range(0, len(found.messages), _PIECE):
            if is_over():
                return
            piece = found.messages[at : at + _PIECE]
            yield b"".join(_line(message_json(message, most=None, raw=raw)) for message in piece)
        is_at_now = not found.newest_first and found.reached is not None and found.reached > began
        if not found.goes_on or hits == most or is_at_now:
            break
        search = replace(search, cursor=found.cursor)
        if is_over():
            return
    end = replace(found, gaps=tuple(gaps)[:_MOST_GAPS])
    yield _line({"end": {"hits": hits, **progress_json(end)}})


def _line(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
