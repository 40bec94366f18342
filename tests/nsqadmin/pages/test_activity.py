"""What happened many times at once is one row of the page Activity."""

from __future__ import annotations

from nsqadmin.cluster.model import Activity
from nsqadmin.pages.activity import folded


def entry(what: str, at: float, **fields: object) -> Activity:
    return Activity(at=at, what=what, text=f"{what} at {at:g}", **fields)  # type: ignore[arg-type]


def texts(*entries: Activity) -> list[str]:
    return [row.text for row in folded(sorted(entries, key=lambda it: -it.at))]


def test_312_topics_at_the_start_are_one_row() -> None:
    rows = folded([entry("topic_appeared", 100, topic=f"t{number}") for number in range(312)])
    assert [(row.text, len(row.members)) for row in rows] == [("312 topics have appeared", 312)]


def test_two_events_stay_two_rows() -> None:
    assert texts(entry("node_down", 5), entry("node_down", 6)) == ["node_down at 6", "node_down at 5"]


def test_what_is_a_minute_apart_is_another_row() -> None:
    events = [entry("node_down", at) for at in (0, 1, 2, 90, 91, 92)]
    assert texts(*events) == ["3 nsqd no longer answer", "3 nsqd no longer answer"]


def test_actions_are_never_folded() -> None:
    actions = [entry("pause_channel", at, user="ana", result="ok") for at in range(5)]
    outside = [entry("paused", at, is_outside=True) for at in range(5)]
    assert len(folded([*actions, *outside])) == 10


def test_rows_are_in_the_order_of_their_newest_entry() -> None:
    mixed = [entry("topic_vanished", 9), entry("x", 8), entry("y", 7), entry("x", 6), entry("x", 5)]
    assert texts(*mixed) == ["topic_vanished at 9", "3 events such as: x at 8", "y at 7"]
