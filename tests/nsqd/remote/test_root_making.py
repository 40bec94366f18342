"""How the folds of a root get into the store: several at a time, but no more than the line brings over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from threading import Barrier, Event, Thread

import pytest

from nsqcommon.remote.framing import BadObject
from nsqd.remote.fetching import Abandoned
from nsqd.remote.object_store import Created
from nsqd.remote.pacing import LARGE
from nsqd.remote.rate_limit import RateLimit
from nsqd.remote.root_making import FOLDS_AT_ONCE, Folds, Storing
from tests.support.object_stores import MemoryStore, Objects

PATIENCE = 30.0


class Meeting(MemoryStore):
    """Stores a number of objects when requests for all of them are there."""

    def __init__(self, size: int) -> None:
        super().__init__(Objects())
        self._barrier = Barrier(size)

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        self._barrier.wait(PATIENCE)
        return super().create(name, data)


def store_folds(storing: Storing, *, at_once: int, number: int = 1) -> None:
    with Folds(storing, at_once) as folds:
        for it in range(number):
            folds.store(f"fold/{it}", [b"fold"])
        folds.finish()


def test_several_folds_are_under_way() -> None:
    store = Meeting(FOLDS_AT_ONCE)
    store_folds(Storing(store), at_once=FOLDS_AT_ONCE, number=2 * FOLDS_AT_ONCE)
    assert len(store.objects.contents) == 2 * FOLDS_AT_ONCE


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_fold_that_cannot_be_stored_ends_the_root(at_once: int) -> None:
    store = MemoryStore(Objects())
    store.create("fold/0", b"of another owner")
    with pytest.raises(BadObject, match="fold/0 has other bytes"):
        store_folds(Storing(store), at_once=at_once)


def test_a_hanging_store_does_not_keep_a_root_from_being_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(MemoryStore):
        def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
            hangs.set()
            ends.wait(PATIENCE)
            return Created.UNKNOWN

    monkeypatch.setattr("nsqd.remote.root_making._LOOK_INTERVAL", 0.001)
    hangs, ends = Event(), Event()
    with pytest.raises(Abandoned):
        store_folds(Storing(Hanging(Objects()), is_abandoned=hangs.is_set), at_once=2)
    ends.set()


def test_a_slow_line_gets_one_large_fold_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(MemoryStore):
        def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
            if name == "fold/2":
                arrives.set()
                goes_on.wait(PATIENCE)
            return super().create(name, data)

    monkeypatch.setattr("nsqd.remote.root_making._LOOK_INTERVAL", 0.001)
    arrives, goes_on, store = Event(), Event(), Slow(Objects())
    times, fold = count(step=20), bytes(LARGE)
    storing = Storing(store, clock=lambda: float(next(times)), is_abandoned=lambda: arrives.is_set() and looked.pop())
    looked = [True, False]
    storing.create("fold/1", fold)
    thread = Thread(target=storing.create, args=("fold/2", fold), daemon=True)
    thread.start()
    assert arrives.wait(PATIENCE)
    with pytest.raises(Abandoned):
        storing.create("fold/3", fold)
    goes_on.set()
    thread.join(PATIENCE)
    assert sorted(store.objects.contents) == ["fold/1", "fold/2"]


def test_folds_keep_to_the_rate_and_can_be_abandoned_meanwhile() -> None:
    waited = [0.0]

    def pause(seconds: float) -> None:
        waited[0] += seconds

    store = MemoryStore(Objects())
    storing = Storing(
        store, pause=pause, clock=lambda: waited[0], is_abandoned=lambda: waited[0] > 25.0, limit=RateLimit(100.0)
    )
    for it in range(3):
        storing.create(f"fold/{it}", bytes(1000))
    assert waited[0] == pytest.approx(20.0)
    with pytest.raises(Abandoned):
        storing.create("fold/3", bytes(1000))
    assert waited[0] < 26.0
    assert sorted(store.objects.contents) == ["fold/0", "fold/1", "fold/2"]
