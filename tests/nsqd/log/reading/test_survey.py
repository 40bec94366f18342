"""Times and bytes along a log, without reading it: right at every point, and as close together as asked for."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from pathlib import Path
from random import Random

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.files import Files
from nsqd.log.reading.survey import Point
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import OpenStore, opened
from tests.nsqd.log.test_history import past

HEADER = 56


class MeteredFiles(Files):
    bytes_read = 0

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        self.bytes_read += size
        return super().read_at(descriptor, size, offset)


class Filled:
    """A log, and for each of its records: (first sequence, timestamp, bytes of all before it, bytes, messages)."""

    def __init__(self, store: OpenStore, records: int, *, largest: int = 300, seed: int = 1) -> None:
        random = Random(seed)
        self.store = store
        self.records: list[tuple[int, int, int, int, int]] = []
        log, position = store.log(), 0
        for number in range(records):
            bodies = [bytes(random.randint(1, largest)) for _ in range(random.randint(1, 5))]
            size = HEADER + sum(4 + len(body) for body in bodies)
            self.records.append((log.tail, 1000 * number, position, size, len(bodies)))
            log.append(make_batch(log.tail, bodies, timestamp=1000 * number), Receipt())
            store.store.write_logs()
            position += size
        store.sync()
        self.end = log.tail

    def time_of(self, sequence: int) -> int:
        return self._record_of(sequence)[1]

    def bytes_before(self, sequence: int) -> int:
        first, _, position, size, count = self._record_of(sequence)
        return position + size * min(sequence - first, count) // count

    def _record_of(self, sequence: int) -> tuple[int, int, int, int, int]:
        """Return the last record that begins there or before."""
        return self.records[bisect_right(self.records, sequence, key=itemgetter(0)) - 1]

    def check(self, points: list[Point], start: int, end: int) -> None:
        assert (points[0].sequence, points[0].bytes) == (start, 0)
        assert points[-1].sequence == end
        assert points == sorted(points)
        for sequence, timestamp, size in points:
            assert sequence == start or self.time_of(sequence - 1) <= timestamp
            assert sequence == self.end or timestamp <= self.time_of(sequence)
            assert size == self.bytes_before(sequence) - self.bytes_before(start)


@pytest.mark.parametrize("segment", [2_000, 200_000, 10_000_000])
def test_points_of_any_range_are_true(tmp_path: Path, segment: int) -> None:
    with opened(tmp_path, max_bytes_per_file=segment) as store:
        filled = Filled(store, 2000)
        random = Random(segment)
        for most in (6, 7, 30, 1000):
            for _ in range(8):
                start = random.randrange(filled.end)
                end = random.randint(start + 1, filled.end)
                points = past(store).points(start, end, most)
                assert 2 <= len(points) <= most
                filled.check(points, start, end)
        filled.check(past(store).points(0, filled.end, 30), 0, filled.end)


@pytest.mark.parametrize(("segment", "largest"), [(3_000, 300), (1_000_000, 300), (10_000_000, 30_000)])
def test_asking_again_between_two_points_leads_to_the_record(tmp_path: Path, segment: int, largest: int) -> None:
    with opened(tmp_path, max_bytes_per_file=segment) as store:
        filled = Filled(store, 1000, largest=largest)
        for wanted in (filled.end // 3, filled.end - 1):
            start, end, asked = 0, filled.end, 0
            while asked < 12:
                points = past(store).points(start, end, 20)
                inner = [point.sequence for point in points if start < point.sequence < end]
                asked += 1
                if not inner:
                    break
                start = max([at for at in inner if at <= wanted], default=start)
                end = min([at for at in inner if at > wanted], default=end)
            assert asked <= 6
            (first, count) = next((it[0], it[4]) for it in filled.records if it[0] <= wanted < it[0] + it[4])
            assert (start, end) == (first, first + count)


def test_a_long_range_is_told_by_few_small_reads(tmp_path: Path) -> None:
    files = MeteredFiles()
    with opened(tmp_path, files, max_bytes_per_file=3_000_000) as store:
        filled = Filled(store, 12_000)
        store.checkpoint()
        before = files.bytes_read
        assert len(past(store).points(0, filled.end, 40)) >= 20
        assert files.bytes_read - before < 200_000 < filled.bytes_before(filled.end) / 20


def test_a_time_that_was_set_back_does_not_turn_points_round(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log()
        for first, timestamp in enumerate((10, 30, 20, 40)):
            log.append(make_batch(first, [b"body"], timestamp=timestamp), Receipt())
            store.store.write_logs()
        store.sync()
        assert [(it.sequence, it.timestamp) for it in past(store).points(0, 4, 100)] == [
            *((0, 10), (1, 10), (1, 30), (2, 30), (3, 30), (3, 40), (4, 40))
        ]


@pytest.mark.parametrize("lost", [b"", b"\xff" * 160])
def test_an_index_that_is_wrong_only_costs_time(tmp_path: Path, lost: bytes) -> None:
    with opened(tmp_path, max_bytes_per_file=300_000) as store:
        filled = Filled(store, 2000)
        for segment in store.segments():
            segment.with_suffix(".index").write_bytes(lost)
        filled.check(past(store).points(5, filled.end - 5, 100), 5, filled.end - 5)
        first, following = (int(segment.stem) for segment in store.segments()[1:3])
        points = past(store).points(first + 1, following - 1, 100)
        assert len(points) > 50
        filled.check(points, first + 1, following - 1)


def test_damage_and_lost_segments_are_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=20_000) as store:
        filled = Filled(store, 200)
        segments = store.segments()
        data = bytearray(segments[1].read_bytes())
        data[5000:9000] = bytes(4000)
        segments[1].write_bytes(data)
        segments[2].unlink()
        filled.check(past(store).points(0, filled.end, 1000), 0, filled.end)
        gone = range(int(segments[2].stem), int(segments[3].stem))
        assert past(store).points(gone.start, gone.stop, 6) == []
