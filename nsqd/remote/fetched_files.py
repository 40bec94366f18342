"""Files that are fetched before they get their names, so that a start can begin before it owns them.

A file whose end was added to since then is fetched from there on. Another process may still be writing to the node.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqcommon.remote.root import FilePart
    from nsqd.remote.catalog import CatalogFile, Piece
    from nsqd.remote.fetching import Fetch
    from nsqd.remote.local_files import LocalFiles


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the bytes [start, stop) of a part belong."""

    path: str
    offset: int
    start: int
    stop: int


class FetchedFiles:
    def __init__(self, local: LocalFiles, fetch: Fetch) -> None:
        self._local = local
        self._fetch = fetch
        self._have: dict[str, tuple[Piece, ...]] = {}
        self._has_begun = False

    def get(self, wanted: Mapping[str, CatalogFile]) -> None:
        """Fetch these files, and drop all others. Raises BadObject and OSError; then call it again."""
        if not self._has_begun:
            self._has_begun = True
            self._local.remove_half_fetched()
        for path in self._have.keys() - wanted.keys():
            del self._have[path]
            self._local.drop_fetched(path)
        targets: dict[FilePart, list[_Target]] = {}
        for path, file in wanted.items():
            if self._have.get(path) != tuple(file.pieces):
                self._begin(path, file, targets)

        def take(part: FilePart, data: bytes) -> None:
            for it in targets[part]:
                self._write(it, data[it.start : it.stop])

        self._fetch.parts(targets, take)
        self._have = {path: tuple(file.pieces) for path, file in wanted.items()}

    def _write(self, target: _Target, data: bytes) -> None:
        try:
            self._local.write_fetched(target.path, data, target.offset)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._fetch.give_back_kept():
                raise
            self._local.write_fetched(target.path, data, target.offset)

    def _begin(self, path: str, file: CatalogFile, targets: dict[FilePart, list[_Target]]) -> None:
        """Note what has to be fetched of a file, and forget it as one that we have until all of it is there."""
        same = _same(self._have.pop(path, ()), file.pieces)
        place = sum(it.length for it in file.pieces[:same])
        self._local.begin_fetched(path, kept=place, size=file.size)
        for piece in file.pieces[same:]:
            if piece.part.object:
                target = _Target(path, place, piece.start, piece.stop)
                targets.setdefault(piece.part, []).append(target)
            place += piece.length


def _same(before: Sequence[Piece], now: Sequence[Piece]) -> int:
    """Return how many pieces both begin with."""
    count = 0
    while count < min(len(before), len(now)) and before[count] == now[count]:
        count += 1
    return count
