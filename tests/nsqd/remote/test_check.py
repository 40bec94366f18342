from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import pytest

from nsqd.remote.check import CheckVerdict, StoreCheck, StoreFinding
from nsqd.remote.object_store import Created, Names, OnUnknown, StoreFault, StoreFaultKind
from tests.support.object_stores import (
    CutsShort,
    DecidesByServer,
    Forgets,
    ForgetsLater,
    IgnoresCondition,
    KeepsDeleted,
    LooksFirst,
    MemoryStore,
    Objects,
    RemembersAbsence,
    SaysExists,
)

LIMIT = 30.0  # seconds
SUBJECTS = ["create", "exists", "fresh", "delete", "list", "hint", "race", "large", "speed", "kept", "clean"]


def make_check(kind: Callable[..., MemoryStore], objects: Objects, *, rounds: int = 2) -> StoreCheck:
    times = count()
    return StoreCheck(
        lambda on_unknown: kind(objects, on_unknown=on_unknown),
        random=Random(1),
        clock=lambda: next(times) / 1000,
        pause=lambda seconds: None,
        rounds=rounds,
    )


def findings(kind: Callable[..., MemoryStore]) -> dict[str, StoreFinding]:
    return {it.subject: it for it in make_check(kind, Objects()).run()}


def refused(kind: Callable[..., MemoryStore]) -> dict[str, str]:
    return {subject: it.text for subject, it in findings(kind).items() if it.verdict is CheckVerdict.REFUSED}


def test_a_store_that_keeps_its_word_passes_every_step() -> None:
    found = findings(MemoryStore)
    assert [*found] == SUBJECTS
    assert {it.verdict for it in found.values()} == {CheckVerdict.PROVED}
    assert str(found["race"]) == "ok       race     in 2 races of 8 writers there was one winner each"
    assert found["speed"].text == (
        "1 KiB: median 1.0 ms, slowest of 20 1.0 ms; 1 MiB: median 1.0 ms, slowest of 5 1.0 ms"
    )


def test_nothing_is_left_behind() -> None:
    objects = Objects()
    assert [*make_check(MemoryStore, objects).run()]
    assert objects.contents == {}


def test_the_short_form_leaves_out_large_objects_and_the_clock() -> None:
    found = [it.subject for it in make_check(MemoryStore, Objects()).run(is_short=True)]
    assert [it for it in SUBJECTS if it not in found] == ["large", "speed"]


@pytest.mark.parametrize(
    ("kind", "subject", "text"),
    [
        (IgnoresCondition, "exists", "this store ignores If-None-Match"),
        (IgnoresCondition, "race", "8 of 8 writers were the first to create one name, in race 1"),
        (LooksFirst, "race", "8 of 8 writers were the first"),
        (DecidesByServer, "race", "two nsqds could own one log"),
        (Forgets, "create", "was acknowledged, and isn't there"),
        (ForgetsLater, "kept", "was acknowledged, and isn't there"),
        (SaysExists, "create", "exists, and there is nothing of that name"),
        (RemembersAbsence, "fresh", "answers from an old copy"),
        (CutsShort, "large", "reads differently from what was acknowledged (4194304 bytes, not 8388608)"),
        (KeepsDeleted, "delete", "a deleted object can still be read"),
    ],
)
def test_a_store_that_lies_is_refused(kind: Callable[..., MemoryStore], subject: str, text: str) -> None:
    assert text in refused(kind)[subject]


def test_a_store_that_breaks_only_under_load_passes_the_simple_steps() -> None:
    """So the races aren't ceremony."""
    assert [*refused(LooksFirst)] == ["race"]


class Ambiguous(MemoryStore):
    """Stores each object, and loses the first answer to each create."""

    def create(self, name: str, data: object) -> Created:
        is_known = name in self.objects.contents
        answer = super().create(name, data)  # type: ignore[arg-type]
        if is_known:
            return answer
        self.on_unknown(StoreFault("no answer in time", StoreFaultKind.UNREACHABLE))
        return Created.UNKNOWN


class Conflicting(MemoryStore):
    """Answers a create that another one is under way, which obstore takes for EXISTS, and stores it the next time."""

    def __init__(self, objects: Objects, *, on_unknown: OnUnknown) -> None:
        super().__init__(objects, on_unknown=on_unknown)
        self.tried: set[str] = set()

    def create(self, name: str, data: object) -> Created:
        if name not in self.tried:
            self.tried.add(name)
            return Created.EXISTS
        return super().create(name, data)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Ambiguous, Conflicting])
def test_an_honest_store_with_lost_answers_passes(kind: Callable[..., MemoryStore]) -> None:
    assert refused(kind) == {}


class Stutters(MemoryStore):
    """Gives no answer to every other request that isn't a create."""

    is_silent = False

    def _stutter(self) -> None:
        self.is_silent = not self.is_silent
        if self.is_silent:
            raise StoreFault("status 500", StoreFaultKind.OTHER)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        self._stutter()
        return super().get(name, start, end)

    def delete(self, names: Sequence[str]) -> None:
        self._stutter()
        super().delete(names)

    def list(self, prefix: str, after: str = "") -> Names:
        self._stutter()
        return super().list(prefix, after)

    def overwrite(self, name: str, data: bytes) -> None:
        self._stutter()
        super().overwrite(name, data)


def test_an_honest_store_that_fails_now_and_then_passes() -> None:
    assert refused(Stutters) == {}


class Failing(MemoryStore):
    kind = StoreFaultKind.UNREACHABLE
    creates = 0

    def create(self, name: str, data: object) -> Created:
        type(self).creates += 1
        self.on_unknown(StoreFault("store.example: it fails", self.kind))
        return Created.UNKNOWN


@pytest.mark.parametrize(("fault", "creates"), [(StoreFaultKind.UNREACHABLE, 6), (StoreFaultKind.DENIED, 1)])
def test_a_store_that_fails_is_no_liar_and_only_worth_a_repeat_if_it_may_recover(
    fault: StoreFaultKind, creates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "kind", fault)
    monkeypatch.setattr(Failing, "creates", 0)
    with pytest.raises(StoreFault, match=r"^store\.example: it fails$"):
        [*make_check(Failing, Objects()).run()]
    assert Failing.creates == creates


class FailsLate(MemoryStore):
    def list(self, prefix: str, after: str = "") -> list[str]:
        raise StoreFault("store.example: no lists")


def test_a_check_that_cannot_go_on_deletes_what_it_has_written() -> None:
    objects = Objects()
    with pytest.raises(StoreFault):
        [*make_check(FailsLate, objects).run()]
    assert objects.contents == {}


def test_writers_get_new_connections_now_and_then() -> None:
    opened = []

    def open_store(objects: Objects, *, on_unknown: OnUnknown) -> MemoryStore:
        opened.append(1)
        return MemoryStore(objects, on_unknown=on_unknown)

    [*make_check(open_store, Objects(), rounds=50).run(is_short=True)]
    assert len(opened) == 3 * 8


def test_the_interpreter_exits_while_a_request_hangs() -> None:
    """Otherwise a start couldn't be stopped while it checks a store that doesn't answer."""
    code = """
from random import Random
from threading import Event, Thread
from nsqd.remote.check import StoreCheck
from tests.support.object_stores import MemoryStore, Objects

races = Event()

class Hangs(MemoryStore):
    def create(self, name, data):
        if "/race/" in name:
            races.set()
            Event().wait()
        return super().create(name, data)

objects = Objects()
check = StoreCheck(lambda on_unknown: Hangs(objects), random=Random(1), clock=lambda: 0.0, pause=print, rounds=1)
Thread(target=lambda: [*check.run()], daemon=True).start()
races.wait()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT, check=False).returncode == 0
