"""The book of incidents: when each began, its numbers then, earlier changes, and people's marks.

An incident ends when its cause has no findings left. If it returns within `BLIP` seconds it is the same incident, with
its start and its acknowledgement; later it is a new one. Muting lasts until the chosen time, whether the incident is
there or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.cluster.model import NOTHING_YET, Activity, Severity, Snapshot
from nsqadmin.cluster.recording import from_json, to_json
from nsqadmin.diagnosis.changes import AFTER, BEFORE, Recent
from nsqadmin.diagnosis.finding_index import Index
from nsqadmin.diagnosis.grouping import group, incident_of
from nsqadmin.diagnosis.incident import CauseKind, Counts, Incident, IncidentChange, IncidentRecord, Mark, Open

if TYPE_CHECKING:
    from nsqadmin.access import Identity

BLIP: Final = 600.0  # seconds that an incident may be away and still be the same
MOST: Final = 1000  # incidents to follow; further ones are shown without their past
MOST_MUTED: Final = 1000
_COMPARE: Final = 30.0  # seconds over which we measure growth, so that the order of the cards is steady
_FIRST: Final = 2  # snapshots after the start; their incidents may have begun long before
_FORMAT: Final = 1
_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The part that survives a restart."""

    format: int
    records: tuple[IncidentRecord, ...] = ()
    muted: tuple[tuple[str, Mark], ...] = ()


class Book:
    def __init__(self, activity: Callable[[], Iterable[Activity]] = tuple) -> None:
        """`activity()` returns the activity, newest first."""
        self.version = 0  # goes up when a person marks an incident, so that earlier pages are out of date
        self._activity = activity
        self._records: dict[str, IncidentRecord] = {}
        self._muted: dict[str, Mark] = {}
        self._snapshot = NOTHING_YET
        self._incidents: tuple[Incident, ...] = ()
        self._open: tuple[Open, ...] | None = ()
        self._observed = 0

    def observe(self, snapshot: Snapshot) -> tuple[IncidentChange, ...]:
        """Follow the incidents of a new snapshot, and return the changes since the last one."""
        now, before = snapshot.taken_at, self._snapshot.taken_at
        self._snapshot, self._open = snapshot, None
        self._forget(now)
        no_groups = {it.key for it in self._incidents if it.cause.kind is not CauseKind.PATTERN}
        self._incidents = group(snapshot, known=self._records.keys() - no_groups)
        followed = self._incidents if len(self._incidents) <= MOST else sorted(self._incidents, key=_badness)[:MOST]
        recent: Recent | None = None
        for incident in followed:
            known = self._records.get(incident.key)
            record = self._followed(incident, known, now, before)
            if known is None or now - record.began <= AFTER:
                recent = recent or Recent(self._activity(), snapshot.findings, since=now - 2 * BEFORE)
                record = replace(record, changes=recent.before(incident, record.began))
            self._records[incident.key] = record
        self._observed += 1
        return ()

    def _followed(self, incident: Incident, record: IncidentRecord | None, now: float, before: float) -> IncidentRecord:
        waiting = incident.numbers.waiting
        if record is None:
            return IncidentRecord(
                key=incident.key,
                began=min(incident.since, now),
                began_before=self._observed < _FIRST,
                then=incident.numbers,
                peak=waiting,
                peak_at=now,
                last_seen=now,
                compared_at=now,
                compared=waiting,
                title=incident.title,
            )
        changed: dict[str, Any] = {"last_seen": now, "title": incident.title}
        if record.last_seen < before:
            changed["returned"] = record.returned + 1
        if waiting > record.peak:
            changed.update(peak=waiting, peak_at=now)
        if now - record.compared_at >= _COMPARE:
            changed.update(compared_at=now, compared=waiting, is_growing=waiting > record.compared)
        return replace(record, **changed)

    def _forget(self, now: float) -> None:
        """Drop incidents that have been away longer than a blip, and beyond the limit the longest away."""
        self._muted = {key: mark for key, mark in self._muted.items() if (mark.until or 0.0) > now}
        kept = [record for record in self._records.values() if record.last_seen >= now - BLIP]
        kept.sort(key=lambda record: -record.last_seen)
        self._records = {record.key: record for record in kept[:MOST]}

    # What is there now

    def open(self) -> tuple[Open, ...]:
        """Return the incidents: problems first, new before acknowledged, growing before stable, then by weight."""
        if self._open is None:
            self._open = tuple(sorted(map(self._opened, self._incidents), key=_order))
        return self._open

    def seen_by(self, user: Identity) -> tuple[Open, ...]:
        """Return the incidents, reduced to what the user may see. Skips incidents that are only about hidden topics."""
        if user.sees_everything:
            return self.open()
        hidden = {topic for it in self.open() for topic in it.incident.topics if not user.sees(topic)}
        seen = [shown for it in self.open() if (shown := self._without(it, hidden, user)) is not None]
        return tuple(sorted(seen, key=_order))

    def counts(self, user: Identity | None = None) -> Counts:
        """Count the incidents, or only the ones a user sees. Remarks don't count."""
        if user is not None:
            shown = self.seen_by(user)
            return _counted((it.incident.severity, bool(it.acknowledged), bool(it.muted)) for it in shown)
        marks = {key for key, record in self._records.items() if record.acknowledged}
        return _counted((it.severity, it.key in marks, it.key in self._muted) for it in self._incidents)

    def record(self, key: str) -> IncidentRecord | None:
        """Return the record of an incident, even if it has just ended."""
        return self._records.get(key)

    def _opened(self, incident: Incident) -> Open:
        muted = self._muted.get(incident.key)
        record = self._records.get(incident.key)
        if record is None:
            return Open(incident=incident, began=incident.since, muted=muted)
        return Open(
            incident=incident,
            began=record.began,
            began_before=record.began_before,
            then=record.then,
            peak=record.peak,
            peak_at=record.peak_at,
            returned=record.returned,
            changes=record.changes,
            is_growing=record.is_growing,
            acknowledged=record.acknowledged,
            muted=muted,
        )

    def _without(self, it: Open, hidden: set[str], user: Identity) -> Open | None:
        """Return the incident without its findings about hidden topics; None if nothing is left.

        The numbers of the past are sums over everything, so we leave them out as soon as something is hidden.
        """
        seen = [finding.without_quotes() for finding in it.incident.findings if finding.topic not in hidden]
        if len(seen) == len(it.incident.findings):
            changes = tuple(entry for entry in it.changes if entry.is_for(user.sees))
            return replace(it, incident=replace(it.incident, findings=tuple(seen)), changes=changes)
        if not seen:
            return None
        return replace(
            it,
            incident=incident_of(it.incident.cause, seen, Index(self._snapshot, seen)),
            then=None,
            peak=None,
            changes=tuple(entry for entry in it.changes if not entry.topic and not entry.also),
        )

    # What people say

    def acknowledge(self, key: str, mark: Mark | None) -> bool:
        """Acknowledge an incident, or undo that with None. Return False if it is gone."""
        record = self._records.get(key)
        if record is None:
            return False
        self._records[key] = replace(record, acknowledged=mark)
        self._marked()
        return True

    def mute(self, key: str, mark: Mark | None) -> bool:
        """Mute an incident until `mark.until`, or unmute it with None. Return False if too many are muted."""
        if mark is None:
            self._muted.pop(key, None)
        elif key not in self._muted and len(self._muted) >= MOST_MUTED:
            return False
        else:
            self._muted[key] = mark
        self._marked()
        return True

    def _marked(self) -> None:
        self.version += 1
        self._open = None

    # Over a restart

    def dump(self) -> Any:
        """Return everything worth keeping, as plain values."""
        kept = _Kept(format=_FORMAT, records=tuple(self._records.values()), muted=tuple(self._muted.items()))
        return to_json(kept)

    def load(self, dumped: Any) -> None:
        """Restore the output of `dump`. Raise ValueError for anything else."""
        kept = from_json(_Kept, dumped)
        if kept.format != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {kept.format}")
        self._records = {record.key: record for record in kept.records[:MOST]}
        self._muted = dict(kept.muted[:MOST_MUTED])


def in_view(incidents: Sequence[Open]) -> tuple[list[Open], list[Open], list[Open]]:
    """Split the incidents into urgent ones, muted ones, and remarks."""
    wrong = [it for it in incidents if it.incident.severity is not Severity.INFO]
    remarks = [it for it in incidents if it.incident.severity is Severity.INFO]
    return [it for it in wrong if not it.muted], [it for it in wrong if it.muted], remarks


def _counted(incidents: Iterable[tuple[Severity, bool, bool]]) -> Counts:
    """Count incidents, each given by its severity, and whether it is acknowledged and muted."""
    number = Counter(incidents)
    loud = Counter({it: count for it, count in number.items() if it[0] is not Severity.INFO and not it[2]})
    return Counts(
        problems=sum(count for it, count in loud.items() if it[0] is Severity.PROBLEM),
        warnings=sum(count for it, count in loud.items() if it[0] is Severity.WARNING),
        acknowledged=sum(count for it, count in loud.items() if it[1]),
        muted=sum(count for it, count in number.items() if it[0] is not Severity.INFO and it[2]),
    )


def _badness(incident: Incident) -> tuple[object, ...]:
    return _SEVERITIES[incident.severity], -incident.weight, incident.key


def _order(it: Open) -> tuple[object, ...]:
    """Return the sort key of a card. Weights count by powers of two, so that small changes don't move cards."""
    size = int(it.incident.weight).bit_length()
    return _SEVERITIES[it.incident.severity], bool(it.acknowledged), not it.is_growing, -size, it.began, it.key
