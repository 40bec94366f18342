"""Which requests get the parts of objects, and what becomes of answers that don't come or aren't right."""

from __future__ import annotations

import pytest
from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.root import FilePart
from nsqd.remote.fetching import Abandoned, Fetch, ranges_of
from nsqd.remote.object_store import StoreFault
from nsqd.remote.rate_limit import RateLimit
from tests.support.object_stores import MemoryStore, Objects

MB = 1 << 20


def part(name: str, offset: int, data: bytes) -> FilePart:
    return FilePart(name, offset, len(data), crc32c(data))


def shapes(parts: list[FilePart]) -> list[tuple[str, int, int, int]]:
    return [(it.object, it.start, it.end, len(it.parts)) for it in ranges_of(parts)]


def test_parts_that_lie_together_come_by_one_request() -> None:
    slot = [FilePart("wal/1/0", offset, 100, 0) for offset in (50, 150, 1000)]
    assert shapes([slot[2], slot[0], slot[1], slot[0]]) == [("wal/1/0", 50, 1100, 3)]


def test_parts_of_other_objects_and_far_away_come_by_themselves() -> None:
    parts = [FilePart("fold/1", 0, 100, 0), FilePart("fold/1", MB, 100, 0), FilePart("fold/2", 100, 100, 0)]
    assert shapes(parts) == [("fold/1", 0, 100, 1), ("fold/1", MB, MB + 100, 1), ("fold/2", 100, 200, 1)]


def test_a_request_stays_small_unless_one_part_is_large() -> None:
    parts = [
        FilePart("fold/1", 0, 6 * MB, 0),
        FilePart("fold/1", 6 * MB, 6 * MB, 0),
        FilePart("fold/1", 12 * MB, 32 * MB, 0),
    ]
    assert [it[1:3] for it in shapes(parts)] == [(0, 6 * MB), (6 * MB, 12 * MB), (12 * MB, 44 * MB)]


class Answers(MemoryStore):
    """Doesn't answer at first."""

    def __init__(self, objects: Objects, failures: int) -> None:
        super().__init__(objects)
        self.failures = failures

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if self.failures:
            self.failures -= 1
            raise StoreFault("no answer")
        return super().get(name, start, end)


def test_every_part_is_handed_over_once_however_often_the_store_is_silent() -> None:
    objects = Objects()
    objects.contents |= {f"fold/{number}": bytes([number]) * 100 for number in range(40)}
    wanted = [part(name, 10, data[10:30]) for name, data in objects.contents.items()]
    found: list[tuple[FilePart, bytes]] = []
    Fetch(Answers(objects, 5), pause=lambda seconds: None).parts(wanted, lambda it, data: found.append((it, data)))
    assert sorted(found, key=lambda it: it[0].object) == sorted(
        ((it, objects.contents[it.object][10:30]) for it in wanted), key=lambda it: it[0].object
    )


@pytest.mark.parametrize(
    ("contents", "reason"),
    [({}, "fold/1 is missing"), ({"fold/1": b"0123456799"}, "damaged"), ({"fold/1": b"01234"}, "damaged")],
)
def test_what_is_missing_or_damaged_is_never_handed_over(contents: dict[str, bytes], reason: str) -> None:
    objects = Objects()
    objects.contents |= contents
    with pytest.raises(BadObject, match=reason):
        Fetch(MemoryStore(objects)).part(part("fold/1", 2, b"23456789"))


def test_on_a_slow_line_parts_come_one_after_the_other() -> None:
    """If all came at once, none would arrive within the time that a request has."""
    times = iter((0.0, 0.0, 30.0, *[30.0] * 100))
    objects = Objects()
    objects.contents["fold/1"] = bytes(8 * MB)
    fetch = Fetch(Answers(objects, 1), pause=lambda seconds: None, clock=lambda: next(times))
    wanted = ranges_of([part("fold/1", 0, bytes(8 * MB))])[0]
    assert fetch.may_start(wanted, under_way=8 * MB)
    with pytest.raises(StoreFault):
        fetch.get(wanted)
    assert not fetch.may_start(wanted, under_way=8 * MB)
    assert fetch.may_start(wanted, under_way=0)


def test_a_fetch_can_be_given_up_while_the_store_is_silent() -> None:
    fetch = Fetch(Answers(Objects(), 10**9), is_abandoned=lambda: True, pause=lambda seconds: None)
    with pytest.raises(Abandoned):
        fetch.part(part("fold/1", 0, b"0123456789"))


class Waits:
    """A clock that only moves while somebody waits. Several threads may wait, so some of them wait longer."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_a_fetch_keeps_to_its_rate() -> None:
    clock, objects = Waits(), Objects()
    objects.contents |= {f"fold/{number}": bytes(1000) for number in range(5)}
    fetch = Fetch(MemoryStore(objects), pause=clock.pause, clock=clock, limit=RateLimit(100.0))
    fetch.parts([part(name, 0, data) for name, data in objects.contents.items()], lambda it, data: None)
    assert clock.now >= 40.0
    assert fetch.done == 5000
