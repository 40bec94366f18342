"""Makes the root of a run: proves local bytes and stores them in folds, then stores the root.

The bytes come from the local files, because reading them costs no request. Each is proved by the checksums of what was
sent, so that a wrong bit of this disk never gets into a root. A file may also have changed or vanished since its run was
ended. In all these cases the bytes come from the slots, which are deleted only when the root is committed. Bytes that are in
no slot are read by a second name of their file (`second_names`).

A root that the chain waits for is made as quickly as the store takes it: several folds are under way, as slots are
otherwise. Other roots leave the line to the slots, and store one fold after the other.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import root_name
from nsqcommon.remote.root import Root, encode_root
from nsqd.remote.catalog import MOST_FOLD, FileToFold, FoldWriter, Piece
from nsqd.remote.daemon_threads import DaemonThreads
from nsqd.remote.fetching import Abandoned
from nsqd.remote.object_store import Created, ObjectStore, StoreFault
from nsqd.remote.pacing import DEPTH, LineRate, pause_before

if TYPE_CHECKING:
    from types import TracebackType

    from nsqcommon.remote.names import Run
    from nsqcommon.remote.root import SealedSegment
    from nsqd.remote.fetching import Fetch
    from nsqd.remote.local_files import LocalFiles
    from nsqd.remote.rate_limit import RateLimit

log = logging.getLogger(__name__)

FOLDS_AT_ONCE: Final = DEPTH - 2  # of a root that the chain waits for; two more are being read
_LOOK_INTERVAL: Final = 0.5  # seconds, at whether the root was abandoned
_BLOCK: Final = 8 << 20  # bytes of a file that nothing proves
_WHOLE: Final = ".json"  # these are replaced, so a later version is no damage


class Storing:
    """Creates objects whose names are this owner's alone, and repeats it until the store has each of them.

    Threads may share it. Then no more are under way than the line brings over.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        is_abandoned: Callable[[], bool] = lambda: False,
        pause: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        took: Callable[[], object] = lambda: None,
        limit: RateLimit | None = None,
    ) -> None:
        """`took` is called whenever the store has another object."""
        self.store = store
        self._limit = limit
        self._clock = clock
        self._took = took
        self._line = LineRate()
        self._under_way = 0  # bytes
        self._line_changes = Condition()
        self._is_abandoned = is_abandoned
        self._pause = pause
        self._chance = chance

    def create(self, name: str, data: bytes | Sequence[bytes]) -> None:
        """Store an object. Raises Abandoned, and BadObject if there is another one of its name."""
        failures = 0
        while not self._try_to_create(name, data):
            failures += 1
            self._pause(pause_before(failures, self._chance()))
        self._took()

    def _try_to_create(self, name: str, data: bytes | Sequence[bytes]) -> bool:
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        self._wait_for_limit(size)
        with self._place_on_line(size):
            began = self._clock()
            answer = self.store.create(name, data)
            note = self._line.failed if answer is Created.UNKNOWN else self._line.arrived
            note(size, self._clock() - began)
        return answer is Created.CREATED or (answer is Created.EXISTS and self._is_there(name, data))

    def _wait_for_limit(self, size: int) -> None:
        """Raises Abandoned."""
        if self._limit is not None:
            for pause in self._limit.pauses(size, self._clock):
                self.stop_if_abandoned()
                self._pause(pause)

    @contextmanager
    def _place_on_line(self, size: int) -> Iterator[None]:
        """Wait until the line has room. Raises Abandoned."""
        with self._line_changes:
            self.stop_if_abandoned()
            while not self._line.may_start(size, under_way=self._under_way):
                self._line_changes.wait(_LOOK_INTERVAL)
                self.stop_if_abandoned()
            self._under_way += size
        try:
            yield
        finally:
            with self._line_changes:
                self._under_way -= size
                self._line_changes.notify_all()

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


class Folds:
    """Stores folds, and then the root, in up to `at_once` threads, or without a thread if that is 1.

    Leave it by an error, or by `finish`.
    """

    def __init__(self, storing: Storing, at_once: int) -> None:
        self._storing = storing
        self._at_once = at_once
        self._threads = DaemonThreads[None](at_once, name="nsqd folds")
        self._under_way: set[Future[None]] = set()

    def __enter__(self) -> Folds:
        self._threads.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.__exit__(kind, error, at)

    def store(self, name: str, buffers: Sequence[bytes]) -> None:
        """Begin to store a fold as soon as fewer than `at_once` are under way. Raises what another one has raised."""
        if self._at_once == 1:
            self._storing.create(name, buffers)
            return
        self._wait_until_fewer_than(self._at_once)
        self._under_way.add(self._threads.submit(self._storing.create, name, buffers))

    def finish(self) -> None:
        """Wait until the store has all folds. Raises Abandoned and BadObject."""
        self._wait_until_fewer_than(1)

    def _wait_until_fewer_than(self, count: int) -> None:
        while len(self._under_way) >= count:
            done, self._under_way = wait(self._under_way, _LOOK_INTERVAL, FIRST_COMPLETED)
            for future in done:
                future.result()
            self._storing.stop_if_abandoned()


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
        folds_at_once: int = 1,
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
        self._folds = Folds(storing, folds_at_once)

    def make(self, files: Sequence[FileToFold], unshipped: Sequence[str] = ()) -> Root:
        """Store all that the root needs, then the root, and return it. `unshipped`: paths that only roots have.

        Raises Abandoned, BadObject if a slot is damaged, and OSError if the disk refuses to read something.
        """
        with self._folds:
            for file in files:
                self._writer.add_blocks(file, self._blocks(file))
            for path in unshipped:
                self._add_as_it_is(path)
            root = self._writer.finish()
            self._store_full_folds()
            self._folds.finish()
            name = root_name(self._run)
            self.names.add(name)
            self._folds.store(name, [encode_root(root)])
            self._folds.finish()
        return root

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
            self.names.add(name)
            self._folds.store(name, buffers)
