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
        self.copied_at: int | None = None  # in steps of the life; None: the mark was saved on this very disk
        self.written: dict[int, int] = {}  # sequences of messages that were answered OK when this disk had them
        self._synced: dict[str, bytes] = {}
        self._synced_written: dict[int, int] = {}

    def save_mark(self, mark: bytes) -> None:
        self.mark, self.copied_at = mark, None

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

    def copy(self, now: int) -> MachineDisk:
        copy = deepcopy(self)
        if copy.copied_at is None:
            copy.copied_at = now
        return copy
