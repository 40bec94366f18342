from __future__ import annotations

from itertools import chain

import pytest

from nsqd.broker.journal_replay import TopicState, replay
from nsqd.go_import.layout import LogLayout, SequenceRange
from nsqd.go_import.metadata import GoTopic


def topic(*channels: str, paused: bool = False, held: tuple[str, ...] = ()) -> GoTopic:
    made = GoTopic("t")
    made.paused = paused
    made.channels = {name: name in held for name in channels}
    return made


def told(layout: LogLayout, **waiting: list[tuple[int, int]]) -> TopicState:
    """Return the state that the journal amounts to."""
    channels = (layout.waiting_changes(name, waiting.get(name, [])) for name in layout.topic.channels)
    return replay(chain(layout.changes(), *channels))["t"]


def visible(state: TopicState, channel: str, end: int) -> list[int]:
    found = state.channels[channel]
    skipped = set(chain.from_iterable(range(*it) for it in found.skips))
    return sorted([it for it in range(found.cursor, end) if it not in skipped] + list(found.waiting))


def test_each_channel_sees_its_own_backlog_and_what_the_topic_has() -> None:
    layout = LogLayout(topic("a", "b", "c", "d"), {"a": 3, "c": 2}, own=4)
    assert layout.backlogs == {"a": SequenceRange(0, 3), "c": SequenceRange(3, 5)}
    state = told(layout)
    assert state.frozen_at is None
    assert [visible(state, it, 9) for it in "abcd"] == [
        [0, 1, 2, 5, 6, 7, 8],
        [5, 6, 7, 8],
        [3, 4, 5, 6, 7, 8],
        [5, 6, 7, 8],
    ]


@pytest.mark.parametrize("held", [(), ("b",)])
def test_while_the_topic_is_paused_its_own_queue_lies_behind_h(held: tuple[str, ...]) -> None:
    state = told(LogLayout(topic("a", "b", paused=True, held=held), {"a": 3}, own=4))
    assert state.paused
    assert state.frozen_at == 3
    assert state.channels["b"].paused == bool(held)
    assert visible(state, "a", 3) == [0, 1, 2]
    assert visible(state, "b", 3) == []


def test_without_channels_everything_waits_for_the_first_one() -> None:
    state = told(LogLayout(topic(), {}, own=4))
    assert not state.paused
    assert state.frozen_at == 0


@pytest.mark.parametrize("delivered", [[3], [7], [3, 4, 5], [4, 6], [3, 4, 5, 6, 7]])
def test_what_was_delivered_before_waits_with_its_attempts(delivered: list[int]) -> None:
    layout = LogLayout(topic("a", "b", "c"), {"a": 3, "b": 5, "c": 1}, own=2)
    state = told(layout, b=[(it, it + 10) for it in delivered])
    assert visible(state, "b", 11) == [3, 4, 5, 6, 7, 9, 10]
    assert state.channels["b"].waiting == {it: (it + 10, 0) for it in delivered}
    assert list(layout.differences(state)) == []


def test_many_of_them_come_in_several_changes() -> None:
    layout = LogLayout(topic("a"), {"a": 5000}, own=0)
    changes = list(layout.waiting_changes("a", ((it, 1) for it in range(5000))))
    assert [it[0] for it in changes] == ["wait", "wait", "wait", "skip"]
    assert len(told(layout, a=[(it, 1) for it in range(5000)]).channels["a"].waiting) == 5000


@pytest.mark.parametrize(
    "other",
    [
        LogLayout(topic("a", "b", paused=True), {"a": 3}, own=2),
        LogLayout(topic("a", "b", held=("a",)), {"a": 3}, own=2),
        LogLayout(topic("a"), {"a": 3}, own=2),
        LogLayout(topic("a", "b"), {"a": 4}, own=1),
        LogLayout(topic("a", "b"), {"b": 3}, own=2),
    ],
)
def test_differences_are_seen(other: LogLayout) -> None:
    layout = LogLayout(topic("a", "b"), {"a": 3}, own=2)
    assert list(layout.differences(told(layout))) == []
    assert list(layout.differences(told(other)))
