"""Finds the user behind each event, and records it.

    events of a sweep ──► a user's action here?  ──yes──► the action is recorded already
                              │ no
                              └─► done by a person? ──► asks the nodes concerned ──► recorded, "outside nsqadmin"

We ask nodes (`/changes` of our nsqd) about changes that this nsqadmin hasn't made. Some changes leave no trace in a
sweep: an emptied channel looks like one with fast consumers. So we also ask nodes every few sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.cluster.causes import (
    UNSEEN,
    Change,
    cause_of,
    change_behind,
    event_of,
    is_by_somebody,
    is_made_by,
    is_number,
    read_changes,
    with_cause,
)
from nsqadmin.cluster.events import PAUSED_ITSELF
from nsqadmin.cluster.model import Activity, Paused, PausedBy, PausedHow, Snapshot
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.cluster.model import Node
    from nsqadmin.upstream.client import Upstream

_SHORTEST: Final = 30.0  # seconds for which an action can be the cause of later events; we see a slow node late
_SWEEPS: Final = 3  # the same, in sweeps
_MOST_NODES: Final = 100  # nodes to ask about the events of one sweep
_EVERY: Final = 15.0  # seconds between asking all nodes for changes that no sweep sees


@dataclass(slots=True, eq=False)
class _Told:
    """A node's report about its changes."""

    start_time: float | None  # after a restart, numbers start again
    reached: int = 0
    recent: list[Change] = field(default_factory=list)
    lock: trio.Lock = field(default_factory=trio.Lock)  # two queries at a time would get the same changes


class Inquiry:
    def __init__(self, upstream: Upstream, activity: ActivityLog) -> None:
        self._upstream = upstream
        self._activity = activity
        self._pauses: dict[tuple[str, str], PausedBy] = {}  # by topic and channel
        self._put_off: list[Activity] = []  # events about a topic that a user's action is changing right now
        self._open: list[Activity] = []  # events whose cause we have yet to ask for
        self._told: dict[str, _Told] = {}  # by the node's address
        self._heard: list[tuple[str, Change]] = []  # changes that no sweep sees, with the nodes that reported them
        self._began: float | None = None  # time of the first look; earlier changes aren't news
        self._asked_all_at = 0.0

    def look_into(self, now: Snapshot, events: Iterable[Activity]) -> Snapshot:
        """Record the events with a known cause, and return the snapshot with who has paused what."""
        recent = self._recent(now)
        seen, self._put_off = [*self._put_off, *events], []
        for event in seen:
            if self._activity.is_under_way(event.topic):
                self._put_off.append(event)
            elif (cause := cause_of(event, recent)) is not None:
                self._note_pause(event, at=cause.at, who=cause.user, how=PausedHow.HERE)
            elif is_by_somebody(event):
                self._open.append(event)
                self._note_pause(event, at=event.at, who="", how=PausedHow.OUTSIDE)
            else:
                self._note_pause(event, at=event.at, who="", how=PausedHow.ITSELF)
                self._activity.add_event(event)
        self._record_heard(_patience(now))
        return replace(now, pauses=tuple(self._pauses_in(now, recent)))

    def ask(self, nursery: trio.Nursery, before: Snapshot, now: Snapshot) -> None:
        """Start asking for the cause of open events, if any, and now and then for unseen changes."""
        if self._began is None:
            self._began = self._asked_all_at = now.taken_at
        ours = [node for node in now.nodes if node.is_reachable and node.has_history]
        if now.taken_at - self._asked_all_at >= _EVERY:
            self._asked_all_at = now.taken_at
            for node in ours:
                nursery.start_soon(partial(self._changes, node, since=now.taken_at - _patience(now)))
        if not self._open:
            return
        events, self._open = self._open, []
        topics = {event.topic for event in events}
        concerned = {
            row.node
            for snapshot in (before, now)
            for name in topics
            if (topic := snapshot.topic(name)) is not None
            for row in topic.nodes
        }
        self._told = {address: told for address, told in self._told.items() if now.node(address) is not None}
        nodes = [node for node in ours if node.address in concerned]
        nursery.start_soon(self._find_out, events, nodes[:_MOST_NODES], _patience(now))

    # Causes

    def _recent(self, now: Snapshot) -> list[Activity]:
        """Return possible causes of events in this snapshot, and entries that rule out other causes."""
        oldest = now.taken_at - _patience(now)
        return [entry for entry in (*self._open, *self._activity.newest()) if entry.at >= oldest]

    async def _find_out(self, events: list[Activity], nodes: list[Node], within: float) -> None:
        found: list[Change] = []

        async def ask(node: Node) -> None:
            found.extend(await self._changes(node, since=min(event.at for event in events) - within))

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        for event in events:
            change = change_behind(event, found, within=within)
            entry = with_cause(event, change)
            if change is not None:
                self._note_pause(event, at=change.at, who=entry.user, how=PausedHow.OUTSIDE)
            self._activity.add_event(entry)

    async def _changes(self, node: Node, *, since: float) -> list[Change]:
        told = self._told.get(node.address)
        if told is None or told.start_time != node.start_time:
            told = self._told[node.address] = _Told(node.start_time)
        async with told.lock:
            try:
                document = await self._upstream.get_json(node.address, f"/changes?after={told.reached}")
            except UpstreamError:  # an older nsqd, one that refuses, or one that has just gone: no answer
                return []
            new = read_changes(document, clock_skew=node.clock_skew or 0.0)
            told.recent = [change for change in (*told.recent, *new) if change.at >= since]
            reached = document.get("next") if isinstance(document, dict) else None
            told.reached = reached if isinstance(reached, int) and is_number(reached) else 0
        began = self._began or 0.0
        self._heard += [(node.address, change) for change in new if change.what in UNSEEN and change.at >= began]
        return told.recent

    def _record_heard(self, within: float) -> None:
        """Record reported changes that no sweep sees, unless a user of this nsqadmin has made them."""
        heard, self._heard = self._heard, []
        actions = [entry for entry in self._activity.newest() if entry.is_action and entry.what in UNSEEN]
        for node, change in heard:
            if self._activity.is_under_way(change.topic):
                self._heard.append((node, change))
            elif not any(is_made_by(entry, node, change, within=within) for entry in actions):
                self._activity.add_event(event_of(change, node))

    # Pauses

    def _note_pause(self, event: Activity, *, at: float, who: str, how: PausedHow) -> None:
        if event.what in ("paused", PAUSED_ITSELF):
            self._pauses[event.topic, event.channel] = PausedBy(
                topic=event.topic, channel=event.channel, at=at, who=who, how=how
            )

    def _pauses_in(self, now: Snapshot, recent: list[Activity]) -> Iterator[PausedBy]:
        """Yield who has paused each topic and channel that is paused now, and forget the others."""
        known, self._pauses = self._pauses, {}
        put_off = {(event.topic, event.channel) for event in self._put_off}
        for key in _paused(now):
            found = known.get(key)
            if found is not None and found.how is PausedHow.ITSELF and not _stopped_itself(now, key):
                found = None  # a person has paused it since
            found = found or (None if key in put_off else _first_seen(key, now, recent))
            if found is not None:
                self._pauses[key] = found
                yield found


def _first_seen(key: tuple[str, str], now: Snapshot, recent: list[Activity]) -> PausedBy:
    """Return who has made a pause without an event: it was there before we looked, or a node has come up with it."""
    topic, channel = key
    cause = cause_of(Activity(at=now.taken_at, what="paused", text="", topic=topic, channel=channel), recent)
    if cause is not None:
        return PausedBy(topic=topic, channel=channel, at=cause.at, who=cause.user, how=PausedHow.HERE)
    return PausedBy(topic=topic, channel=channel, at=now.taken_at, how=PausedHow.BEFORE)


def _stopped_itself(snapshot: Snapshot, key: tuple[str, str]) -> bool:
    channel = snapshot.channel(*key)
    return channel is not None and bool(channel.paused_why)


def _paused(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for topic in snapshot.topics:
        if topic.paused is not Paused.NO:
            yield topic.name, ""
        for channel in topic.channels:
            if channel.paused is not Paused.NO:
                yield topic.name, channel.name


def _patience(snapshot: Snapshot) -> float:
    return max(_SHORTEST, _SWEEPS * snapshot.interval)
