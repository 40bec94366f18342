"""Every request counts, by what it was and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqd.remote.counted_store import CountedStore, RequestCounts
from nsqd.remote.object_store import Created, StoreFault
from tests.support.object_stores import MemoryStore, Objects


class Failing(MemoryStore):
    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        return Created.UNKNOWN

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        raise StoreFault("no answer in time")


def test_requests_are_counted_by_verb_and_outcome() -> None:
    requests = RequestCounts()
    times = iter(range(100))
    store = CountedStore(MemoryStore(Objects()), requests, clock=lambda: float(next(times)))
    assert store.create("a", b"x") is Created.CREATED
    assert store.create("a", b"x") is Created.EXISTS
    assert (store.get("a"), store.get("b"), store.get("a", 1, 1)) == (b"x", None, b"")
    store.overwrite("hint", b"y")
    assert store.list("") == ["a", "hint"]
    store.delete(["a"])
    failing = CountedStore(Failing(Objects()), requests, clock=lambda: 0.0)
    failing.create("a", b"x")
    with pytest.raises(StoreFault):
        failing.get("a")
    counts, seconds = requests.snapshot()
    assert counts == {
        ("create", "created"): 1,
        ("create", "exists"): 1,
        ("create", "unknown"): 1,
        ("get", "found"): 2,
        ("get", "absent"): 1,
        ("get", "failed"): 1,
        ("overwrite", "done"): 1,
        ("list", "found"): 1,
        ("delete", "done"): 1,
    }
    assert (sum(seconds.counts), seconds.sum) == (3, 2.0)
