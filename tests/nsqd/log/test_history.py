"""Reading history from segments: ranges, times, damage, and removal meanwhile."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from random import Random

import pytest

from nsqcommon.wire.history import Event, Gap, RecordCutter, Records, StoredBatch
from nsqcommon.wire.log_record import KEYS, MAGIC
from nsqd.broker.batch import Batch, Receipt
from nsqd.log.history import MOST_FILES, LogHistory, LogRangeReader, LogSnapshot
from nsqd.log.record import INDEX_INTERVAL
from nsqd.log.segment import INDEX_SUFFIX
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import OpenStore, TroubledFiles, opened
from tests.support.open_files import open_files

CHUNK = 1000


def fill(store: OpenStore, count: int, size: int = 100, *, batch: int = 3) -> dict[int, bytes]:
    """Publish this many messages, in batches, and sync; their times are a second apart."""
    log = store.log()
    bodies = {log.tail + n: (b"%d " % (log.tail + n)).ljust(size, b".") for n in range(count)}
    for first in range(log.tail, log.tail + count, batch):
        messages = [bodies[s] for s in range(first, min(first + batch, log.tail + count)) if s in bodies]
        log.append(make_batch(first, messages, timestamp=first * 1000), Receipt())
        store.store.write_logs()
    store.sync()
    return bodies


def past(store: OpenStore) -> LogSnapshot:
    found = LogHistory(store.store).find("t")
    assert found is not None
    return found


def pieces(reader: LogRangeReader) -> list[Records | Gap]:
    try:
        return list(iter(reader.read, None))
    finally:
        reader.close()


def events(reader: LogRangeReader) -> list[Event]:
    """Return the events as a client reads them."""
    cutter = RecordCutter(reader.next, reader.end)
    found: list[Event] = []
    for piece in pieces(reader):
        found += cutter.records(bytes(piece.data)) if isinstance(piece, Records) else cutter.gap(piece)
    return [*found, *list(cutter.end(min(reader.next, reader.end)))[:-1]]


def messages(found: list[Event]) -> dict[int, bytes]:
    return {s: body for event in found if isinstance(event, StoredBatch) for s, _, body in event.messages()}


def missing(found: list[Event]) -> set[int]:
    return {s for event in found if isinstance(event, Gap) for s in range(event.first, event.end)}


def test_every_range_is_read_exactly(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=2000) as store:
        bodies = fill(store, 50)
        assert len(store.segments()) > 2
        for start in range(51):
            for end in (start, start + 1, start + 7, 50):
                if end <= 50:
                    found = events(past(store).open(start, end, CHUNK))
                    assert messages(found) == {s: bodies[s] for s in range(start, end)}, (start, end)
                    assert not missing(found)


def test_after_a_restart_it_is_the_same(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=300_000) as store:
        bodies = fill(store, 6000)
        store.checkpoint()
    with opened(tmp_path, max_bytes_per_file=300_000) as store:
        store.sync()
        for start in (0, 1, 2998, 5999):
            assert messages(events(past(store).open(start, 6000, CHUNK))) == {s: bodies[s] for s in range(start, 6000)}


@pytest.mark.parametrize("index", [b"", b"\xff" * 160, bytes(160)])
def test_an_index_that_is_wrong_only_costs_time(tmp_path: Path, index: bytes) -> None:
    with opened(tmp_path, max_bytes_per_file=300_000) as store:
        bodies = fill(store, 6000)
        for segment in store.segments():
            segment.with_suffix(".index").write_bytes(index)
        for start in (0, 1500, 5000):
            assert messages(events(past(store).open(start, 6000, CHUNK))) == {s: bodies[s] for s in range(start, 6000)}
        assert past(store).sequence_at(1500 * 1000) == 1500


def test_a_record_that_is_longer_than_a_piece(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        bodies = fill(store, 4, 5000, batch=2)
        assert messages(events(past(store).open(0, 4, CHUNK))) == bodies


def test_only_what_is_synced_is_shown(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
        store.publish(b"written")
        assert (past(store).first, past(store).next) == (0, 3)
        store.sync()
        assert past(store).next == 4


def test_an_empty_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.log()
        nothing = past(store)
        assert (nothing.first, nothing.next, nothing.segments, nothing.bytes) == (0, 0, 0, 0)
        assert nothing.times() is None
        assert nothing.sequence_at(5) == 0
        assert pieces(nothing.open(0, 0, CHUNK)) == []
        assert LogHistory(store.store).find("unknown") is None


# Times


def test_times(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=100_000) as store:
        fill(store, 3001)
        assert past(store).times() == (0, 3000 * 1000)


def test_a_time_leads_to_the_first_message_at_or_after_it(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=100_000) as store:
        fill(store, 3000)  # batches of three share their time
        assert len(store.segments()) > 2
        for timestamp in [*range(0, 3_000_000, 41_000), 2_996_999, 2_997_000, 2_997_001, -1, 9_000_000]:
            expected = min(-(-max(timestamp, 0) // 3000) * 3, 3000)
            assert past(store).sequence_at(timestamp) == expected, timestamp


def test_a_time_is_also_found_in_what_is_not_written_yet(tmp_path: Path) -> None:
    with opened(tmp_path, ack="memory") as store:
        fill(store, 3)
        log = store.log()
        log.append(make_batch(3, [b"a"], timestamp=50_000), Receipt())
        log.append(make_batch(4, [b"b"], timestamp=60_000), Receipt())
        everything = LogHistory(store.store).find("t", synced=False)
        assert everything is not None
        assert [everything.sequence_at(t) for t in (0, 49_000, 50_001, 70_000)] == [0, 3, 4, 5]
        assert past(store).sequence_at(49_000) == 3


def test_a_time_is_found_past_damage(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=20_000) as store:
        fill(store, 1000)
        for segment in store.segments()[1:3]:
            data = bytearray(segment.read_bytes())
            data[:60] = bytes(60)
            segment.write_bytes(data)
        damaged = [int(segment.stem) for segment in store.segments()[1:3]]
        assert len(damaged) == 2
        for first in damaged:
            assert past(store).sequence_at(first * 1000) == first + 3
            assert past(store).sequence_at((first - 3) * 1000) == first - 3


# Ids and keys


def test_an_id_leads_to_its_message(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=100_000) as store:
        fill(store, 3000)
        store.checkpoint()
        found = past(store)
        for sequence in [*range(0, 3000, 41), 2999]:
            assert found.sequence_of(1000 + sequence) == sequence
        assert found.sequence_of(999) is found.sequence_of(4000) is None


def test_an_id_is_found_in_order_with_few_reads(tmp_path: Path) -> None:
    class CountedFiles(TroubledFiles):
        total = 0

        def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
            self.total += size
            return super().read_fully(descriptor, size, offset)

    files = CountedFiles()
    with opened(tmp_path, files, max_bytes_per_file=1_000_000) as store:
        fill(store, 30_000, 100, batch=1000)
        store.checkpoint()
        found = past(store)
        for sequence in [*range(0, 30_000, 1999), 29_999]:
            assert found.sequence_in_order(1000 + sequence) == sequence
        files.total = 0
        assert found.sequence_in_order(999) is found.sequence_in_order(31_000) is None
        assert files.total < 4 * INDEX_INTERVAL + 100_000  # of some 3 MB; a record has 120 kB here


def test_an_id_is_found_past_damage(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=100_000) as store:
        fill(store, 500)
        segment = store.segments()[0]
        data = bytearray(segment.read_bytes())
        place = data.index(data[:4], 100)  # the second record, of 3 to 5
        data[place : place + 60] = bytes(60)
        segment.write_bytes(data)
        assert [past(store).sequence_of(1000 + sequence) for sequence in (0, 4, 6, 499)] == [0, None, 6, 499]


def test_an_id_is_found_with_a_wrong_index_and_without_reading_a_whole_file_at_once(tmp_path: Path) -> None:
    class NotedFiles(TroubledFiles):
        largest = 0

        def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
            self.largest = max(self.largest, size)
            return super().read_fully(descriptor, size, offset)

    files = NotedFiles()
    with opened(tmp_path, files, max_bytes_per_file=1_000_000) as store:
        fill(store, 1200, 1000)
        store.checkpoint()
        index = store.segments()[0].with_suffix(INDEX_SUFFIX)
        entries = [struct.unpack_from(">QQ", index.read_bytes(), at) for at in range(0, index.stat().st_size, 16)]
        index.write_bytes(b"".join(struct.pack(">QQ", sequence + 1, offset) for sequence, offset in entries))
        files.largest = 0
        assert past(store).sequence_of(1800) == 800
        assert files.largest <= 2 * INDEX_INTERVAL


def test_an_id_is_found_also_if_the_node_had_another_number_before(tmp_path: Path) -> None:
    """Then the ids of a log do not ascend."""
    with opened(tmp_path, max_bytes_per_file=1000) as store:
        for sequence, base_id in enumerate((500, 501, 10, 11, 502, 12)):
            log = store.log()
            log.append(make_batch(sequence, [b"x" * 600], base_id=base_id), Receipt())
            store.store.write_logs()
        store.sync()
        found = [past(store).sequence_of(message_id) for message_id in (500, 501, 10, 11, 502, 12, 13)]
        assert found == [0, 1, 2, 3, 4, 5, None]


def test_keys_lead_to_their_messages_the_newest_segment_first(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=1000) as store:
        log = store.log()
        payload, offsets = b"\0\0\0\1a\0\0\0\1b", (0, 5, 10)
        places: list[tuple[bytes, int, int]] = []
        for number in range(30):
            sequence = log.tail
            delay = 1000 if number % 2 else 0
            if number % 3:
                key, flags, has = b"k-%d" % number, 0, [(b"k-%d" % number, sequence, 2)]
            else:
                key, flags, has = b"\0\2m%d" % (number % 10), KEYS, [(b"m%d" % (number % 10), sequence + 1, 1)]
            batch = Batch(
                sequence, 1000 + sequence, number + 1, payload, offsets, delay if not flags else 0, key, flags
            )
            log.append(batch, Receipt())
            store.store.write_logs()
            places += has
        store.sync()
        assert len(store.segments()) == 3
        assert sorted(past(store).keys()) == sorted(places)
        assert next(iter(past(store).keys())) == places[-1]
        assert {key for key, _, _ in past(store).keys(since=21)} == {key for key, _, _ in places[20:]}
        deferred = {b"k-%d" % number for number in range(30) if number % 2 and number % 3}
        assert {key for key, _, _ in past(store).keys(deferred=True)} == deferred


# Removal


def test_a_segment_that_is_read_outlives_its_removal(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=2000) as store:
        bodies = fill(store, 50)
        before = past(store)
        reader = before.open(0, 50, CHUNK)
        store.log().release(40)
        store.sync()
        assert len(store.segments()) < 5
        assert messages(events(reader)) == bodies
        assert not before.still_has(0)
        assert before.still_has(40)


def test_a_topic_that_was_deleted_is_not_there_any_more(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 5)
        before = past(store)
        store.store.drop_log("t")
        assert not before.still_has(0)
        fill(store, 5)
        assert past(store).log_id != before.log_id


def test_a_range_in_too_many_files_is_cut(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=400) as store:
        bodies = fill(store, 3 * (MOST_FILES + 5))
        reader = past(store).open(1, 3 * (MOST_FILES + 5), CHUNK)
        assert reader.end == 3 * MOST_FILES
        assert messages(events(reader)) == {s: bodies[s] for s in range(1, reader.end)}


# Damage


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_a_gap_and_never_another_message(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with opened(tmp_path, max_bytes_per_file=3000) as store:
        bodies = fill(store, 120, random.choice([0, 20, 200]))
        segments = store.segments()
        harmed = random.sample(segments, min(2, len(segments)))
        ends = [*(int(segment.stem) for segment in segments[1:]), 120]
        sound = {
            s for it, end in zip(segments, ends, strict=True) if it not in harmed for s in range(int(it.stem), end)
        }
        for segment in harmed:
            data = bytearray(segment.read_bytes())
            start = random.randrange(len(data))
            match random.choice(["bit", "zeros", "noise", "cut", "gone"]):
                case "bit":
                    data[start] ^= 1 << random.randrange(8)
                case "zeros":
                    data[start : start + 500] = bytes(len(data[start : start + 500]))
                case "noise":
                    data[start : start + 500] = random.randbytes(len(data[start : start + 500]))
                case "cut":
                    del data[start:]
                case "gone":
                    segment.unlink()
                    continue
            segment.write_bytes(data)
        for start, end in ((0, 120), (random.randrange(120), 120)):
            found = events(past(store).open(start, end, random.choice([64, 300, 100_000])))
            got = messages(found)
            assert got.items() <= bodies.items(), f"seed {seed}"
            assert missing(found) == set(range(start, end)) - got.keys(), f"seed {seed}"
            assert sound & set(range(start, end)) <= got.keys(), f"seed {seed}"


def test_damaged_bytes_are_kept_aside(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 20, 200)
        (segment,) = store.segments()
        data = bytearray(segment.read_bytes())
        place = data.index(MAGIC, 1)
        data[place] ^= 1
        segment.write_bytes(data)
        for _ in range(2):
            events(past(store).open(0, 20, 100_000))
        (aside,) = segment.parent.glob("*.damaged.*")
        assert aside.name == f"{segment.name}.damaged.{place}"
        assert aside.read_bytes() == data[place : data.index(MAGIC, place + 1)]


def test_a_missing_file_is_one_gap(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=1000) as store:
        fill(store, 12, batch=6)
        store.segments()[0].unlink()
        first, *_ = pieces(past(store).open(2, 12, CHUNK))
        assert first == Gap(2, 6, "missing")


def test_what_the_disk_refuses_to_read_is_a_gap(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=1000) as store:
        bodies = fill(store, 12, batch=6)
        bad = store.segments()[0].name
        files.fails_for = lambda name: name == bad
        files.fail("read", errno.EIO)
        found = events(past(store).open(0, 12, CHUNK))
        assert messages(found) == {s: bodies[s] for s in range(6, 12)}
        assert missing(found) == set(range(6))


def test_files_are_closed_whatever_happens(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=400) as store:
        fill(store, 12)
        third = store.segments()[2].name
        files.fails_for = lambda name: name == third
        files.fail("open to read", errno.EMFILE)
        before = open_files(tmp_path)
        with pytest.raises(OSError, match="Too many open files"):
            past(store).open(0, 12, CHUNK)
        assert open_files(tmp_path) == before


def test_every_byte_of_a_segment_flipped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        bodies = fill(store, 9, 10)
        (segment,) = store.segments()
        whole = segment.read_bytes()
        record = len(whole) // 3
        for place in range(len(whole)):
            segment.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            found = events(past(store).open(0, 9, CHUNK))
            harmed = set(range(place // record * 3, place // record * 3 + 3))
            assert missing(found) == harmed, place
            assert messages(found) == {s: body for s, body in bodies.items() if s not in harmed}
