"""Changes in packed form."""

from __future__ import annotations

from nsqd.log.journal.packed_changes import PackedChanges


def test_gives_back_what_was_added_in_its_order_as_often_as_asked() -> None:
    changes = PackedChanges()
    assert list(changes) == []
    changes.extend(("defer", "t", number, 1, 1 << 41) for number in range(1234))
    changes.append(("cut", "t", 5))
    expected = [*(("defer", "t", number, 1, 1 << 41) for number in range(1234)), ("cut", "t", 5)]
    assert list(changes) == expected
    assert list(changes) == expected


def test_lists_come_back_as_tuples() -> None:
    changes = PackedChanges()
    changes.append(("part", "t", [("wait", "t", "c", [1, 2, 3])]))
    assert list(changes) == [("part", "t", (("wait", "t", "c", (1, 2, 3)),))]


def test_can_be_added_to_after_it_was_gone_through() -> None:
    changes = PackedChanges()
    changes.append(("topic", "t"))
    list(changes)
    changes.append(("drop", "t"))
    assert list(changes) == [("topic", "t"), ("drop", "t")]
