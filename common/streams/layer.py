"""What all layers have in common."""

from __future__ import annotations

from typing import Protocol


class StreamError(Exception):
    """What the peer sent makes no sense on this layer; the text is for a log."""


class Layer(Protocol):
    """One direction of thinking for both ends: `encode` what goes out, `decode` what came in."""

    def encode(self, data: bytes) -> bytes:
        """What the peer needs to see all of `data`; nothing is held back."""

    def decode(self, data: bytes) -> bytes:
        """What `data`, and what came before it, says so far. Raises StreamError.

        It may stop where the result grows large: `has_more` tells, and `decode(b"")` goes on.
        """

    @property
    def has_more(self) -> bool: ...
