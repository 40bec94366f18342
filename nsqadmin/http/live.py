"""Server-sent events: for each sample and page we compute one difference, and send it to all viewers of that page.

If a viewer reads too slowly, it gets all cells of the page instead of the missed events, so that no backlog grows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.access import Right
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.event_stream import EventStream, event
from nsqadmin.http.live_cells import BadScope, Cells, cells_of, checked_scope, difference, topic_of, topic_of_cell
from nsqadmin.http.responses import identity_of, json_answer, refusal
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Activity, Snapshot
    from nsqadmin.cluster.view import View
    from nsqadmin.diagnosis.incident_book import Book

MOST_VIEWERS: Final = 200  # streams; further browsers poll their page instead
HEARTBEAT: Final = 15.0  # seconds
_BEHIND: Final = 8  # queued events of one viewer
_RETRY: Final = b"retry: 3000\n\n"
_TRY_AGAIN: Final = "30"  # seconds after which to retry if there was no room for the viewer


class Viewer:
    """One stream to one browser."""

    def __init__(self, scope: str, identity: Identity, only: frozenset[str] = frozenset()) -> None:
        """`scope` names the page; `only` has the topics of its rows, or is empty for all."""
        self.scope = scope
        self.only = only
        self._identity = identity
        self._events: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self.health: dict[str, Any] = {}  # as last sent
        self.is_behind = True  # nothing sent yet, so the first event has all cells
        self.is_closed = False

    @property
    def sees_everything(self) -> bool:
        """True if this viewer can get the same events as all others."""
        return not self.only and self.restricted is None

    @property
    def restricted(self) -> Identity | None:
        """The user, if some topics are hidden from them."""
        return restricted(self._identity)

    def may_see(self, topic: str) -> bool:
        return not topic or ((not self.only or topic in self.only) and self._identity.sees(topic))

    def push(self, piece: bytes) -> None:
        if len(self._events) >= _BEHIND:
            self._events.clear()
            self.is_behind = True
        if not self.is_behind:
            self._events.append(piece)
        self._arrived.set()

    def close(self) -> None:
        self.is_closed = True
        self._arrived.set()

    async def events(self, whole: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """Yield the bytes to send, with a heartbeat in quiet times. `whole()` returns the event with all cells."""
        yield _RETRY
        while not self.is_closed:
            if self.is_behind:
                self.is_behind = False
                yield whole()
            while self._events:
                yield self._events.popleft()
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), HEARTBEAT)
            except TimeoutError:
                yield b": still there\n\n"


@dataclass(frozen=True, slots=True)
class _Shown:
    """The cells that the viewers of a page have. Cells of all topics would fill memory in a big cluster."""

    cells: Cells
    topics: frozenset[str] | None  # the topics whose rows these viewers have, if the page lists topics; None: all

    def has(self, topics: frozenset[str] | None) -> bool:
        return self.topics is None or (topics is not None and topics <= self.topics)

    def plus(self, cells: Cells, topics: frozenset[str] | None) -> _Shown:
        """Return it with these cells too. What it has stays, because the next difference is computed from that."""
        both = None if topics is None or self.topics is None else topics | self.topics
        return _Shown({**cells, **self.cells}, both)


class Hub:
    """All streams, by page."""

    def __init__(self, view: View, incidents: Book) -> None:
        self._view = view
        self._incidents = incidents
        self._viewers: dict[str, set[Viewer]] = {}
        self._shown: dict[str, _Shown] = {}  # by page

    def __len__(self) -> int:
        return sum(map(len, self._viewers.values()))

    def close(self) -> None:
        """End all streams, because nsqadmin is stopping."""
        for viewers in self._viewers.values():
            for viewer in viewers:
                viewer.close()

    # Events

    def send_snapshot(self, snapshot: Snapshot) -> None:
        """Send each page's viewers the changes in a new snapshot. The sampler calls this."""
        made: dict[Identity | None, dict[str, Any]] = {}
        for viewers in self._viewers.values():
            for viewer in viewers:
                who = viewer.restricted
                if who not in made:
                    made[who] = health_of(snapshot, self._incidents, who)
                if viewer.health != made[who]:
                    viewer.health = made[who]
                    viewer.push(event("health", {**viewer.health, "index": snapshot.index}))
        for scope, viewers in self._viewers.items():
            if not viewers:
                continue
            topics = _topics_of(viewers)
            cells = cells_of(snapshot, scope, topics)
            changed = difference(self._shown[scope].cells if scope in self._shown else {}, cells)
            self._shown[scope] = _Shown(cells, topics)
            for_all = _cells_event(snapshot, changed)
            for viewer in viewers:
                viewer.push(for_all if viewer.sees_everything else _cells_event(snapshot, _visible(changed, viewer)))
        for scope in [scope for scope, viewers in self._viewers.items() if not viewers]:
            del self._viewers[scope]
            self._shown.pop(scope, None)

    def send_activity(self, activity: Activity) -> None:
        piece = event("activity", to_json(activity))
        for viewers in self._viewers.values():
            for viewer in viewers:
                if activity.is_for(viewer.may_see):
                    viewer.push(piece)

    # Viewers

    @property
    def is_full(self) -> bool:
        return len(self) >= MOST_VIEWERS

    def join(self, viewer: Viewer) -> None:
        self._viewers.setdefault(viewer.scope, set()).add(viewer)

    def leave(self, viewer: Viewer) -> None:
        viewer.close()
        self._viewers.get(viewer.scope, set()).discard(viewer)

    def whole(self, viewer: Viewer) -> bytes:
        """Return the event with all cells of the viewer's page and the cluster's health.

        The next difference is computed from these cells.
        """
        snapshot = self._view.snapshot
        shown, topics = self._shown.get(viewer.scope), _topics_of([viewer])
        if shown is None:
            shown = _Shown(cells_of(snapshot, viewer.scope, topics), topics)
        elif not shown.has(topics):
            shown = shown.plus(cells_of(snapshot, viewer.scope, topics), topics)
        self._shown[viewer.scope] = shown
        viewer.health = health_of(snapshot, self._incidents, viewer.restricted)
        health = event("health", {**viewer.health, "index": snapshot.index})
        return health + _cells_event(snapshot, _visible(shown.cells, viewer))


def _topics_of(viewers: Collection[Viewer]) -> frozenset[str] | None:
    """Return the topics whose rows these viewers have; None: all."""
    if not all(viewer.only for viewer in viewers):
        return None
    return frozenset().union(*(viewer.only for viewer in viewers))


def _visible(cells: Cells, viewer: Viewer) -> Cells:
    if viewer.sees_everything:
        return cells
    return {key: value for key, value in cells.items() if viewer.may_see(topic_of_cell(key))}


def health_of(snapshot: Snapshot, incidents: Book, restricted: Identity | None) -> dict[str, Any]:
    """Return a summary of the cluster's health, for everyone or for a user who doesn't see all topics."""
    counts = incidents.counts(restricted)
    return {
        "verdict": verdict(counts.problems, counts.warnings),
        **counts._asdict(),
        "silent_nodes": len(snapshot.silent),
    }


def verdict(problems: int, warnings: int) -> str:
    """Put the counts into words: `2 problems, 1 warning`."""
    parts = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((problems, "problem"), (warnings, "warning"))
        if count
    ]
    return ", ".join(parts) or "all is well"


def _cells_event(snapshot: Snapshot, changed: Cells) -> bytes:
    return event("cells", {"index": snapshot.index, "t": snapshot.taken_at, "set": changed})


# Over HTTP


def routes(hub: Hub, view: View, incidents: Book) -> list[Route]:
    endpoints = _Endpoints(hub, view, incidents)
    return [
        Route("GET", "/events", endpoints.events, logged=False),
        Route("GET", "/api/v2/cells", endpoints.cells, logged=False),
    ]


class _Endpoints:
    def __init__(self, hub: Hub, view: View, incidents: Book) -> None:
        self._hub = hub
        self._view = view
        self._incidents = incidents

    async def events(self, request: Request) -> Response:
        viewer = self._viewer(request)
        if self._hub.is_full:
            refused = refusal(HttpError(503, "TOO_MANY_VIEWERS"))
            refused.headers["retry-after"] = _TRY_AGAIN
            return refused
        self._hub.join(viewer)
        return EventStream(lambda: self._watched(viewer), close=lambda: self._hub.leave(viewer), is_reopened=True)

    async def _watched(self, viewer: Viewer) -> AsyncIterator[bytes]:
        async for piece in viewer.events(lambda: self._hub.whole(viewer)):
            look_at(self._view, viewer.scope)
            yield piece

    async def cells(self, request: Request) -> Response:
        viewer = self._viewer(request)
        snapshot = self._view.snapshot
        look_at(self._view, viewer.scope)
        return json_answer(
            {
                **health_of(snapshot, self._incidents, viewer.restricted),
                "index": snapshot.index,
                "t": snapshot.taken_at,
                "set": _visible(cells_of(snapshot, viewer.scope, _topics_of([viewer])), viewer),
            }
        )

    def _viewer(self, request: Request) -> Viewer:
        try:
            scope = checked_scope(request.query_params.get("scope", "overview"))
        except BadScope as error:
            raise HttpError(400, "INVALID_ARG_SCOPE", details={"reason": str(error)}) from error
        identity = identity_of(request)
        if reason := identity.why_not(Right.VIEW, topic_of(scope)):
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        only = frozenset(topic for topic in request.query_params.get("only", "").split(",") if topic)
        return Viewer(scope, identity, only)


def restricted(identity: Identity) -> Identity | None:
    """Return the user if some topics are hidden from them, else None."""
    return None if identity.sees_everything else identity


def look_at(view: View, scope: str) -> None:
    """Make the next sweeps request the clients that this page shows."""
    if topic := topic_of(scope):
        view.look_at(topic)
    elif scope == "consumers":
        view.look_at()
