"""A store whose requests are counted, for metrics and for the bill."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from nsqcommon.prometheus import Histogram
from nsqd.remote.object_store import Created, Names, ObjectStore, StoreFault
from nsqd.remote.owner import SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class RequestCounts:
    """Counts the requests of all of a node's clients of its store. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._create_seconds = Histogram(SECONDS)

    def note(self, verb: str, outcome: str) -> None:
        with self._lock:
            self._counts[verb, outcome] += 1

    def note_create(self, outcome: Created, seconds: float) -> None:
        with self._lock:
            self._counts["create", outcome.value] += 1
            self._create_seconds.observe(seconds)

    def snapshot(self) -> tuple[Mapping[tuple[str, str], int], Histogram]:
        """Return the counts by verb and outcome, and how long creates took."""
        with self._lock:
            return dict(self._counts), self._create_seconds.copy()


class CountedStore:
    """Passes each call on, and counts it."""

    def __init__(
        self, store: ObjectStore, requests: RequestCounts, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._requests = requests
        self._clock = clock

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        began = self._clock()
        created = self._store.create(name, data)
        self._requests.note_create(created, self._clock() - began)
        return created

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        found = self._counted("get", lambda: self._store.get(name, start, end))
        self._requests.note("get", "found" if found is not None else "absent")
        return found

    def delete(self, names: Sequence[str]) -> None:
        self._counted("delete", lambda: self._store.delete(names))
        self._requests.note("delete", "done")

    def list(self, prefix: str, after: str = "") -> Names:
        found = self._counted("list", lambda: self._store.list(prefix, after))
        self._requests.note("list", "found")
        return found

    def overwrite(self, name: str, data: bytes) -> None:
        self._counted("overwrite", lambda: self._store.overwrite(name, data))
        self._requests.note("overwrite", "done")

    def _counted(self, verb: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except StoreFault:
            self._requests.note(verb, "failed")
            raise
