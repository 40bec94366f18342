"""JournalRotation of the journal: when it is due, which snapshots are still to come, and which files they replace."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqd.broker.store import Entry
from nsqd.log.journal import rotation
from nsqd.log.journal.rotation import ROTATE_AT, JournalRotation, missing_snapshots

OLD = Path("journal.000001")


def state_of(topic: str) -> list[Entry]:
    return [("topic", topic), ("wait", topic, "c", [1, 1, 0]), ("channel", topic, "d", 0)]


def told(it: JournalRotation) -> list[Entry]:
    """Return what is written until all snapshots are there."""
    changes: list[Entry] = []
    while it.lacks_snapshots:
        changes += it.next_changes(state_of)
        it.written()
    return changes


def test_size_asks_for_a_rotation_and_so_does_growth() -> None:
    it = JournalRotation()
    assert not it.is_wanted(ROTATE_AT)
    assert it.is_wanted(ROTATE_AT + 1)
    it.recovered(ROTATE_AT, [], is_due=False)
    assert not it.is_wanted(4 * ROTATE_AT)
    assert it.is_wanted(4 * ROTATE_AT + 1)


def test_none_begins_while_one_goes_on() -> None:
    it = JournalRotation()
    it.begin(OLD, ["a"])
    assert not it.is_wanted(10 * ROTATE_AT)


def test_small_snapshots_are_told_whole() -> None:
    it = JournalRotation()
    it.begin(OLD, ["a", "b"])
    assert told(it) == [("snapshot", "a"), *state_of("a"), ("snapshot", "b"), *state_of("b")]
    assert it.is_complete


def test_long_snapshots_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "PIECE_WEIGHT", 4)
    it = JournalRotation()
    it.begin(OLD, ["a"])
    topic, wait, channel = state_of("a")
    assert told(it) == [("begin", "a"), ("part", "a", [topic, wait]), ("part", "a", [channel]), ("end", "a", 2)]


def test_a_piece_that_was_not_written_begins_the_snapshot_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "PIECE_WEIGHT", 4)
    it = JournalRotation()
    it.begin(OLD, ["a"])
    it.next_changes(state_of)
    it.written()
    it.next_changes(state_of)
    it.start_anew()
    assert [change[0] for change in told(it)] == ["begin", "part", "part", "end"]


def test_files_before_go_at_the_end_and_not_earlier() -> None:
    it = JournalRotation()
    it.recovered(0, [Path("journal.000000")], is_due=True)
    it.begin(OLD, [])
    assert it.is_complete
    assert it.end(100) == [Path("journal.000000"), OLD]
    assert (it.replaced, it.is_due) == ([], False)


def test_what_is_lost_during_a_rotation_makes_another_one_due() -> None:
    it = JournalRotation()
    it.need()
    it.begin(OLD, [])
    it.need()
    it.end(100)
    assert it.is_wanted(0)


def test_a_file_tells_which_snapshots_it_lacks() -> None:
    it = JournalRotation()
    begun = it.begin(OLD, ["a", "b", "c"])
    assert missing_snapshots([begun, ("snapshot", "a"), ("begin", "b"), ("drop", "c")]) == {"b"}
