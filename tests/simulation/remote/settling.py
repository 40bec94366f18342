"""What a claimant does to its data path before it is an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import slot_name
from nsqcommon.remote.root import FilePart, prove
from nsqd.remote.claim import Claimed
from nsqd.remote.local_mark import Decision, encode_mark
from nsqd.remote.reconciliation import Fate, plan
from tests.simulation.promise import Violation
from tests.simulation.remote.store import Call

if TYPE_CHECKING:
    from tests.simulation.remote.process import Process

MOST_PARTS: Final = 2  # of a read


class Settling:
    """Makes the data path what it has to be: fetches what it lacks, and puts aside what it must not have."""

    def __init__(self, process: Process, claimed: Claimed, *, same_boot: bool) -> None:
        self.process = process
        self.claimed = claimed
        self._parts: dict[FilePart, bytes] = {}
        local = {path: len(data) for path, data in process.disk.files.items()}
        self._fates = plan(claimed.decision, claimed.catalog, local, same_boot=same_boot)
        needed = [path for path, fate in self._fates.items() if fate in (Fate.COMPARE, Fate.FETCH)]
        pieces = [piece for path in needed for piece in claimed.catalog.files[path].pieces]
        self._missing = list({piece.part: None for piece in pieces if piece.part.object})
        self._is_reading = False
        self._left = list(self._fates)

    def step(self) -> None:
        life = self.process.life
        if not life.is_calm and life.random.random() > life.settling_pace:
            return
        if self._missing:
            if self._is_reading:
                self.process.life.store.step_for(self.process)
            else:
                self._is_reading = True
                self.process.send("read", "parts", self._read, self._lost, parts=tuple(self._missing[:MOST_PARTS]))
        elif self._left:
            self._settle(self._left.pop())
        else:
            disk = self.process.disk
            disk.sync()
            disk.save_mark(encode_mark(self.claimed.mark))
            self.process.life.settled(self.process)
            self.process.settled(self.claimed)

    def _read(self, call: Call) -> None:
        self._is_reading = False
        for part, data in call.found.items():
            try:
                self._parts[part] = prove(part, data or b"")
            except BadObject as error:
                self._find_out_why(error)
                return
            self._missing.remove(part)

    def _find_out_why(self, error: BadObject) -> None:
        """End if another process has taken the name while this one slept. Then it may have made a root, and swept.

        The name of a slot that was swept may even have a fence now, of a claimant that slept as well.
        """
        if slot_name(self.claimed.run, 0) not in self.process.life.store.objects:
            raise Violation(f"{self.process} needs what was deleted: {error}")
        self.process.end("the name was taken over before the data path was settled")

    def _lost(self) -> None:
        self._is_reading = False

    def _settle(self, path: str) -> None:
        files, fate = self.process.disk.files, self._fates[path]
        if fate is Fate.ASIDE:
            files.pop(path, None)
        elif fate in (Fate.FETCH, Fate.COMPARE):
            content = self._content(path)
            if fate is Fate.FETCH or files.get(path, b"")[: len(content)] != content:
                files[path] = bytearray(content)
        if self.claimed.decision is Decision.ADOPT:
            self.process.disk.written.clear()
        self.process.life.perhaps_disturb(self.process)

    def _content(self, path: str) -> bytes:
        found = b""
        for piece in self.claimed.catalog.files[path].pieces:
            data = self._parts[piece.part] if piece.part.object else bytes(piece.part.length)
            found += data[piece.start : piece.stop]
        return found
