"""The journal on disk: when changes are written and synced, and a disk that fails or is full."""

from __future__ import annotations

import errno
from pathlib import Path

from nsqd.broker.store import Entry
from nsqd.log.files import DiskError
from nsqd.log.journal import journal
from tests.nsqd.log.harness import TroubledFiles, numbers, opened


def test_changes_come_back_in_order(tmp_path: Path) -> None:
    changes: list[Entry] = [("topic", "t"), ("try", "t", "c", 2, (1, 2, 3)), ("pause", "t", True)]
    with opened(tmp_path) as store:
        store.record(*changes)
    with opened(tmp_path) as store:
        assert list(store.recovered.changes) == changes


def test_urgent_changes_are_written_in_the_turn_and_take_the_others_along(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.store.record(("n", 1), urgent=False)
        store.store.write_journal()
        assert ("write", "journal.000001") not in files.calls
        store.store.record(("n", 2), urgent=True)
        assert store.store.journal.urgent
        store.store.write_journal()
        assert not store.store.journal.urgent
        assert files.calls.count(("write", "journal.000001")) == 1
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == [1, 2]


def test_other_changes_are_written_by_the_flush(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.store.record(("n", 1), urgent=False)
        store.store.flush()
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == [1]


def test_checkpoint_needs_no_sync_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.checkpoint()
        assert store.store.syncer.collect().is_empty


def test_failed_write_is_made_up_for(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.record(("n", 1))
        files.fail("write")
        files.writes_before_failing = 5
        store.store.record(("n", 2), urgent=True)
        assert not store.store.write_journal()
        assert "journal.000001: no space left on device" in store.store.health
        files.recover()
        store.store.repair()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == [1, 2]
        assert store.recovered.damage == []


def test_sync_that_goes_well_does_not_hide_that_a_write_has_failed(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.record(("n", 1))
        sync = store.store.syncer.collect()
        files.fail("write")
        store.record(("n", 2))
        sync.perform(files)
        store.store.syncer.settle(sync)
        assert store.store.journal_error is not None
        files.recover()
        store.store.repair()
        assert store.store.journal_error is None


def test_what_recovery_told_must_be_synced_before_the_journal_is_trusted(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        files.fail("write")
        store.record(("n", 1))
        store.sync()
        assert store.store.journal_error is not None
        store.store.journal_keeper.distrust(DiskError(store.store.journal_error))
        store.sync()  # of nothing
        files.recover()
        store.store.repair()
        assert store.store.journal_error is not None
        store.sync()
        assert store.store.journal_error is None
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == [1]


def test_space_is_set_aside_ahead_of_the_end(tmp_path: Path) -> None:
    files = TroubledFiles()

    def allocations() -> int:
        return files.calls.count(("allocate", "journal.000001"))

    with opened(tmp_path, files) as store:
        store.record(("n", 1))
        assert allocations() == 1
        while store.store.journal.size < journal.AHEAD // 2 - 20_000:
            store.record(("n", "x" * 10_000))
        assert allocations() == 1
        store.record(*[("n", "x" * 10_000)] * 3)
        assert allocations() == 2
        files.fail("allocate", errno.ENOSPC)
        size = store.store.journal.size
        while store.store.journal.size < size + journal.AHEAD:
            store.record(("n", "x" * 10_000))
        assert 2 < allocations() < 14
        assert store.store.health == "OK"
        files.fail("allocate", errno.EOPNOTSUPP)
        store.record(*[("n", "x" * 60_000)] * 4)
        count = allocations()
        store.record(*[("n", "x" * 60_000)] * 4)
        assert allocations() == count


def test_full_disk_is_not_tried_in_every_turn(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        files.fail("write")
        store.record(*(("n", n) for n in range(50)))
        assert files.calls.count(("write", "journal.000001")) == 1
        files.recover()
        store.clock.now += 1.0
        store.record(("n", 50))
        assert store.store.journal_error is None
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == list(range(51))
