"""Makes the root of a run: proves local bytes and stores them in folds, then stores the root.

The bytes come from the local files, because reading them costs no request. Each is proved by the checksums of what was
sent, so that a wrong bit of this disk never gets into a root. A file may also have changed or vanished since its run was
ended. In all these cases the bytes come from the slots, which are deleted only when the root is committed. Bytes that are in
no slot are read by a second name of their file (`second_names`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import root_name
from nsqcommon.remote.root import Root, encode_root
from nsqd.remote.catalog import MOST_FOLD, FileToFold, FoldWriter, Piece
from nsqd.remote.fetching import Abandoned
from nsqd.remote.object_store import Created, ObjectStore, StoreFault
from nsqd.remote.pacing import pause_before

if TYPE_CHECKING:
    from nsqcommon.remote.names import Run
    from nsqcommon.remote.root import SealedSegment
    from nsqd.remote.fetching import Fetch
    from nsqd.remote.local_files import LocalFiles

log = logging.getLogger(__name__)

_BLOCK: Final = 8 << 20  # bytes of a file that nothing proves
_WHOLE: Final = ".json"  # these are replaced, so a later version is no damage


class Storing:
    """Creates objects whose names are this owner's alone, and repeats it until the store has each of them."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        is_abandoned: Callable[[], bool] = lambda: False,
        pause: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self._is_abandoned = is_abandoned
        self._pause = pause
        self._chance = chance

    def create(self, name: str, data: bytes | Sequence[bytes]) -> None:
        """Store an object. Raises Abandoned, and BadObject if there is another one of its name."""
        failures = 0
        while True:
            self.stop_if_abandoned()
            match self.store.create(name, data):
                case Created.CREATED:
                    return
                case Created.EXISTS if self._is_there(name, data):
                    return
            failures += 1
            self._pause(pause_before(failures, self._chance()))

    def stop_if_abandoned(self) -> None:
        if self._is_abandoned():
            raise Abandoned

    def _is_there(self, name: str, data: bytes | Sequence[bytes]) -> bool:
        """Return whether an earlier try has stored it. "Exists" may also have been a conflict, and nothing is there."""
        try:
            found = self.store.get(name)
        except StoreFault:
            return False
        if found is None:
            return False
        if found != (data if isinstance(data, bytes) else b"".join(data)):
            raise BadObject(f"{name} has other bytes than this owner has stored there")
        return True


class RootMaking:
    """Stores the folds and the root of one run."""

    def __init__(
        self,
        storing: Storing,
        fetch: Fetch,
        local: LocalFiles,
        *,
        node: str,
        run: Run,
        sealed: tuple[SealedSegment, ...] = (),
        read: Callable[[str, int, int], bytes] | None = None,
    ) -> None:
        """`read`: instead of `local.read`, if a file may have a second name."""
        self.fold_sizes: dict[str, int] = {}
        self.names: set[str] = set()  # of all objects that it has begun to store
        self._storing = storing
        self._fetch = fetch
        self._local = local
        self._read = read or local.read
        self._run = run
        self._writer = FoldWriter(node, run, sealed)

    def make(self, files: Sequence[FileToFold], unshipped: Sequence[str] = ()) -> Root:
        """Store all that the root needs, then the root, and return it. `unshipped`: paths that only roots have.

        Raises Abandoned, BadObject if a slot is damaged, and OSError if the disk refuses to read something.
        """
        for file in files:
            self._writer.add_blocks(file, self._blocks(file))
        for path in unshipped:
            self._add_as_it_is(path)
        root = self._writer.finish()
        self._store_full_folds()
        self._create(root_name(self._run), encode_root(root))
        return root

    def _create(self, name: str, data: bytes | Sequence[bytes]) -> None:
        self.names.add(name)
        self._storing.create(name, data)

    def _blocks(self, file: FileToFold) -> Iterator[bytes]:
        """Yield the bytes from `file.start` on in blocks that are as large as a fold may have them."""
        block: list[bytes] = []
        size = 0
        for data in self._proved(file):
            if size + len(data) > MOST_FOLD:
                yield b"".join(block)
                self._store_full_folds()
                block, size = [], 0
            block.append(data)
            size += len(data)
        if block:
            yield b"".join(block)
            self._store_full_folds()

    def _proved(self, file: FileToFold) -> Iterator[bytes]:
        place = file.start
        for piece in file.pieces:
            yield self._proved_piece(file.path, piece, place)
            place += piece.length
        while place < file.size:
            stop = min(file.size, place + _BLOCK)
            data = self._read(file.path, place, stop)
            if len(data) < stop - place:
                raise BadObject(f"{file.path} has become shorter")
            yield data
            place = stop

    def _proved_piece(self, path: str, piece: Piece, place: int) -> bytes:
        if not piece.part.object:
            return bytes(piece.length)
        try:
            data = self._read(path, place, place + piece.length)
        except FileNotFoundError:  # it was removed since
            return self._stored(piece)
        if len(data) == piece.length and (not piece.is_whole or crc32c(data) == piece.part.crc):
            return data
        if not path.endswith(_WHOLE):
            log.error("%s has other bytes than were written at %d: using the ones in the store", path, place)
        return self._stored(piece)

    def _stored(self, piece: Piece) -> bytes:
        return self._fetch.part(piece.part)[piece.start : piece.stop]

    def _add_as_it_is(self, path: str) -> None:
        try:
            data = self._local.files.read(self._local.folder / path)
        except FileNotFoundError:
            return
        self._writer.add(FileToFold(path, (), 0, len(data), ()), data)

    def _store_full_folds(self) -> None:
        full, self._writer.full = self._writer.full, []
        for name, buffers in full:
            self.fold_sizes[name] = sum(map(len, buffers))
            self._create(name, buffers)
