"""Bugs that random lives have found, each as a test that is as short as possible."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from nsqd.broker.journal_replay import replay
from nsqd.log.segment import segment_name
from nsqd.log.writing.unsynced import CommonFolders
from tests.nsqd.log.harness import OpenStore, texts
from tests.simulation.disk import DATA_PATH, Crash, SimulatedDisk


def restart(store: OpenStore, disk: SimulatedDisk, crash: Crash, **settings: Any) -> OpenStore:
    store.kill()
    disk.crash(crash, Random(0))
    return OpenStore(DATA_PATH, disk, **settings)


def test_topic_made_anew_keeps_its_files_when_the_old_ones_go() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk, max_bytes_per_file=61)
    store.publish(b"a")
    store.publish(b"b")
    store.checkpoint()
    store.log().release(2)  # the next sync has to remove the first segment
    store.store.drop_log("t")
    store.publish(b"c")
    store.sync()
    store = restart(store, disk, Crash.KILL)
    assert texts(store.read()) == "c"


def test_so_does_one_made_anew_while_a_sync_is_going_on() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk, max_bytes_per_file=61)
    store.publish(b"a")
    store.publish(b"b")
    store.checkpoint()
    store.log().release(2)
    sync = store.store.syncer.collect()
    store.store.drop_log("t")
    store.publish(b"c")
    sync.perform(disk)
    store.store.syncer.settle(sync)
    store = restart(store, disk, Crash.KILL)
    assert texts(store.read()) == "c"


def test_what_a_killed_process_left_unsynced_is_synced_with_its_names() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk, max_bytes_per_file=61)
    store.publish(b"a")
    store.publish(b"b")
    store = restart(store, disk, Crash.KILL)
    store.sync()
    assert store.log().synced_tail == 2
    store = restart(store, disk, Crash.FORGETS_ALL)
    assert texts(store.read()) == "ab"


def test_so_is_a_segment_that_was_begun_and_is_empty() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk)
    store.log()
    store.checkpoint()  # of a log without segments
    store.sync()
    disk.fail(28, "write", matches=lambda call: call.path.name.endswith(".log"))
    store.publish(b"a")
    store = restart(store, disk, Crash.KILL)
    store.publish(b"b")
    store.sync()
    store = restart(store, disk, Crash.FORGETS_ALL)
    assert texts(store.read()) == "b"


def test_topic_whose_folder_came_late_is_synced_with_it() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk)
    disk.fail(28, "make folder")
    store.publish(b"a")
    store.sync()
    disk.heal()
    store.clock.now += 1.0
    store.publish(b"b")
    store.sync()
    store = restart(store, disk, Crash.FORGETS_ALL)
    assert texts(store.read()) == "b"


def test_journal_file_of_a_killed_process_is_synced_with_its_name() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk)
    store.store.record(("topic", "x"), urgent=True)
    store.store.write_journal()
    store = restart(store, disk, Crash.KILL)
    store.sync()
    store = restart(store, disk, Crash.FORGETS_ALL)
    assert ("topic", "x") in store.recovered.changes


def test_what_is_told_of_a_deleted_log_is_not_about_the_next_at_later_starts() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk)
    store.publish(b"a")
    store.store.record(("topic", "t"), urgent=True)
    store.store.record(("channel", "t", "c", 1), urgent=True)
    store.checkpoint()
    store.sync()
    store.store.drop_log("t")
    store.publish(b"b")
    job = store.log().begin_sync()
    assert job is not None
    job.perform(disk, CommonFolders(disk))  # the power is cut before the journal is synced, too
    store = restart(store, disk, Crash.FORGETS_ALL)
    assert replay(store.recovered.changes)["t"].channels["c"].cursor == 0
    store.checkpoint()
    store = restart(store, disk, Crash.KILL)
    assert texts(store.read()) == "b"
    assert replay(store.recovered.changes)["t"].channels["c"].cursor == 0


def test_nothing_is_removed_while_the_journal_may_have_lost_why() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk)
    store.publish(b"a")
    store.checkpoint()
    store.sync()
    disk.fail(errno.EIO, "sync", matches=lambda call: "journal" in call.path.name)
    store.store.record(("empty", "t", "c", 1), urgent=True)
    store.sync()
    disk.heal()
    segment = store.log().folder / segment_name(0)
    store.store.remove([segment])
    store.store.record(("hold", "t", "c", True), urgent=True)
    store.sync()  # succeeds, which says nothing about what the failed sync has lost
    assert disk.exists(segment)
    store.rotate()
    store.sync()
    assert not disk.exists(segment)


class Rolled:
    """A log with a finished segment, and a newer one whose name is not durable yet."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.store = OpenStore(DATA_PATH, self.disk, max_bytes_per_file=61)
        self.store.publish(b"a")
        self.store.checkpoint()
        self.store.sync()
        self.log = self.store.log()
        self.finished, self.newest = self.log.folder / segment_name(0), self.log.folder / segment_name(1)
        self.fail_to_sync_folder()
        self.store.publish(b"b")
        self.log.release(1)
        self.store.sync()

    @property
    def has_only_the_newest(self) -> bool:
        return self.disk.exists(self.newest) and not self.disk.exists(self.finished)

    def fail_to_sync_folder(self) -> None:
        self.disk.fail(errno.ENOSPC, "sync folder", matches=lambda call: call.path == self.log.folder)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_proven", [False, True])
def test_a_log_whose_newest_name_may_be_lost_keeps_the_files_that_tell_how_far_it_went(
    seed: int, is_proven: bool
) -> None:
    rolled = Rolled()
    store, disk = rolled.store, rolled.disk
    if is_proven:
        store.clock.now += 1.0
        disk.heal()
        assert rolled.log.refusal() is None, "it is read again, and found well"
        rolled.fail_to_sync_folder()
    store.sync()
    assert disk.exists(rolled.finished)
    store.kill()
    disk.crash(Crash.FORGETS_ANY, Random(seed))
    store = OpenStore(DATA_PATH, disk)
    assert store.log().log_id == rolled.log.log_id


def test_these_files_go_when_the_names_are_safe() -> None:
    rolled = Rolled()
    rolled.disk.heal()
    rolled.store.clock.now += 1.0
    rolled.store.store.repair(has_space=True)
    rolled.store.sync()
    assert rolled.has_only_the_newest


def test_they_go_on_a_full_disk_as_well_when_only_the_folder_can_be_synced() -> None:
    rolled = Rolled()
    rolled.disk.heal()
    rolled.disk.fail(errno.ENOSPC, "write")
    for _ in range(2):
        rolled.store.clock.now += 1.0
        rolled.store.store.repair(has_space=False)
        rolled.store.sync()
    assert rolled.has_only_the_newest


def test_a_topic_made_anew_during_a_sync_that_fails_keeps_its_files() -> None:
    rolled = Rolled()
    store, disk = rolled.store, rolled.disk
    sync = store.store.syncer.collect()
    sync.perform(disk)
    assert sync.held
    store.store.drop_log("t")
    disk.heal()
    store.publish(b"c")
    store.store.syncer.settle(sync)
    store.sync()
    store.sync()
    store = restart(store, disk, Crash.KILL)
    assert texts(store.read()) == "c"
