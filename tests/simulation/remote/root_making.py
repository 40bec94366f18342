"""A root in the making, as a thread of an owner does it: folds first, then the root."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsqcommon.remote.names import Run, root_name
from nsqcommon.remote.root import Root, encode_root
from nsqd.remote.catalog import FileToFold, FoldWriter, Snapshot, prove_range
from nsqd.remote.object_store import Created
from tests.simulation.promise import Violation
from tests.simulation.remote.store import Call

if TYPE_CHECKING:
    from tests.simulation.remote.owner import Owner


def try_again() -> None:
    """Do nothing, so that the next step reads the files again."""


class RootMaking:
    """Folds the files of a plan, stores the folds and the root, and calls `stored`.

    `give_up` is called when a file has vanished or is damaged. A later root reads it again.
    """

    def __init__(
        self,
        owner: Owner,
        run: Run,
        plan: Callable[[], Sequence[FileToFold]],
        stored: Callable[[Root], None],
        give_up: Callable[[], None] = try_again,
        snapshot: Snapshot | None = None,
        second_names: Mapping[str, bytearray] | None = None,
    ) -> None:
        """`second_names`: files that can be read although they may have been removed."""
        self.owner = owner
        self._second_names = second_names or {}
        self.run = run
        self.snapshot = snapshot
        self.root: Root | None = None
        self._plan = plan
        self._stored = stored
        self._give_up = give_up
        self._to_store: deque[tuple[str, bytes]] = deque()
        self._is_sending = False
        self._is_flipped = False

    def step(self) -> None:
        if self.root is None:
            self._fold()
        elif self._to_store and not self._is_sending:
            name, data = self._to_store[0]
            self._is_sending = True
            self.owner.process.send("create", name, self._answered, self._lost, data=data)

    def _fold(self) -> None:
        writer = FoldWriter(self.owner.core.node, self.run)
        for file in self._plan():
            data = self._read(file)
            if len(data) < file.size - file.start or (file.pieces and not prove_range(file.pieces, data)):
                if file.path in self._second_names and not self._is_flipped:
                    raise Violation(f"{self.owner.process} can't jump, because {file.path} is not what it was")
                self._give_up()
                return
            writer.add(file, data)
        self.root = writer.finish()
        self._to_store += [(name, b"".join(buffers)) for name, buffers in writer.full]
        self._to_store.append((root_name(self.root.run), encode_root(self.root)))

    def _read(self, file: FileToFold) -> bytes:
        found = self._second_names.get(file.path) or self.owner.disk.files.get(file.path) or bytearray()
        data = bytes(found[file.start : file.size])
        self._is_flipped = False
        if data and file.pieces and self.owner.random.random() < 0.02:  # the disk returns a wrong bit
            self._is_flipped = True
            place = self.owner.random.randrange(len(data))
            data = data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]
        return data

    def _answered(self, call: Call) -> None:
        self._is_sending = False
        if call.result is Created.CREATED or self._is_there(call):
            self._to_store.popleft()
            if not self._to_store and self.root is not None and self.owner.making is self:
                self._stored(self.root)

    def _is_there(self, call: Call) -> bool:
        """Return whether the object is there: its name is ours alone, so it is an earlier try."""
        found = self.owner.life.store.objects.get(call.name)
        if found is not None and found != call.data:
            raise Violation(f"{self.owner.process} writes other bytes to {call.name}")
        return found is not None

    def _lost(self) -> None:
        self._is_sending = False
