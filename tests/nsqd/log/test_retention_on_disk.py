"""Finished segments: how long retention keeps them, and when it drops them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from nsqd.log.retention import Retention
from tests.nsqd.log.harness import OpenStore, TroubledFiles, opened

SECOND = 1_000_000_000
RECORD = 56 + 4 + 100
SEGMENT: dict[str, Any] = {"max_bytes_per_file": 2 * RECORD}


def publish(store: OpenStore, count: int) -> None:
    for _ in range(count):
        store.publish(bytes(100))


def bases(store: OpenStore) -> list[int]:
    store.sync()
    return [int(path.stem) for path in store.segments()]


def test_time_keeps_finished_segments_until_their_newest_message_is_too_old(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(time=10 * SECOND), **SEGMENT) as store:
        publish(store, 1)
        store.clock.now += 5
        publish(store, 4)
        store.log().release(5)
        store.clock.now += 6  # the first message is 11 seconds old, its segment's second one is 6
        store.log().release(5)
        assert bases(store) == [0, 2, 4]
        store.clock.now += 4
        store.log().release(4)
        assert bases(store) == [4]


def test_bytes_keep_as_much_as_fits_behind(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(bytes=3 * RECORD), **SEGMENT) as store:
        publish(store, 5)
        store.log().release(5)
        assert bases(store) == [0, 2, 4]
        publish(store, 1)  # now there are four behind the first two
        store.log().release(6)
        assert bases(store) == [2, 4]


def test_what_is_owed_stays_however_old(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(time=SECOND, bytes=1), **SEGMENT) as store:
        publish(store, 6)
        store.clock.now += 100
        store.log().release(3)
        assert bases(store) == [2, 4]
        assert len(store.read()) == 4


def test_active_segment_is_rolled_when_all_in_it_is_too_old(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(time=10 * SECOND)) as store:
        publish(store, 3)
        store.clock.now += 9
        store.log().release(3)
        assert bases(store) == [0]
        store.clock.now += 1
        store.log().release(3)
        assert bases(store) == [3]
        store.clock.now += 100
        store.log().release(3)  # an empty one is not rolled again
        assert bases(store) == [3]
        store.publish(b"next")
    with opened(tmp_path) as store:
        assert store.read() == {3: b"next"}


def test_active_segment_that_is_not_finished_is_not_rolled(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(time=10 * SECOND)) as store:
        publish(store, 3)
        store.clock.now += 11
        store.log().release(2)
        assert bases(store) == [0]


def test_large_finished_active_segment_stays_while_it_is_young(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(time=10 * SECOND), max_bytes_per_file=10 * RECORD) as store:
        publish(store, 9)
        store.log().release(9)
        assert bases(store) == [0]


@pytest.mark.parametrize("has_index", [True, False])
def test_ages_are_found_again_after_a_start(tmp_path: Path, has_index: bool) -> None:
    settings: dict[str, Any] = {"retention": Retention(time=10 * SECOND), "max_bytes_per_file": 1000 * RECORD}
    with opened(tmp_path, **settings) as store:
        publish(store, 999)  # enough for the index to have an entry
        store.clock.now += 5
        publish(store, 1)
        store.clock.now += 1
        publish(store, 1)
        store.checkpoint()
    if not has_index:
        for path in tmp_path.rglob("*.index"):
            path.unlink()
    with opened(tmp_path, **settings) as store:
        store.clock.now += 14
        store.log().release(1001)
        assert bases(store) == [0, 1000]
        store.clock.now += 1
        store.log().release(1001)
        assert bases(store) == [1000]


def test_segment_that_does_not_tell_its_age_counts_from_the_start(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retention": Retention(time=10 * SECOND), **SEGMENT}
    with opened(tmp_path, **settings) as store:
        publish(store, 3)
        first = store.segments()[0]
    first.write_bytes(bytes(2 * RECORD))
    with opened(tmp_path, **settings) as store:
        store.clock.now += 9
        store.log().release(3)
        assert bases(store) == [0, 2]
        store.clock.now += 1
        store.log().release(2)
        assert bases(store) == [2]


def test_nothing_is_unlinked_before_the_journal_is_synced(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, retention=Retention(time=10 * SECOND), **SEGMENT) as store:
        publish(store, 3)
        store.log().release(3)
        store.sync()
        store.clock.now += 11
        files.fail("sync")
        files.fails_for = lambda name: name.startswith("journal")
        store.store.record(("freeze", "t", 3), urgent=True)
        store.log().release(3)
        store.sync()
        assert len(store.segments()) == 3  # the two segments, and a new one
        files.recover()
        assert bases(store) == [0, 2, 3]  # what the failed sync has lost was not written again yet
        store.rotate()
        assert bases(store) == [3]


def test_only_a_topic_with_its_own_retention_has_outdated_messages(tmp_path: Path) -> None:
    own = Retention(time=10 * SECOND)
    with opened(tmp_path, retention=own, topic_retention={"named": own}, **SEGMENT) as store:
        for topic in ("t", "named"):
            for _ in range(3):
                store.publish(bytes(100), topic=topic)
            store.clock.now += 5
        assert store.log("named").outdated() == 0
        store.clock.now += 10
        assert store.log("t").outdated() == 0
        assert store.log("named").outdated() == 3


def test_writing_waits_while_more_than_a_file_of_finished_bytes_is_about_to_be_removed(tmp_path: Path) -> None:
    with opened(tmp_path, **SEGMENT) as store:
        publish(store, 6)
        log = store.log()
        assert [log.file_of(sequence) for sequence in range(7)] == [0, 0, 2, 2, 4, 4, 4]
        assert not log.waits_for_removal(3), "nothing has been let go"
        log.release(2)
        assert not log.waits_for_removal(2), "a whole file, but no more"
        assert log.waits_for_removal(3)
        store.sync()
        assert not log.waits_for_removal(3), "the file is gone"


def test_files_that_were_removed_are_forgotten_although_nobody_asks_for_them(tmp_path: Path) -> None:
    """Only a topic under a bound that drops is asked whether its writes wait."""
    with opened(tmp_path, **SEGMENT) as store:
        for _ in range(20):
            publish(store, 6)
            store.log().release(store.log().tail)
            store.sync()
        assert len(store.log().expiry._leaving) < 10


def test_writing_does_not_wait_for_files_that_cannot_be_removed(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, **SEGMENT) as store:
        publish(store, 6)
        files.fail("unlink", errno.EIO)
        log = store.log()
        log.release(4)
        assert log.waits_for_removal(4)
        store.sync()
        assert not log.waits_for_removal(4)
        assert len(store.segments()) == 3, "they are still there"
