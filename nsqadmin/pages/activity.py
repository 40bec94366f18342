"""The rows of the page Activity: what happened many times at once is one row that counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Activity

_TOGETHER: Final = 60.0  # seconds between the first and the last event of a row
_FEW: Final = 2  # events that stay rows of their own
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "topic_appeared": ("topic", "have appeared"),
    "topic_vanished": ("topic", "are gone"),
    "channel_appeared": ("channel", "have appeared"),
    "channel_vanished": ("channel", "are gone"),
    "consumers_gone": ("channel", "have lost their last consumer"),
    "consumers_back": ("channel", "have consumers again"),
    "paused_itself": ("channel", "have paused themselves"),
    "consumer_version": ("channel", "have consumers of another version"),
    "node_appeared": ("nsqd", "have appeared"),
    "node_down": ("nsqd", "no longer answer"),
    "node_up": ("nsqd", "answer again"),
}


@dataclass(slots=True)
class Happening:
    """A row: the newest entry, and those that it stands for, itself included."""

    entry: Activity
    members: list[Activity] = field(default_factory=list)

    @property
    def text(self) -> str:
        if len(self.members) == 1:
            return self.entry.text
        what, verb = _TEXTS.get(self.entry.what, ("event", f"such as: {self.entry.text}"))
        return f"{numbers.several(len(self.members), what, what if what == 'nsqd' else '')} {verb}"


def folded(entries: Iterable[Activity]) -> list[Happening]:
    """Return the rows for entries that come the newest first. Actions are never folded: each has its user."""
    rows: list[Happening] = []
    last: dict[str, Happening] = {}
    for entry in entries:
        row = last.get(entry.what)
        if entry.is_action or entry.is_outside or row is None or row.entry.at - entry.at > _TOGETHER:
            row = Happening(entry)
            rows.append(row)
            if not entry.is_action and not entry.is_outside:
                last[entry.what] = row
        row.members.append(entry)
    spread = [each for row in rows for each in ([row] if len(row.members) > _FEW else _apart(row))]
    return sorted(spread, key=lambda row: -row.entry.at)


def _apart(row: Happening) -> list[Happening]:
    return [Happening(entry, [entry]) for entry in row.members]
