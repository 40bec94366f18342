"""Rotation of a journal on disk: kills in the middle, full disks, and snapshots in parts."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

from nsqd.broker.journal_replay import replay
from nsqd.broker.store import Entry
from nsqd.log.journal import journal, rotation
from nsqd.log.log_fault import RETRY_AFTER
from tests.nsqd.log.harness import OpenStore, TroubledFiles, opened


class Topics:
    """The state of each topic is a number, which changes increase."""

    def __init__(self, store: OpenStore, *names: str) -> None:
        self.state = dict.fromkeys(names, 0)
        self.store = store
        store.state_of = lambda name: [("set", name, self.state[name])] if name in self.state else []
        for name in names:
            store.log(name)

    def count(self, name: str) -> None:
        self.state[name] += 1
        self.store.store.record(("add", name, 1), urgent=False)


def replayed(changes: Iterable[Entry]) -> dict[object, int]:
    state: dict[object, int] = {}
    for word, name, *value in changes:
        if word == "snapshot":
            state[name] = 0
        elif word == "set":
            state[name] = int(str(value[0]))
        elif word == "add":
            state[name] = state.get(name, 0) + 1
    return state


def files_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("journal.*"))


def test_changes_go_on_while_the_journal_is_rotated(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topics = Topics(store, "a", "b", "c")
        for name in "abcabc":
            topics.count(name)
        assert store.store.start_rotation()
        while store.store.journal.is_rotating:
            for name in "abc":
                topics.count(name)
            assert files_in(tmp_path) == ["journal.000001", "journal.000002"]
            assert store.write_next_snapshot()
            for name in "cba":
                topics.count(name)
        store.store.flush()
        store.sync()
        assert files_in(tmp_path) == ["journal.000002"]
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == topics.state


@pytest.mark.parametrize("snapshots", [0, 1, 2, 3])
def test_kill_in_the_middle_of_a_rotation_loses_nothing(tmp_path: Path, snapshots: int) -> None:
    with opened(tmp_path) as store:
        topics = Topics(store, "a", "b", "c")
        for name in "abcaab":
            topics.count(name)
        store.store.start_rotation()
        for _ in range(snapshots):
            store.write_next_snapshot()
            topics.count("a")
            topics.count("c")
        store.store.flush()
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == topics.state
        assert store.store.journal.wants_rotation
        state, topics = topics.state, Topics(store, "a", "b", "c")
        topics.state = state
        store.store.start_rotation()
        while store.store.journal.is_rotating:
            store.write_next_snapshot()
        store.sync()
        assert len(files_in(tmp_path)) == 1
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == state


def test_old_file_goes_only_after_the_new_one_is_synced(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        topics = Topics(store, "a")
        topics.count("a")
        store.checkpoint()
        store.store.start_rotation()
        store.write_next_snapshot()
        files.calls.clear()
        store.sync()
    assert files.calls[-3:] == [
        ("sync", "journal.000002"),
        ("sync folder", tmp_path.name),
        ("unlink", "journal.000001"),
    ]


def test_topic_made_during_a_rotation_is_in_the_new_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topics = Topics(store, "a")
        store.store.start_rotation()
        topics.state["b"] = 0
        store.log("b")
        topics.count("b")
        store.write_next_snapshot()
        store.store.flush()
        store.sync()
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == {"a": 0, "b": 1}


def test_topic_dropped_during_a_rotation_stays_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topics = Topics(store, "a", "b")
        topics.count("b")
        store.store.start_rotation()
        del topics.state["b"]
        store.store.drop_log("b")
        while store.store.journal.is_rotating:
            store.write_next_snapshot()
        store.sync()
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == {"a": 0, "b": 0}


def test_checkpoints_survive_a_rotation(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        Topics(store, "a")
        store.publish(b"x", topic="a")
        store.checkpoint()
        store.store.start_rotation()
        store.write_next_snapshot()
        store.sync()
    with opened(tmp_path) as store:
        assert store.log("a").synced_tail == 1


def test_rotation_is_wanted_when_the_file_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "ROTATE_AT", 6000)
    with opened(tmp_path) as store:
        topics = Topics(store, *(f"topic{n}" for n in range(40)))
        assert not store.store.journal.wants_rotation
        while not store.store.journal.wants_rotation:
            topics.count("topic0")
            store.store.flush()
        assert (tmp_path / "journal.000001").stat().st_size < 6100
        store.store.start_rotation()
        while store.store.journal.is_rotating:
            store.write_next_snapshot()
        store.sync()
        size = store.store.journal.size
        assert size > 1000
        assert not store.store.journal.wants_rotation
        while not store.store.journal.wants_rotation:
            topics.count("topic0")
            store.store.flush()
        assert size * 4 < store.store.journal.size < size * 4 + 100


def test_failed_sync_has_the_journal_written_anew(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        topics = Topics(store, "a")
        topics.count("a")
        files.fail("sync", errno.EIO)
        files.fails_for = lambda name: name == "journal.000001"
        store.sync()
        assert "journal.000001: input/output error" in store.store.health
        files.recover()
        store.store.repair()
        assert store.store.journal.wants_rotation
        assert store.store.start_rotation()
        store.write_next_snapshot()
        store.sync()
        assert store.store.health == "OK"
        assert files_in(tmp_path) == ["journal.000002"]
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == {"a": 1}


def test_rotation_stops_on_a_full_disk_and_goes_on(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        topics = Topics(store, "a", "b")
        topics.count("a")
        store.store.start_rotation()
        files.fail("write")
        assert not store.write_next_snapshot()
        topics.count("b")
        files.recover()
        while store.store.journal.is_rotating:
            assert store.write_next_snapshot()
        store.sync()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == {"a": 1, "b": 1}


def test_too_many_changes_that_cannot_be_written_are_left_to_the_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_UNWRITTEN", 10)
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        topics = Topics(store, "a")
        topics.count("a")
        store.store.flush()
        files.fail("write")
        for _ in range(30):
            topics.count("a")
            store.store.flush()
        assert store.store.journal.waiting < 20
        files.recover()
        store.store.repair()
        store.store.start_rotation()
        store.write_next_snapshot()
        store.sync()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == {"a": 31}


def test_full_disk_gets_no_new_journal_that_it_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old journal has space set aside, so it is the better one to keep on a full disk."""
    monkeypatch.setattr(rotation, "ROTATE_AT", 1000)
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.record(("n", "x" * 2000))
        files.fail("allocate", errno.ENOSPC)
        assert store.store.journal.wants_rotation
        assert not store.store.start_rotation()
        assert not store.store.journal.wants_rotation  # not at once
        assert store.store.health == "OK"
        assert files_in(tmp_path) == ["journal.000001"]
        files.recover()
        store.record(*[("n", "x" * 10_000)] * 7)
        assert store.store.journal.wants_rotation
        assert store.store.start_rotation()
    with opened(tmp_path) as store:
        assert len(list(store.recovered.changes)) == 8


# Snapshots in parts


def waiting(count: int) -> list[Entry]:
    return [("topic", "t"), ("channel", "t", "c", 0), *(("wait", "t", "c", [n, 1, 0]) for n in range(count))]


def states(changes: Iterable[Entry]) -> dict[int, tuple[int, int]]:
    return replay(changes)["t"].channels["c"].waiting


def test_large_snapshot_is_written_in_parts_and_counts_as_of_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "PIECE_WEIGHT", 10)
    with opened(tmp_path) as store:
        store.log("t")
        store.record(*waiting(100))
        store.state_of = lambda name: waiting(100)
        store.store.start_rotation()
        pieces = 0
        while store.store.journal.is_rotating:
            assert store.write_next_snapshot()
            if pieces < 5:  # whether a part has 5 already or not, it is finished
                store.store.record(("progress", "t", "c", 0, [5 * pieces, 5 * pieces + 1]), urgent=False)
            pieces += 1
        assert pieces > 20
        store.store.flush()
        store.sync()
        assert files_in(tmp_path) == ["journal.000002"]
    with opened(tmp_path) as store:
        assert sorted(set(range(100)) - set(states(store.recovered.changes))) == [0, 5, 10, 15, 20]


@pytest.mark.parametrize("pieces", [1, 2, 15])
def test_snapshot_that_was_not_ended_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(rotation, "PIECE_WEIGHT", 10)
    with opened(tmp_path) as store:
        store.log("t")
        store.record(*waiting(100))
        store.state_of = lambda name: waiting(100)
        store.store.start_rotation()
        for _ in range(pieces):
            store.write_next_snapshot()
        store.record(("progress", "t", "c", 0, [7, 8]))
    with opened(tmp_path) as store:
        assert sorted(states(store.recovered.changes)) == [n for n in range(100) if n != 7]


def test_snapshot_begins_again_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "PIECE_WEIGHT", 10)
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.log("t")
        store.record(*waiting(100))
        store.state_of = lambda name: waiting(50)
        store.store.start_rotation()
        store.write_next_snapshot()
        files.fail("write")
        assert not store.write_next_snapshot()
        files.recover()
        while store.store.journal.is_rotating:
            assert store.write_next_snapshot()
        store.sync()
    with opened(tmp_path) as store:
        assert sorted(states(store.recovered.changes)) == list(range(50))


def test_what_is_lost_during_a_rotation_is_told_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_UNWRITTEN", 10)
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        topics = Topics(store, "a", "b")
        store.store.start_rotation()
        store.write_next_snapshot()
        files.fail("write")
        for _ in range(30):
            topics.count("a")
            store.store.flush()
        files.recover()
        while store.store.journal.is_rotating:
            assert store.write_next_snapshot()
        store.sync()
        assert store.store.journal.wants_rotation
        store.store.start_rotation()
        while store.store.journal.is_rotating:
            assert store.write_next_snapshot()
        store.sync()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert replayed(store.recovered.changes) == topics.state


def test_no_finished_file_goes_before_snapshots_have_replaced_dropped_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_UNWRITTEN", 10)
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=100) as store:
        store.publish(b"a" * 50)
        store.publish(b"b" * 50)
        store.checkpoint()
        files.fails_for = lambda name: name.startswith("journal")
        files.fail("write")
        while store.store.journal.waiting or not store.store.journal.wants_rotation:
            store.store.record(("progress", "t", "c", 1, [0, 1]), urgent=False)
            store.store.flush()
        store.log().release(1)
        store.clock.now += RETRY_AFTER
        store.sync()
        assert len(store.segments()) == 2
        files.recover()
        store.store.repair()
        store.rotate()
        store.sync()
        assert len(store.segments()) == 1
