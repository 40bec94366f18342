"""Messages that outlive their segment: copied into compacted files, read from there, and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.compaction.schedule import LONGEST_COMPACTION_INTERVAL
from nsqd.log.retention import Retention
from tests.nsqd.log.batches import facts, make_batch
from tests.nsqd.log.harness import Crash, CrashingFiles, OpenStore, TroubledFiles, opened

RECORD = 56 + 4 + 100
SEGMENT: dict[str, Any] = {"max_bytes_per_file": 4 * RECORD, "mem_queue_size": 0}


def body(number: int) -> bytes:
    return b"%d" % number + bytes(100 - len(b"%d" % number))


class Topic:
    """What a channel needs of the log of topic t while its cursor is at the tail."""

    def __init__(self, store: OpenStore) -> None:
        self.store = store
        self.log = store.log()
        self.needed: set[int] = set()
        self.passed: int | None = None  # the tail
        store.exceptions_of = lambda topic: [sorted(self.needed)]

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.store.publish(body(self.log.tail))

    def release(self) -> None:
        passed = self.log.tail if self.passed is None else self.passed
        self.log.release(min(self.needed, default=passed), passed)

    def let_one_be_needed(self) -> None:
        """Publish nine messages in three segments, of which only the second message is still needed."""
        self.publish(9)
        self.needed = {1}
        self.release()

    def compaction(self) -> int:
        """Compact, and return how many compacted files were written or removed."""
        self.release()
        done = self.store.compaction()
        self.store.sync()
        return len(done)

    def segments(self) -> list[int]:
        return [int(path.stem) for path in self.store.segments()]

    def compacted_files(self) -> list[str]:
        return sorted(path.name for path in self.log.folder.glob("carried.*"))

    def read_needed(self) -> None:
        for sequence in self.needed:
            assert self.log.next_readable(sequence) == sequence
            batch = self.store.batch_at(self.log, sequence)
            assert batch is not None
            assert batch.body(sequence) == body(sequence)


def test_single_message_does_not_keep_its_segment(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1}
        assert topic.compaction() == 1
        assert (topic.segments(), topic.compacted_files(), topic.log.first) == ([8], ["carried.000001"], 8)
        topic.read_needed()
        assert [topic.log.next_readable(n) for n in (0, 1, 2, 7, 8)] == [8, 1, 8, 8, 8]
        assert [header.base_sequence for header in store.log().reader.headers_from(0)] == [8]


def test_compacted_message_is_what_it_was(tmp_path: Path) -> None:
    batch = make_batch(0, [body(n) for n in range(9)], timestamp=77, delay_ms=5000, base_id=1 << 63)
    with opened(tmp_path, max_bytes_per_file=1000, mem_queue_size=0) as store:
        topic = Topic(store)
        topic.log.append(batch, Receipt())
        store.store.write_logs()
        topic.publish(1)
        topic.needed = {3, 4, 6}
        topic.compaction()
        found = store.batch_at(topic.log, 4)
        assert found is not None
        assert facts(found) == facts(
            make_batch(3, [body(3), body(4)], timestamp=77, delay_ms=5000, base_id=(1 << 63) + 3)
        )
        assert found.ids(4, 5) == batch.ids(4, 5)


def test_segment_of_which_half_is_needed_stays(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(5)
        topic.needed = {0, 2}
        assert topic.compaction() == 0
        assert topic.segments() == [0, 4]
        topic.needed = {2}
        assert topic.compaction() == 1
        assert topic.segments() == [4]


def test_full_segment_does_not_hold_up_finished_ones_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(5)
        topic.needed = {0, 1, 2, 3}
        assert topic.compaction() == 0
        topic.publish(4)
        assert topic.compaction() == 0
        topic.publish(4)
        assert topic.compaction() == 1
        assert topic.segments() == [12]
        topic.read_needed()


def test_segment_that_a_cursor_has_not_passed_stays(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1}
        topic.passed = 7
        topic.compaction()
        assert topic.segments() == [4, 8]


def test_segment_that_retention_wants_stays_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(time=10_000_000_000), **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1}
        assert topic.compaction() == 0
        store.clock.now += 10
        assert topic.compaction() == 1
        topic.read_needed()


def test_compacted_file_goes_when_nothing_in_it_is_needed(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1, 6}
        topic.compaction()
        topic.publish(1)
        topic.needed = {9}  # it is in the last segment, so low water says nothing about the compacted file
        topic.compaction()
        assert topic.compacted_files() == []


def test_compacted_file_is_kept_while_something_in_it_is_needed(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1, 6}
        topic.compaction()
        topic.needed = {6}
        assert topic.compaction() == 0
        topic.read_needed()
        assert topic.compacted_files() == ["carried.000001"]


def test_compacted_files_are_joined_so_that_there_are_few(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(1)
        for _ in range(64):
            topic.publish(4)
            topic.needed.add(topic.log.tail - 3)
            topic.compaction()
        assert len(topic.compacted_files()) <= 7
        assert topic.log.first == topic.log.tail - 1
        topic.read_needed()


@pytest.mark.parametrize("is_cached", [True, False])
def test_compacted_files_are_found_after_a_start(tmp_path: Path, is_cached: bool) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(21)
        topic.needed = {1, 2, 6, 11}
        topic.compaction()
    with opened(tmp_path, **SEGMENT) as store:
        store.store.reads.reads_cache = is_cached
        topic = Topic(store)
        topic.needed = {1, 2, 6, 11}
        assert topic.log.first == 20
        topic.read_needed()
        topic.needed = {20}
        topic.compaction()
        assert topic.compacted_files() == []


def test_only_what_is_synced_is_compacted_and_then_without_being_asked_again(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.let_one_be_needed()
        store.store.compaction.clear()
        assert topic.log.compaction.begin() is None
        assert not store.store.compaction
        store.sync()
        assert topic.log.compaction in store.store.compaction
        store.compaction()
        store.sync()
        assert topic.segments() == [8]
        topic.read_needed()


def test_segment_stays_when_a_cursor_has_gone_back_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.let_one_be_needed()
        store.sync()
        plan = topic.log.compaction.begin()
        assert plan is not None
        plan.mark_needed([1])
        job = topic.log.compaction.decide(plan, 0.0)
        assert job is not None
        topic.log.release(0, 0)
        topic.needed = {1, 2}
        topic.release()
        job.perform(store.store.files)
        store.store.end_compaction(topic.log.compaction, job)
        store.sync()
        assert topic.segments() == [0, 4, 8]
        topic.compaction()
        assert (topic.segments(), topic.compacted_files()) == ([8], ["carried.000002"])
        topic.read_needed()


def test_compacted_file_stays_when_something_in_it_is_needed_again_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1, 6}
        topic.compaction()
        topic.publish(8)
        topic.needed = {6, 9}
        topic.release()
        store.sync()
        plan = topic.log.compaction.begin()
        assert plan is not None
        plan.mark_needed([6, 9])
        job = topic.log.compaction.decide(plan, 0.0)
        assert job is not None
        assert len(job.done) == 0
        topic.log.release(1)
        topic.needed = {1, 6, 9}
        topic.release()
        job.perform(store.store.files)
        assert len(job.done) == 1
        store.store.end_compaction(topic.log.compaction, job)
        store.sync()
        topic.read_needed()
        topic.compaction()
        topic.read_needed()
        assert topic.compacted_files() == ["carried.000003"]


@pytest.mark.parametrize("is_decided", [True, False])
def test_topic_made_anew_gets_nothing_of_the_old_one(tmp_path: Path, is_decided: bool) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.let_one_be_needed()
        store.sync()
        plan = topic.log.compaction.begin()
        assert plan is not None
        plan.mark_needed([1])
        job = topic.log.compaction.decide(plan, 0.0) if is_decided else None
        store.store.drop_log("t")
        again = Topic(store)
        again.publish(9)
        job = job or topic.log.compaction.decide(plan, 0.0)
        if job is not None:
            job.perform(store.store.files)
            store.store.end_compaction(topic.log.compaction, job)
        assert (again.segments(), again.compacted_files()) == ([0, 4, 8], [])


def test_disk_that_is_full_leaves_everything_as_it_was(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1}
        for operation in ("open", "write", "sync", "rename", "sync folder"):
            files.fails_for = lambda name: name.startswith("carried") or name == "t.t"
            files.fail(operation)
            assert topic.compaction() == 1
            assert topic.segments() == [0, 4, 8], operation
            files.recover()
        topic.read_needed()
        topic.compaction()
        assert topic.segments() == [8]
        topic.read_needed()


def test_segment_with_damage_where_something_is_needed_stays(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        _, second = store.segments()[:2]
        data = bytearray(second.read_bytes())
        data[RECORD + 80] ^= 1  # in the payload of message 5
        second.write_bytes(data)
        topic.needed = {1, 5}
        topic.compaction()
        assert topic.segments() == [4, 8]
        assert topic.log.next_readable(5) == 6
        assert [(damage.first, damage.end) for damage in store.store.damage] == [(5, 6)]
        topic.needed = {1}
        topic.compaction()
        assert topic.segments() == [8]
        assert len(list(topic.log.folder.glob("*.damaged.*"))) == 1


def test_damage_that_keeps_a_segment_is_not_tried_every_second(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        damaged = store.segments()[1]
        data = bytearray(damaged.read_bytes())
        data[RECORD + 80] ^= 1  # in the payload of message 5
        damaged.write_bytes(data)
        topic.needed = {5}
        topic.compaction()  # the first segment goes
        topic.compaction()
        assert (topic.segments(), topic.log.compaction.due_at) == (
            [4, 8],
            store.clock.now + LONGEST_COMPACTION_INTERVAL,
        )
        assert topic.compacted_files() == []


def test_damage_in_a_compacted_file_costs_the_message_it_is_in(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(21)
        topic.needed = {1, 6, 11}
        topic.compaction()
        path = topic.log.folder / "carried.000001"
        data = bytearray(path.read_bytes())
        data[RECORD + 80] ^= 1
        path.write_bytes(data)
        assert store.batch_at(topic.log, 6) is None
        assert topic.log.next_readable(6) == 20
        assert [(damage.file, damage.first, damage.end) for damage in store.store.damage] == [("carried.000001", 6, 7)]
        topic.needed = {1, 11}
        topic.read_needed()
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.needed = {1, 11}
        topic.read_needed()
        assert topic.log.next_readable(6) == 20
        assert [(damage.file, damage.offset) for damage in store.store.damage] == [("carried.000001", RECORD)]


@pytest.mark.parametrize("cut", range(1, 3 * RECORD, 7))
def test_short_compacted_file_keeps_what_is_whole(tmp_path: Path, cut: int) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(21)
        topic.needed = {1, 6, 11}
        topic.compaction()
        path = topic.log.folder / "carried.000001"
    path.write_bytes(path.read_bytes()[:-cut])
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.needed = set(sorted({1, 6, 11})[: (3 * RECORD - cut) // RECORD])
        topic.read_needed()
        assert bool(store.store.damage) is (cut % RECORD != 0)


def compacted_until_crash(folder: Path, changes: int) -> bool:
    """Compact twice on a disk that stops after this many changes. Return whether that was not reached."""
    with opened(folder, **SEGMENT) as store:
        Topic(store).publish(9)
        store.checkpoint()
    files = CrashingFiles(10_000)
    with opened(folder, files, **SEGMENT) as store:
        topic = Topic(store)
        store.sync()
        topic.needed = {1, 6}
        files.left = changes
        try:
            topic.compaction()
            topic.publish(4)
            topic.needed = {6, 9}
            topic.compaction()
        except Crash:
            return False
    return True


def test_crash_at_any_step_loses_nothing(tmp_path: Path) -> None:
    steps, ended = 0, False
    while not ended:
        folder = tmp_path / str(steps)
        folder.mkdir()
        ended = compacted_until_crash(folder, steps)
        with opened(folder, **SEGMENT) as store:
            topic = Topic(store)
            topic.needed = {6}
            topic.read_needed()
            assert not [damage for damage in store.store.damage if not damage.text.startswith("torn tail")]
            topic.compaction()
            topic.read_needed()
            assert topic.log.first >= 8
        steps += 1
    assert steps > 10


def test_names_of_messages_are_told_for_channels_that_lost_their_journal(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(1)
        store.publish(b"later", b"and later", delay_ms=5000)
        at = store.wall() // 1_000_000
        topic.publish(6)
        topic.needed = {0, 1, 2}
        topic.passed = 9
        topic.publish(9)
        topic.compaction()
        assert list(topic.log.reader.compacted_messages()) == [(0, 1, 0), (1, 2, at + 5001)]
