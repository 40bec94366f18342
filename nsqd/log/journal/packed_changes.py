"""A compact list of journal changes. Startup may read a million of them, which would take 300 MB as Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Final

import msgpack

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

_PIECE: Final = 100  # changes packed together; not more, since a single one may have thousands of numbers


class PackedChanges:
    """A list of changes, stored as msgpack. You can append and iterate; lists inside changes come back as tuples."""

    def __init__(self) -> None:
        self._packed = bytearray()  # one buffer: many small ones would fragment memory
        self._borders = [0]  # offsets between pieces

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
