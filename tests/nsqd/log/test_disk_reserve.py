"""Whether publishing is open, by the last known free space and what was appended since."""

from __future__ import annotations

from random import Random

import pytest

from nsqd.log.disk_reserve import AUTOMATIC, CLOSED_INTERVAL, LEAST_MARGIN, LOOK_INTERVAL, Reserve, reserve_size

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


@pytest.mark.parametrize(
    ("wanted", "total", "size"),
    [
        (0, GIBIBYTE, 0),
        (5000, GIBIBYTE, 5000),
        (AUTOMATIC, 1000 * GIBIBYTE, 256 * MEBIBYTE),
        (AUTOMATIC, 40 * MEBIBYTE, 2 * MEBIBYTE),
        (AUTOMATIC, 0, 0),  # a file system that does not report its size
    ],
)
def test_five_percent_and_at_most_256_mebibytes_unless_something_else_is_wanted(
    wanted: int, total: int, size: int
) -> None:
    assert reserve_size(wanted, total) == size


class Disk:
    """Free space, and a reserve that looks at it."""

    def __init__(self, free: int, *, reserve: int) -> None:
        self.free = free
        self.now = 100.0
        self.looks = 0
        self.reserve = Reserve(reserve)

    def append(self, size: int) -> bool:
        """Ask first, as the store does; what is accepted is written at once."""
        if self.reserve.wants_look(size, self.now):
            self.look()
        if not self.reserve.take(size):
            return False
        self.free -= size
        return True

    def look(self) -> None:
        self.looks += 1
        self.reserve.looked(self.free, unwritten=0, now=self.now)


def test_nothing_is_let_into_the_reserve() -> None:
    disk = Disk(10 * MEBIBYTE, reserve=MEBIBYTE)
    while disk.append(100_000):
        pass
    assert MEBIBYTE <= disk.free < MEBIBYTE + 100_000
    assert not disk.reserve.is_open


def test_fast_publisher_is_looked_after_with_few_looks() -> None:
    disk = Disk(100 * GIBIBYTE, reserve=GIBIBYTE)
    batches = 0
    while disk.append(MEBIBYTE):
        batches += 1
    assert batches == 99 * 1024
    assert disk.looks < 30


@pytest.mark.parametrize("seed", range(20))
def test_neither_we_nor_others_that_write_half_as_much_reach_the_reserve(seed: int) -> None:
    random = Random(seed)
    disk = Disk(50 * MEBIBYTE, reserve=MEBIBYTE)
    while True:
        size = random.randrange(1, 300_000)
        if not disk.append(size):
            break
        disk.free -= size // 2
    assert disk.free >= MEBIBYTE - 150_000, f"seed {seed}"


def test_bytes_that_are_not_written_yet_count() -> None:
    reserve = Reserve(MEBIBYTE)
    reserve.looked(2 * MEBIBYTE, unwritten=MEBIBYTE, now=0.0)
    assert not reserve.is_open


def test_others_are_noticed_after_a_second() -> None:
    disk = Disk(10 * MEBIBYTE, reserve=MEBIBYTE)
    assert disk.append(1)
    disk.free = 0
    disk.now += LOOK_INTERVAL - 0.01
    assert disk.append(1)
    disk.now += 0.01
    assert not disk.append(1)


def test_it_opens_by_itself_and_not_for_a_few_bytes() -> None:
    disk = Disk(0, reserve=16 * MEBIBYTE)
    assert not disk.append(1)
    disk.free = 17 * MEBIBYTE
    disk.now += CLOSED_INTERVAL
    assert not disk.append(1)
    disk.free = 18 * MEBIBYTE
    assert not disk.append(1)  # the free space was asked for just now
    disk.now += CLOSED_INTERVAL
    assert disk.append(1)


def test_refused_publishers_cost_no_looks() -> None:
    disk = Disk(0, reserve=MEBIBYTE)
    for _ in range(1000):
        assert not disk.append(1)
    assert disk.looks == 1


def test_large_batch_does_not_close_it_for_small_ones() -> None:
    disk = Disk(4 * MEBIBYTE, reserve=MEBIBYTE)
    assert not disk.append(5 * MEBIBYTE)
    assert disk.reserve.is_open
    assert disk.append(MEBIBYTE)


def test_batch_that_does_not_fit_closes_it_when_little_is_left() -> None:
    disk = Disk(MEBIBYTE + LEAST_MARGIN - 1, reserve=MEBIBYTE)
    assert not disk.append(5 * MEBIBYTE)
    assert not disk.append(1)


def test_when_the_system_does_not_answer_it_stays_as_it_is() -> None:
    disk = Disk(10 * MEBIBYTE, reserve=MEBIBYTE)
    disk.look()
    disk.now += LOOK_INTERVAL
    disk.reserve.look_failed(disk.now)
    assert not disk.reserve.wants_look(1, disk.now)
    assert disk.reserve.take(1)
