"""A channel's groups, as nodes tell them, and their sums."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from nsqadmin.cluster.message_groups import MOST_ROWS, MessageGroup, NodeGroups, is_cut, merged_groups, read_groups
from nsqadmin.cluster.sane import NotUnderstood

SECOND = 10**9


def row(name: str, held: int, **more: Any) -> dict[str, Any]:
    known = {"again": 0, "in_flight": 0, "oldest": 1, "oldest_timestamp": None, "weight": 1}
    return {"group": name, "held": held, **known, **more}


def document(*rows: Any, **more: Any) -> dict[str, Any]:
    known = {"held": 9, "groups": 2, "unsorted": 1, "ahead": 3, "max_held": 20, "held_full_since": None}
    return {**known, **more, "largest": list(rows)}


def test_an_answer_is_read_with_times_by_our_clock() -> None:
    told = read_groups("n1:1", document(row("a", 5, again=2, in_flight=1, oldest_timestamp=100 * SECOND)), skew=30.0)
    (group,) = told.largest
    assert group == MessageGroup(name="a", held=5, again=2, in_flight=1, oldest_at=70.0)
    assert group.count == 8
    assert (told.held, told.groups, told.unsorted, told.ahead, told.max_held) == (9, 2, 1, 3, 20)


@pytest.mark.parametrize("timestamp", [0, -5, 10**30, inf, nan])
def test_an_impossible_time_is_unknown(timestamp: float) -> None:
    told = read_groups("n1:1", document(row("a", 5, oldest_timestamp=timestamp)), skew=-30.0)
    assert told.largest[0].oldest_at is None


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        {},
        document(held=-1),
        document(groups="many"),
        document("a"),
        document(row("a", -1)),
        document(row("a", 1, oldest_timestamp="then")),
        document(row("a", 1, oldest_timestamp=10**400)),
        document({"group": "a"}),
        document(*[row("a", 1)] * (MOST_ROWS + 1)),
    ],
)
def test_an_odd_answer_is_not_understood(odd: Any) -> None:
    with pytest.raises(NotUnderstood):
        read_groups("n1:1", odd)


def test_groups_are_added_up_and_the_largest_comes_first() -> None:
    one = read_groups("n1:1", document(row("a", 5, oldest_timestamp=100 * SECOND), row("b", 4)))
    other = read_groups("n2:1", document(row("b", 3, in_flight=1, oldest_timestamp=90 * SECOND), row("", 1)))
    assert merged_groups([one, other]) == (
        MessageGroup(name="b", held=7, in_flight=1, oldest_at=90.0),
        MessageGroup(name="a", held=5, oldest_at=100.0),
        MessageGroup(name="", held=1),
    )


def test_whether_groups_may_be_missing() -> None:
    full = NodeGroups(node="n1:1", largest=(MessageGroup(name="a"),) * MOST_ROWS)
    assert is_cut([full])
    assert not is_cut([NodeGroups(node="n2:1")])
