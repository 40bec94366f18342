"""Who has caused what was seen: a user here, somebody outside of nsqadmin, or nobody."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.causes import cause_of, change_behind, is_by_somebody, read_changes, with_cause
from nsqadmin.cluster.model import Activity


def event(what: str, *, topic: str = "t", channel: str = "c", at: float = 100.0) -> Activity:
    return Activity(at=at, what=what, text="it happened", topic=topic, channel=channel)


def action(what: str, *, topic: str = "t", channel: str = "c", at: float = 95.0, result: str = "ok") -> Activity:
    return Activity(at=at, what=what, text="", topic=topic, channel=channel, user="ana", result=result)


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (event("paused"), action("pause_channel")),
        (event("paused", channel=""), action("pause_topic", channel="")),
        (event("unpaused"), action("unpause_channel", result="partly")),
        (event("channel_vanished"), action("delete_channel")),
        (event("channel_vanished"), action("delete_topic", channel="")),
        (event("topic_vanished", channel=""), action("delete_topic", channel="")),
        (event("topic_vanished", channel=""), action("tombstone_topic_producer", channel="")),
        (event("topic_appeared", channel=""), action("create_topic", channel="")),
        (event("topic_appeared", channel=""), action("create_channel")),
        (event("channel_appeared"), action("create_channel")),
        (event("channel_appeared"), action("restore_channel")),
    ],
)
def test_an_action_here_is_the_cause(seen: Activity, done: Activity) -> None:
    between = action("empty_channel", at=97.0)
    assert cause_of(seen, [between, done]) is done


@pytest.mark.parametrize(
    ("seen", "recorded"),
    [
        (event("paused"), []),
        (event("paused"), [action("unpause_channel")]),
        (event("paused"), [action("pause_channel", channel="other")]),
        (event("paused"), [action("pause_topic", channel="")]),  # pauses the topic, and not its channels
        (event("paused", topic="other"), [action("pause_channel")]),
        (event("paused"), [action("pause_channel", result="refused")]),
        (event("paused"), [action("pause_channel", result="failed")]),
        (event("paused"), [event("unpaused", at=98.0), action("pause_channel")]),  # somebody has reversed it since
        (event("node_down", topic="", channel=""), [action("delete_topic", channel="")]),
    ],
)
def test_other_actions_are_not(seen: Activity, recorded: list[Activity]) -> None:
    assert cause_of(seen, recorded) is None


def test_what_is_ephemeral_goes_by_itself() -> None:
    assert is_by_somebody(event("channel_vanished"))
    assert not is_by_somebody(event("channel_vanished", channel="c#ephemeral"))
    assert not is_by_somebody(event("topic_vanished", topic="t#ephemeral", channel=""))
    assert not is_by_somebody(event("channel_appeared"))
    assert is_by_somebody(event("paused", topic="t#ephemeral"))


def told(**changes: Any) -> dict[str, Any]:
    entry = {"n": 1, "at": 97_000_000_000, "what": "pause_channel", "topic": "t", "channel": "c", "who": "on call"}
    return {**entry, "remote": "10.0.0.9:5", "user": "", "user_agent": "curl/8.5.0", **changes}


def seen_with(*entries: object, skew: float = 0.0) -> Activity:
    changes = read_changes({"changes": list(entries)}, clock_skew=skew)
    return with_cause(event("paused"), change_behind(event("paused"), changes, within=30))


def test_the_node_names_who_did_it() -> None:
    named = seen_with(told())
    assert (named.user, named.remote, named.is_outside) == ("on call", "10.0.0.9:5", True)
    assert not named.is_action


def test_without_rights_it_names_the_address_only() -> None:
    named = seen_with(told(who="10.0.0.9:5"))
    assert (named.user, named.remote) == ("", "10.0.0.9:5")


def test_the_user_of_another_nsqadmin_is_named() -> None:
    named = seen_with(told(user="ana", user_agent="nsqadmin"))
    assert (named.user, named.text) == ("ana", "it happened, through an nsqadmin")


def test_the_newest_fitting_change_counts() -> None:
    old, new = told(at=80_000_000_000, who="eve"), told(at=99_000_000_000, who="ana")
    assert seen_with(new, old, told(at=99_500_000_000, what="unpause_channel")).user == "ana"


def test_a_node_with_a_wrong_clock_is_understood() -> None:
    entry = told(at=3_697_000_000_000)
    assert seen_with(entry, skew=3600.0).user == "on call"
    assert seen_with(entry).user == ""


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "changes",
        {},
        {"changes": None},
        {"changes": {"at": 1}},
        {"changes": [None, 1, "x", []]},
        {"changes": [told(at="now")]},
        {"changes": [told(at=-1)]},
        {"changes": [told(at=10**400)]},
        {"changes": [told(what=1, topic=["t"])]},
    ],
)
def test_a_hostile_answer_names_nobody(document: object) -> None:
    changes = read_changes(document, clock_skew=0.0)
    assert change_behind(event("paused"), changes, within=30) is None


def test_long_names_of_a_hostile_node_are_cut() -> None:
    assert len(seen_with(told(who="x" * 100_000)).user) == 200
