from __future__ import annotations

import pytest

from nsqd.go_import.queue_files import Position, ReadingPlan, UnreadPart, find_queues, parse_position, plan_reading


def test_files_are_sorted_by_queue() -> None:
    found = find_queues(
        [
            "t.diskqueue.000000.dat",
            "t.diskqueue.000010.dat",
            "t.diskqueue.meta.dat",
            "t:c.diskqueue.1000000.dat",
            "w;d.diskqueue.meta.dat",
            "t.diskqueue.000003.dat.bad",
            "t.diskqueue.meta.dat.77.tmp",
            "t.diskqueue.12.dat",
            "nsqd.dat",
        ]
    )
    assert list(found) == ["t", "t:c", "w:d"]
    assert found["t"].data == {0: "t.diskqueue.000000.dat", 10: "t.diskqueue.000010.dat"}
    assert found["t"].meta == "t.diskqueue.meta.dat"
    assert found["t:c"].names() == ["t:c.diskqueue.1000000.dat"]
    assert found["w:d"].names() == ["w;d.diskqueue.meta.dat"]


def test_metadata_is_three_lines() -> None:
    assert parse_position(b"4\n1,20\n2,300\n") == Position(4, 1, 20, 2, 300)
    assert parse_position(b"-2\n0,0\n0,35\n") == Position(-2, 0, 0, 0, 35)


@pytest.mark.parametrize(
    "data", [b"", b"4", b"4\n1,20\n2\n", b"4\n1,20\n2,-3\n", b"4.0\n1,2\n2,3\n", b"4\n1,2\n2,3\n4\n", b"\0" * 20]
)
def test_metadata_that_is_something_else_is_none(data: bytes) -> None:
    assert parse_position(data) is None


def test_a_queue_is_read_from_its_read_position_on() -> None:
    position = Position(9, 3, 40, 5, 60)
    assert plan_reading(position, {3: 100, 4: 100, 5: 60}) == ReadingPlan(
        [UnreadPart(3, 40, 100), UnreadPart(4, 0, 100), UnreadPart(5, 0, 60)], []
    )


@pytest.mark.parametrize("position", [Position(0, 0, 0, 0, 0), Position(0, 7, 0, 7, 0), Position(0, 7, 50, 7, 50)])
def test_a_queue_that_was_read_to_its_end_may_have_no_files(position: Position) -> None:
    assert plan_reading(position, {}) == ReadingPlan([], [])


def test_a_queue_that_is_at_its_end_has_nothing_to_read() -> None:
    assert plan_reading(Position(0, 7, 50, 7, 50), {7: 50}) == ReadingPlan([], [])


@pytest.mark.parametrize(
    ("position", "sizes", "parts", "remark"),
    [
        (Position(1, 0, 0, 0, 35), {0: 70}, [UnreadPart(0, 0, 70)], "importing 35 bytes after the write position"),
        (Position(1, 0, 0, 0, 35), {0: 20}, [UnreadPart(0, 0, 20)], "ends at 20, but 35 bytes were written"),
        (
            Position(1, 0, 0, 0, 35),
            {0: 35, 1: 9},
            [UnreadPart(0, 0, 35), UnreadPart(1, 0, 9)],
            "newer than the metadata",
        ),
        (
            Position(1, 2, 5, 2, 35),
            {1: 9, 2: 35},
            [UnreadPart(2, 5, 35)],
            "skipping file 1, which is before the read position",
        ),
        (Position(1, 2, 50, 3, 35), {2: 40, 3: 35}, [UnreadPart(3, 0, 35)], "ends at 40, before the read position 50"),
        (Position(1, 2, 5, 4, 35), {2: 9, 4: 35}, [UnreadPart(2, 5, 9), UnreadPart(4, 0, 35)], "1 files are missing"),
        (Position(1, 0, 0, 10**15, 35), {}, [], "1000000000000001 files are missing from 0 to"),
        (Position(1, 0, 0, 1, 0), {}, [], "1 files are missing"),
        (None, {3: 9, 2: 8}, [UnreadPart(2, 0, 8), UnreadPart(3, 0, 9)], "no readable metadata"),
    ],
)
def test_where_metadata_and_files_differ_what_can_be_read_is_taken(
    position: Position | None, sizes: dict[int, int], parts: list[UnreadPart], remark: str
) -> None:
    reading = plan_reading(position, sizes)
    assert reading.parts == parts
    assert len(reading.remarks) == 1
    assert remark in reading.remarks[0]
