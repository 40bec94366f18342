"""The interface of a layer, and the error that all layers raise."""

from __future__ import annotations

from typing import Protocol


class StreamError(Exception):
    """The peer sent data that this layer can't decode; the text is for a log."""


class Layer(Protocol):
    """Transforms both directions of a stream: `encode` before sending, `decode` after receiving."""

    def encode(self, data: bytes) -> bytes:
        """Return bytes from which the peer can decode all of `data`. Hold nothing back."""

    def decode(self, data: bytes) -> bytes:
        """Decode `data`, together with data left over from earlier calls. Raises StreamError.

        If the result grows large, this may stop early: then `has_more` is true, and `decode(b"")` continues.
        """

    @property
    def has_more(self) -> bool: ...
