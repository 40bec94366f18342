"""CORE of to_nsq: the records in a stream of bytes."""

from __future__ import annotations

from collections.abc import Sequence


class RecordSplitter:
    """Cuts at each delimiter; nothing is a record between two of them. A record may come in many pieces."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._begun: list[bytes] = []

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The records that end in this piece, the empty ones included: they count for `--rate`."""
        first, *others = data.split(self._delimiter)
        self._begun.append(first)
        if not others:
            return ()
        records = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return records

    def end(self) -> bytes:
        """What stands behind the last delimiter."""
        return b"".join(self._begun)
