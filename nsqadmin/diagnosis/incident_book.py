"""The book of incidents: when each began, its numbers then, what changed just before, and what people said about it.

An incident is over when its cause has no finding any more. If it is back within `BLIP` seconds it is the same one, with its
begin and its acknowledgement; later it is a new one. That it is muted holds until the time that was chosen, whether it
is there or not.
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
from nsqadmin.diagnosis.incident import CauseKind, Counts, Incident, IncidentRecord, Mark, Open

if TYPE_CHECKING:
    from nsqadmin.access import Identity

BLIP: Final = 600.0  # seconds for which an incident may be away and is still the same
MOST: Final = 1000  # incidents that are followed; further ones are shown without their past
MOST_MUTED: Final = 1000
_COMPARE: Final = 30.0  # seconds over which growth is judged, so that the order of the cards is steady
_FIRST: Final = 2  # pictures after the start; what they show may have begun long before
_FORMAT: Final = 1
_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What survives a restart."""

    format: int
    records: tuple[IncidentRecord, ...] = ()
    muted: tuple[tuple[str, Mark], ...] = ()


class Book:
    def __init__(self, activity: Callable[[], Iterable[Activity]] = tuple) -> None:
        """`activity()` returns what happened, the newest first."""
        self.version = 0  # goes up when a person marks an incident; pages made before are then out of date
        self._activity = activity
        self._records: dict[str, IncidentRecord] = {}
        self._muted: dict[str, Mark] = {}
        self._snapshot = NOTHING_YET
        self._incidents: tuple[Incident, ...] = ()
        self._open: tuple[Open, ...] | None = ()
        self._observed = 0

    def observe(self, snapshot: Snapshot) -> None:
        """Follow the incidents of a new picture."""
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
        """Drop what has been away for longer than a blip, and the longest away beyond the bound."""
        self._muted = {key: mark for key, mark in self._muted.items() if (mark.until or 0.0) > now}
        kept = [record for record in self._records.values() if record.last_seen >= now - BLIP]
        kept.sort(key=lambda record: -record.last_seen)
        self._records = {record.key: record for record in kept[:MOST]}

    # What is there now

    def open(self) -> tuple[Open, ...]:
        """Return the incidents: problems first, new before acknowledged, growing before standing still, then by weight."""
        if self._open is None:
            self._open = tuple(sorted(map(self._opened, self._incidents), key=_order))
        return self._open

    def seen_by(self, user: Identity) -> tuple[Open, ...]:
        """Return the incidents without what the user may not see. Those of hidden topics only are left out."""
        if user.sees_everything:
            return self.open()
        hidden = {topic for it in self.open() for topic in it.incident.topics if not user.sees(topic)}
        seen = [shown for it in self.open() if (shown := self._without(it, hidden, user)) is not None]
        return tuple(sorted(seen, key=_order))

    def counts(self, user: Identity | None = None) -> Counts:
        """Count the incidents, or those that a user sees. Remarks do not count."""
        if user is not None:
            shown = self.seen_by(user)
            return _counted((it.incident.severity, bool(it.acknowledged), bool(it.muted)) for it in shown)
        marks = {key for key, record in self._records.items() if record.acknowledged}
        return _counted((it.severity, it.key in marks, it.key in self._muted) for it in self._incidents)

    def record(self, key: str) -> IncidentRecord | None:
        """Return what is known of an incident, also if it has ended a moment ago."""
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

        The numbers of the past are sums over everything, so they are left out as soon as something is hidden.
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
        """Acknowledge an incident, or with None take that back. Return False if it is not there any more."""
        record = self._records.get(key)
        if record is None:
            return False
        self._records[key] = replace(record, acknowledged=mark)
        self._marked()
        return True

    def mute(self, key: str, mark: Mark | None) -> bool:
        """Mute an incident until `mark.until`, or with None end that. Return False if too many are muted."""
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
        """Return everything that is worth keeping, as plain values."""
        kept = _Kept(format=_FORMAT, records=tuple(self._records.values()), muted=tuple(self._muted.items()))
        return to_json(kept)

    def load(self, dumped: Any) -> None:
        """Restore what `dump` returned. Raise ValueError for anything else."""
        kept = from_json(_Kept, dumped)
        if kept.format != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {kept.format}")
        self._records = {record.key: record for record in kept.records[:MOST]}
        self._muted = dict(kept.muted[:MOST_MUTED])


def in_view(incidents: Sequence[Open]) -> tuple[list[Open], list[Open], list[Open]]:
    """Divide the incidents into those that need attention, those that are muted, and mere remarks."""
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
    """Return the place among the cards. Weights count by powers of two, so that small changes do not move cards."""
    size = int(it.incident.weight).bit_length()
    return _SEVERITIES[it.incident.severity], bool(it.acknowledged), not it.is_growing, -size, it.began, it.key
