"""Streams a list of messages as lines of JSON, piece by piece, so that a long list doesn't block other clients."""

from __future__ import annotations

import asyncio
import json as plain_json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from nsqcommon.http_api import V1, Stream, handler_slices
from nsqcommon.wire.history import NDJSON

MOST_LINES: Final = 10_000
LINES: Final = 100  # the default `limit`
_PIECE: Final = 64 * 1024  # bytes to collect before we send them

T = TypeVar("T")

_encode: Final = plain_json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Lines(Generic[T]):
    """Generates the lines of one response."""

    def __init__(
        self, found: Iterator[T | None], limit: int, describe: Callable[[T], Awaitable[Mapping[str, object] | None]]
    ) -> None:
        """`found` yields None to give other handlers a turn. `describe` returns None to skip an item."""
        self._found = found
        self._left = limit
        self._describe = describe
        self._slices = handler_slices()

    def stream(self) -> Stream:
        return Stream(((b"content-type", NDJSON.encode()), V1), self._next_piece, self._close)

    async def _next_piece(self) -> bytes | None:
        lines: list[bytes] = []
        size = 0
        while self._left and size < _PIECE:
            try:
                one = next(self._found)
            except StopIteration:
                break
            if one is None:
                await asyncio.sleep(0)
            elif (members := await self._describe(one)) is not None:
                lines.append(_encode(members).encode("utf-8", "replace") + b"\n")
                size += len(lines[-1])
                self._left -= 1
                await self._slices.rest()
        return b"".join(lines) or None

    async def _close(self) -> None:
        self._found = iter(())
