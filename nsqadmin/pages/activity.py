"""Events and users' actions, newest first. Many equal events at once are one row with a count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.pages.undone import undoable
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.tables import page_number, part_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Activity
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_TOGETHER: Final = 60.0  # seconds between the first and the last event of a row
_FEW: Final = 2  # events that keep their own rows
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "topic_appeared": ("topic", "have appeared"),
    "topic_vanished": ("topic", "have disappeared"),
    "channel_appeared": ("channel", "have appeared"),
    "channel_vanished": ("channel", "have disappeared"),
    "consumers_gone": ("channel", "have lost their last consumer"),
    "consumers_back": ("channel", "have consumers again"),
    "paused_itself": ("channel", "have paused themselves"),
    "consumer_version": ("channel", "have consumers of another version"),
    "node_appeared": ("nsqd", "have appeared"),
    "node_down": ("nsqd", "no longer answer"),
    "node_up": ("nsqd", "answer again"),
}


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        wanted = request.query_params.get("filter", "").strip()
        kind = word_of(request, "kind", ("", "actions", "events"))
        sees = identity_of(request).sees
        words = wanted.lower().split()
        rows = [
            entry
            for entry in services.view.activity()
            if entry.is_for(sees)
            and (not kind or entry.is_action is (kind == "actions"))
            and all(word in _words_of(entry) for word in words)
        ]
        return painter.page(
            request,
            "activity.html",
            snapshot,
            current="Activity",
            scope="overview",
            page=part_of(folded(rows), page_number(request)),
            wanted=wanted,
            kind=kind,
            undoable=partial(undoable, services, request),
        )

    return [Route("GET", "/activity", page)]


def _words_of(entry: Activity) -> str:
    about = f"{entry.topic}/{entry.channel} {' '.join(entry.nodes)}"
    return f"{entry.text} {entry.what} {entry.user} {entry.remote} {about} {entry.result}".lower()


@dataclass(slots=True)
class Happening:
    """A row: the newest entry, and all entries that it stands for."""

    entry: Activity
    members: list[Activity] = field(default_factory=list)

    @property
    def text(self) -> str:
        if len(self.members) == 1:
            return self.entry.text
        what, verb = _TEXTS.get(self.entry.what, ("event", f"such as: {self.entry.text}"))
        return f"{numbers.several(len(self.members), what, what if what == 'nsqd' else '')} {verb}"


def folded(entries: Iterable[Activity]) -> list[Happening]:
    """Return the rows for entries, newest first. Actions are never combined: each has its user."""
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
