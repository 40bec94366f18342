"""Object stores for tests: one in memory that keeps its word, and some that lie, each as a store in the wild has done.

All clients of a store share its `Objects`; `Class(objects)` opens one more client.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier, Lock

from nsqd.remote.check import WRITERS
from nsqd.remote.object_store import LIST_LIMIT, Created, Names, OnUnknown, ignore


class Objects:
    """The objects of one store, and its lock."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.contents: dict[str, bytes] = {}
        self.race = Barrier(WRITERS)


class MemoryStore:
    def __init__(self, objects: Objects, *, on_unknown: OnUnknown = ignore) -> None:
        self.objects = objects
        self.on_unknown = on_unknown

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        with self.objects.lock:
            if name in self.objects.contents:
                return Created.EXISTS
            self.objects.contents[name] = bytes(data) if isinstance(data, bytes) else b"".join(data)
            return Created.CREATED

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        with self.objects.lock:
            found = self.objects.contents.get(name)
        return None if found is None else found[start:end]

    def delete(self, names: Sequence[str]) -> None:
        with self.objects.lock:
            for name in names:
                self.objects.contents.pop(name, None)

    def list(self, prefix: str, after: str = "") -> Names:
        with self.objects.lock:
            return sorted(it for it in self.objects.contents if it.startswith(prefix) and it > after)[:LIST_LIMIT]

    def overwrite(self, name: str, data: bytes) -> None:
        with self.objects.lock:
            self.objects.contents[name] = data


class IgnoresCondition(MemoryStore):
    """Stores whatever comes, as S3 servers do that don't know the header If-None-Match."""

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        self.overwrite(name, bytes(data) if isinstance(data, bytes) else b"".join(data))
        return Created.CREATED


class LooksFirst(MemoryStore):
    """Looks whether there is an object, and writes it then: in a race several are the first."""

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if self.get(name) is not None:
            return Created.EXISTS
        if "/race/" in name:
            self.objects.race.wait()
        return IgnoresCondition.create(self, name, data)  # type: ignore[arg-type]


class DecidesByServer(MemoryStore):
    """Two servers with one disk, each of which knows only its own writers."""

    def __init__(self, objects: Objects, *, on_unknown: OnUnknown = ignore) -> None:
        super().__init__(objects, on_unknown=on_unknown)
        self._seen: set[str] = set()

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if name in self._seen:
            return Created.EXISTS
        self._seen.add(name)
        return IgnoresCondition.create(self, name, data)  # type: ignore[arg-type]

    def delete(self, names: Sequence[str]) -> None:
        super().delete(names)
        self._seen.difference_update(names)


class Forgets(MemoryStore):
    """Acknowledges, and stores nothing."""

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        return Created.CREATED


class ForgetsLater(MemoryStore):
    """Loses some of what it has acknowledged after a while, as a cache does that is never written back."""

    def overwrite(self, name: str, data: bytes) -> None:
        super().overwrite(name, data)
        self.objects.contents.pop(min(self.objects.contents))


class SaysExists(MemoryStore):
    """Takes the condition the wrong way round: a new name is refused because it doesn't exist."""

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        return Created.EXISTS if name not in self.objects.contents else super().create(name, data)


class RemembersAbsence(MemoryStore):
    """Answers from a cache that a name doesn't exist, although it does now."""

    def __init__(self, objects: Objects, *, on_unknown: OnUnknown = ignore) -> None:
        super().__init__(objects, on_unknown=on_unknown)
        self._absent: set[str] = set()

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        self._absent.discard(name)  # its own writes pass the cache
        return super().create(name, data)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if name in self._absent or (found := super().get(name, start, end)) is None:
            self._absent.add(name)
            return None
        return found


class CutsShort(MemoryStore):
    """Loses the end of large objects."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        found = super().get(name, start, end)
        return found[: 4 << 20] if found else found


class KeepsDeleted(MemoryStore):
    """Acknowledges deletions, and doesn't delete."""

    def delete(self, names: Sequence[str]) -> None:
        pass
