"""Long answers over HTTP, made while others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Final

_SLICE: Final = 0.002  # seconds at a stretch


async def in_slices(pieces: Iterable[bytes]) -> bytes:
    """All of them joined, with others' turns in between."""
    taken: list[bytes] = []
    stop = monotonic() + _SLICE
    for piece in pieces:
        if piece:
            taken.append(piece)
        if monotonic() >= stop:
            await asyncio.sleep(0)
            stop = monotonic() + _SLICE
    return b"".join(taken)
