"""Events on the time axis of charts: what may explain a bend in a curve.

These are actions on messages and channels (pause, kick, empty), nodes that go and return, consumers of a new version,
and the start of nsqadmin, before which there may be a gap. They come from the activity log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nsqadmin.cluster.model import Activity
    from nsqadmin.cluster.time_range import Window

_SHOWN: Final = frozenset(
    (
        *("pause_topic", "pause_channel", "unpause_topic", "unpause_channel", "paused", "unpaused", "paused_itself"),
        *("empty_topic", "empty_channel", "kick_buried", "undo_kick", "discard_buried", "seek_channel"),
        *("node_down", "node_up", "node_gone", "node_appeared", "nsqd_restarted", "taken_over"),
        "consumer_version",
    )
)
_DONE: Final = frozenset(("ok", "partly"))
_GROUPS: Final = 48  # at most on an axis; nearer events are one mark
_IN_A_TIP: Final = 4  # texts of a mark
MOST_LISTED: Final = 200
STARTED: Final = "nsqadmin started; it doesn't know earlier events"


@dataclass(frozen=True, slots=True)
class Annotation:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Events that are one mark, because they are too close together."""

    at: float  # of the first one
    texts: tuple[str, ...]

    @property
    def tip(self) -> str:
        left = len(self.texts) - _IN_A_TIP
        return "; ".join(self.texts[:_IN_A_TIP]) + (f"; and {left} more" if left > 0 else "")


def annotations_of(
    activity: Iterable[Activity],
    window: Window,
    *,
    sees: Callable[[str], bool],
    topic: str = "",
    channel: str = "",
    nodes: Collection[str] | None = None,
    started_at: float = 0.0,
) -> tuple[Annotation, ...]:
    """Return the events for a page, oldest first. `nodes` are those of its subject; None: all, as for the cluster."""
    found = [
        Annotation(entry.at, entry.text)
        for entry in activity
        if window.holds(entry.at)
        and entry.what in _SHOWN
        and (not entry.is_action or entry.result in _DONE)
        and _is_about(entry, topic, channel, nodes)
        and entry.is_for(sees)
    ]
    if started_at and window.holds(started_at):
        found.append(Annotation(started_at, STARTED))
    return tuple(sorted(found, key=lambda it: it.at))


def _is_about(entry: Activity, topic: str, channel: str, nodes: Collection[str] | None) -> bool:
    if not entry.topic:
        return nodes is None or any(node in nodes for node in entry.nodes)
    if not topic:
        return nodes is None
    return entry.topic == topic and (not channel or entry.channel in ("", channel))


def grouped(events: Sequence[Annotation], window: Window) -> tuple[Group, ...]:
    """Return the marks for events in the order of their times."""
    least = window.length / _GROUPS
    groups: list[tuple[float, list[str]]] = []
    for event in events:
        if groups and event.at - groups[-1][0] < least:
            groups[-1][1].append(event.text)
        else:
            groups.append((event.at, [event.text]))
    return tuple(Group(at, tuple(texts)) for at, texts in groups)
