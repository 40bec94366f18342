"""What random lives have brought to light, each as short as it can be."""

from __future__ import annotations

from random import Random

from tests.faults.disk import DATA_PATH, Crash, SimulatedDisk
from tests.integration.log.harness import OpenStore, texts


def restart(store: OpenStore, disk: SimulatedDisk, crash: Crash, **settings: object) -> OpenStore:
    store.kill()
    disk.crash(crash, Random(0))
    return OpenStore(DATA_PATH, disk, **settings)


def test_topic_made_anew_keeps_its_files_when_the_old_ones_go() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk, max_bytes_per_file=61)
    store.publish(b"a")
    store.publish(b"b")
    store.checkpoint()
    store.log().release(2)  # the first segment is to be removed by the next round
    store.store.drop_log("t")
    store.publish(b"c")
    store.sync()
    store = restart(store, disk, Crash.KILL)
    assert texts(store.read()) == "c"


def test_so_does_one_made_anew_while_a_round_is_going_on() -> None:
    disk = SimulatedDisk()
    store = OpenStore(DATA_PATH, disk, max_bytes_per_file=61)
    store.publish(b"a")
    store.publish(b"b")
    store.checkpoint()
    store.log().release(2)
    round_ = store.store.begin_round()
    store.store.drop_log("t")
    store.publish(b"c")
    round_.perform(disk)
    store.store.end_round(round_)
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
