"""A data path that a later version has written, opened by this one: nothing is lost, nothing is taken for damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqcommon.wire.history import NEWER, Gap
from nsqd.fsck.examination import Examination
from nsqd.fsck.finding import FsckSeverity
from nsqd.log.files import Files
from tests.nsqd.log.batches import bodies_of
from tests.nsqd.log.compaction.test_schedule import SEGMENT, Topic
from tests.nsqd.log.harness import OpenStore, contents, opened
from tests.nsqd.log.test_history import CHUNK, events, messages, past
from tests.support.later_version import write_later


def published(path: Path, count: int = 3) -> Path:
    """Write messages, one to a record, and return the file that has them."""
    with opened(path) as store:
        log = store.log()
        for number in range(count):
            store.publish(b"%d" % number)
        (file,) = log.folder.glob("*.log")
    return file


def read_at(store: OpenStore, sequence: int) -> bytes | None:
    batch = store.batch_at(store.log(), sequence)
    return None if batch is None else bodies_of(batch)[sequence - batch.base_sequence]


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_start_goes_on_and_the_messages_wait(tmp_path: Path, later: int) -> None:
    file = published(tmp_path)
    write_later(file, later)
    before = file.read_bytes()
    with opened(tmp_path) as store:
        log = store.log()
        assert (store.recovered.damage, log.tail) == ([], 3)
        found = [read_at(store, sequence) for sequence in range(3)]
        assert found == [None if sequence == later else b"%d" % sequence for sequence in range(3)]
        assert (log.next_readable(later), log.end_of_refused(later)) == (later, later + 1)
        assert f"a later version wrote messages {later} to {later}" in store.store.health
        assert "only such a version can read them (flags 0x8000)" in store.store.health
        store.publish(b"more")
        assert read_at(store, 3) == b"more"
        assert store.store.damage == []
    assert file.read_bytes()[: len(before)] == before
    write_later(file, later, flags=0)  # as if the later version came back
    with opened(tmp_path) as store:
        assert [read_at(store, sequence) for sequence in range(4)] == [b"0", b"1", b"2", b"more"]
        assert store.store.health == "OK"


def test_compaction_leaves_the_segment(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.let_one_be_needed()
        needed = min(topic.needed)
        for file in topic.log.folder.glob("*.log"):
            write_later(file, needed)
        before = contents(topic.log.folder)
        topic.compaction()
        assert contents(topic.log.folder) == before
        assert (store.store.damage, topic.log.waiting_for_disk) == ([], 1)


def test_a_compacted_file_stays_too(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(21)
        topic.needed = {1, 6}
        topic.compaction()
        write_later(topic.log.folder / "carried.000001", 1)
        assert store.batch_at(topic.log, 1) is None
        assert topic.log.next_readable(1) == 1
        assert "a later version wrote messages 1 to 1" in store.store.health
        topic.needed = {1}
        topic.compaction()
        assert (topic.compacted_files(), store.store.damage) == (["carried.000001"], [])


def test_fsck_names_each_stretch(tmp_path: Path) -> None:
    write_later(published(tmp_path, 6), 1, 2, 4)
    examination = Examination(Files(), tmp_path, new_id=lambda: "")
    found = [it for it in examination.run() if it.severity is not FsckSeverity.NOTE]
    assert [(it.severity, it.first, it.end) for it in found] == [
        (FsckSeverity.WARNING, 1, 3),
        (FsckSeverity.WARNING, 4, 5),
    ]
    assert {it.text for it in found} == {"written by a later version of nsqd, which is needed to read it"}


def test_history_passes_it_on(tmp_path: Path) -> None:
    write_later(published(tmp_path), 1)
    with opened(tmp_path) as store:
        store.sync()
        found = events(past(store).open(0, 3, CHUNK))
        assert sorted(messages(found)) == [0, 2]
        assert [it for it in found if isinstance(it, Gap)] == [Gap(1, 2, NEWER)]
