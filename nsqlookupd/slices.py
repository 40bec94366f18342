"""Builds long HTTP answers in slices, so that other clients are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Final

_SLICE: Final = 0.002  # seconds before other tasks run


async def in_slices(pieces: Iterable[bytes]) -> bytes:
    """Join the pieces, letting other tasks run after each slice of time."""
    taken: list[bytes] = []
    stop = monotonic() + _SLICE
    for piece in pieces:
        if piece:
            taken.append(piece)
        if monotonic() >= stop:
            await asyncio.sleep(0)
            stop = monotonic() + _SLICE
    return b"".join(taken)
