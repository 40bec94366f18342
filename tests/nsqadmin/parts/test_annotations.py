"""Events on the time axis: which a page shows, and which are one mark."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.model import Activity
from nsqadmin.cluster.time_range import Window
from nsqadmin.parts.annotations import STARTED, Annotation, annotations_of, grouped

NOW = 1_700_000_000.0
WINDOW = Window(NOW - 720, NOW, True)


def event(what: str, at: float = NOW - 60, **about: Any) -> Activity:
    return Activity(at=at, what=what, text=f"{what} {about.get('channel', '')}".strip(), **about)


PAUSED = event("pause_channel", NOW - 300, topic="orders", channel="billing", user="ana", result="ok")
DOWN = event("node_down", NOW - 200, nodes=("n1:4151",))
NEWER = event("consumer_version", NOW - 100, topic="orders", channel="fraud")
LOG = (NEWER, DOWN, PAUSED)


def texts(*entries: Activity, sees: Any = lambda topic: True, **about: Any) -> list[str]:
    return [it.text for it in annotations_of(entries, WINDOW, sees=sees, **about)]


def test_the_cluster_has_all_events_oldest_first() -> None:
    assert texts(*LOG) == ["pause_channel billing", "node_down", "consumer_version fraud"]


def test_a_channel_has_its_own_events_and_those_of_its_nodes() -> None:
    about = {"topic": "orders", "channel": "billing"}
    assert texts(*LOG, **about, nodes={"n1:4151"}) == ["pause_channel billing", "node_down"]
    assert texts(*LOG, **about, nodes={"n2:4151"}) == ["pause_channel billing"]
    assert texts(event("paused", topic="orders"), **about, nodes=set()) == ["paused"]  # its topic was paused
    assert texts(*LOG, topic="orders", nodes=set()) == ["pause_channel billing", "consumer_version fraud"]
    assert texts(*LOG, nodes={"n1:4151"}) == ["node_down"]


def test_what_was_refused_or_is_no_news_for_a_curve_is_not_there() -> None:
    refused = event("pause_channel", topic="orders", channel="billing", result="refused")
    assert texts(refused, event("topic_appeared", topic="orders"), event("publish", topic="orders", result="ok")) == []
    assert texts(event("node_up", NOW - 800)) == []  # before the time shown


def test_nobody_reads_of_topics_that_they_may_not_see() -> None:
    assert texts(*LOG, sees=lambda topic: topic != "orders") == ["node_down"]


def test_the_start_of_nsqadmin_is_an_event() -> None:
    assert texts(*LOG, started_at=NOW - 250) == [
        "pause_channel billing",
        STARTED,
        "node_down",
        "consumer_version fraud",
    ]
    assert texts(started_at=NOW - 1000) == []


def test_events_close_together_are_one_mark_with_their_number() -> None:
    events = [Annotation(NOW - 600 + second, f"event {second}") for second in range(10)]
    first, second = grouped([*events, Annotation(NOW - 60, "late")], WINDOW)
    assert (first.at, second.tip) == (NOW - 600, "late")
    assert first.tip == "event 0; event 1; event 2; event 3; and 6 more"


@given(st.lists(st.floats(NOW - 720, NOW), max_size=300))
def test_no_event_is_lost_and_marks_never_crowd_an_axis(times: list[float]) -> None:
    groups = grouped([Annotation(at, str(at)) for at in sorted(times)], WINDOW)
    assert len(groups) <= 49
    assert [text for group in groups for text in group.texts] == [str(at) for at in sorted(times)]
