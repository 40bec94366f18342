"""Changes of the journal, packed: a start reads a million of them, and unpacked all at once they would take 300 MB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Final

import msgpack

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

_PIECE: Final = 100  # changes that are packed and unpacked together; a single one may hold thousands of numbers


class PackedChanges:
    """A sequence of changes that can be added to and iterated any number of times. Lists come back as tuples."""

    def __init__(self) -> None:
        self._packed = bytearray()  # a single buffer, because many small ones would fragment the memory
        self._borders = [0]

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._pieces())

    def _pieces(self) -> Iterator[tuple[Entry, ...]]:
        with memoryview(self._packed) as packed:
            for start, end in pairwise(self._borders):
                yield msgpack.unpackb(packed[start:end], use_list=False)

    def append(self, change: Entry) -> None:
        self.extend([change])

    def extend(self, changes: Iterable[Entry]) -> None:
        rest = iter(changes)
        while piece := list(islice(rest, _PIECE)):
            self._packed += msgpack.packb(piece)
            self._borders.append(len(self._packed))
