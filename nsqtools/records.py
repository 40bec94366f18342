"""CORE of to_nsq: split a stream of bytes into records."""

from __future__ import annotations

from collections.abc import Sequence


class RecordSplitter:
    """Splits at each delimiter. A record may arrive in many pieces. Two adjacent delimiters enclose an empty record."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._begun: list[bytes] = []

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the records that end in this piece, including empty ones, because `--rate` counts them."""
        first, *others = data.split(self._delimiter)
        self._begun.append(first)
        if not others:
            return ()
        records = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return records

    def end(self) -> bytes:
        """Return the bytes after the last delimiter."""
        return b"".join(self._begun)
