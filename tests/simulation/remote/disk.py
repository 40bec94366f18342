"""The disk of a machine, as far as the protocol of several machines cares about it.

Files are bytearrays by path. What was synced is kept in a second place, to which a power cut goes back with some of what
came since. The marks are durable at once.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random


class MachineDisk:
    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.mark: bytes | None = None
        self.written: dict[int, int] = {}  # sequences of messages that were answered OK when this disk had them
        self._synced: dict[str, bytes] = {}
        self._synced_written: dict[int, int] = {}

    def sync(self) -> None:
        self._synced = {path: bytes(data) for path, data in self.files.items()}
        self._synced_written = dict(self.written)

    def cut_power(self, random: Random) -> None:
        """Leave of each file what was synced, and some of what was appended since."""
        left: dict[str, bytearray] = {}
        keeps_sizes = random.random() < 0.4  # sizes were written, and pages were not
        for path in sorted(self.files.keys() | self._synced.keys()):
            now, synced = self.files.get(path), self._synced.get(path)
            if now is None or synced is None:
                if random.random() < 0.5:
                    left[path] = bytearray(now if now is not None else synced or b"")
            elif now[: len(synced)] == synced:
                left[path] = now[: random.randint(len(synced), len(now))]
                if keeps_sizes:
                    left[path] += bytes(len(now) - len(left[path]))
            else:
                left[path] = bytearray(random.choice((now, synced)))
        self.files = left
        self.written = dict(self._synced_written)
        self.sync()

    def wipe(self) -> None:
        self.__init__()  # type: ignore[misc]  # a new disk in the place of this one

    def copy(self) -> MachineDisk:
        return deepcopy(self)
