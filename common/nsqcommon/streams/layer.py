"""The interface and the error that all layers share."""

from __future__ import annotations

from typing import Protocol


class StreamError(Exception):
    """The peer sent data that are invalid on this layer; the text is for a log."""


class Layer(Protocol):
    """Transforms both directions of a stream: `encode` what is sent, `decode` what was received."""

    def encode(self, data: bytes) -> bytes:
        """Return the bytes from which the peer can decode all of `data`; nothing is held back."""

    def decode(self, data: bytes) -> bytes:
        """Return what `data`, together with earlier data, decode to so far. Raise StreamError.

        It may stop when the result grows large: then `has_more` is true, and `decode(b"")` goes on.
        """

    @property
    def has_more(self) -> bool: ...
