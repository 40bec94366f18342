"""The book of incidents: when each began, its numbers then, earlier changes, and people's marks.

The findings already get worse at once and better slowly (`upkeep.py`), so an incident is there as long as one of its
findings is. It begins again when it gets worse, that is, if its severity or its effect does: from then on it has the
numbers of that moment, and the milder time before is a line of its timeline. If it comes back within `BLIP` seconds
after it has closed, it begins again, too, and the time before is such a line.

`coverage.py` decides for which incidents people's marks hold. Muting lasts until the chosen time, whether something of
it is there or not; an acknowledgement ends when nothing of it has been there for `BLIP` seconds.

`observe` returns what listeners want to know: an incident has opened, got worse or closed. Muted incidents are no news,
but listeners hear of the end of one that they know, or they would take it for open. An incident whose findings have
moved to another one, because a group has formed, isn't closed before these findings end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsqadmin import numbers
from nsqadmin.cluster.model import NOTHING_YET, Activity, Severity, Snapshot
from nsqadmin.cluster.recording import from_json, to_json
from nsqadmin.diagnosis.changes import AFTER, BEFORE, Recent
from nsqadmin.diagnosis.coverage import Coverage, Covering
from nsqadmin.diagnosis.finding_index import Index
from nsqadmin.diagnosis.grouping import group, incident_of
from nsqadmin.diagnosis.incident import (
    CauseKind,
    ChangeKind,
    Counts,
    Incident,
    IncidentChange,
    IncidentRecord,
    Mark,
    Numbers,
    Open,
    Turn,
)

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Finding

BLIP: Final = 600.0  # seconds that an incident may be away and still have its past
MOST: Final = 1000  # incidents to follow; further ones are shown without their past
_MUCH: Final = 8.0  # bits of impact: one step of effect
_MOST_TURNS: Final = 12  # of one incident
_COMPARE: Final = 30.0  # seconds over which we measure growth
_FIRST: Final = 2  # snapshots after the start; what they show may have begun long before
_FORMAT: Final = 2
_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}
_UNTOLD: Final = 3  # the rank of a finding that listeners don't know


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The part that survives a restart."""

    format: int
    records: tuple[IncidentRecord, ...] = ()
    acknowledged: tuple[Covering, ...] = ()
    muted: tuple[Covering, ...] = ()


class _Marks(NamedTuple):
    """The marks that hold for an incident."""

    acknowledged: Mark | None = None
    muted: Mark | None = None


_UNMARKED: Final = _Marks()


class _News(Enum):
    """What an observation says about an incident."""

    NONE = "none"
    NEW = "new"
    WORSE = "worse"


class Book:
    def __init__(self, activity: Callable[[], Iterable[Activity]] = tuple) -> None:
        """`activity()` returns the activity, newest first."""
        self.version = 0  # goes up when a person marks an incident, so that earlier pages are out of date
        self._activity = activity
        self._records: dict[str, IncidentRecord] = {}
        self._acknowledged = Coverage()
        self._muted = Coverage()
        self._held: dict[str, _Marks] | None = {}  # the marks that hold, by incident; None: not looked up yet
        self._snapshot = NOTHING_YET
        self._incidents: tuple[Incident, ...] = ()
        self._by_key: Mapping[str, Incident] = {}
        self._open: tuple[Open, ...] | None = ()
        self._started = 0.0  # the first snapshot
        self._first_nodes: frozenset[str] = frozenset()  # of it, if all of them answered
        self._first_topics: frozenset[str] = frozenset()
        self._observed = 0
        self._told: tuple[Incident, ...] = ()  # the incidents of the last snapshot whose findings listeners know
        self._moved: dict[str, Open] = {}  # incidents that listeners know of, and whose findings are in others now

    def observe(self, snapshot: Snapshot) -> tuple[IncidentChange, ...]:
        """Follow the incidents of a new snapshot, and return the changes since the last one."""
        now, before = snapshot.taken_at, self._snapshot.taken_at
        if not self._observed:
            self._started = now
            if all(node.is_reachable for node in snapshot.nodes):
                self._first_nodes = frozenset(node.address for node in snapshot.nodes)
                self._first_topics = frozenset(topic.name for topic in snapshot.topics)
        gone = self._by_key
        marks = self._marks
        told = [it for key, it in gone.items() if self._is_told(key)]
        self._snapshot, self._open = snapshot, None
        self._forget(now, before or now)
        no_groups = {key for key, it in gone.items() if it.cause.kind is not CauseKind.PATTERN}
        self._incidents = group(snapshot, known=self._records.keys() - no_groups)
        self._by_key = {it.key: it for it in self._incidents}
        last = {it.key: self._opened(it) for it in told if it.key not in self._by_key}
        if len(self._acknowledged):
            self._acknowledged.see({finding.key for finding in snapshot.findings}, now, most_away=BLIP)
        followed = (
            self._incidents if len(self._incidents) <= MOST else sorted(self._incidents, key=self._badness)[:MOST]
        )
        news = {it.key: self._follow(it, gone.get(it.key), now, before) for it in followed}
        self._look_up_changes(followed, news, now)
        worse = {key for key, what in news.items() if what is _News.WORSE}
        worse |= {it.key for it in followed if self._reopened(it, marks.get(it.key, _UNMARKED), now)}
        self._held = self._marks_that_hold()
        self._observed += 1
        return tuple(self._changes(followed, worse, last))

    # Records

    def _badness(self, incident: Incident) -> tuple[object, ...]:
        """Return the sort key of the incidents to follow. One that we follow stays unless another is much worse.

        Otherwise small changes would exchange incidents at the limit, and each time listeners would hear of new ones.
        """
        bonus = _MUCH if self._is_told(incident.key) else 0.0
        return incident.severity is Severity.INFO, -incident.weight - bonus, incident.key

    def _follow(self, incident: Incident, was: Incident | None, now: float, before: float) -> _News:
        """Bring the incident's record up to date. `was` is the incident in the last snapshot."""
        record = self._records.get(incident.key)
        if record is None:
            self._records[incident.key] = self._begun(incident, now)
            return _News.NEW
        if record.last_seen < before and incident.key not in self._moved:  # its findings were in another one meanwhile
            self._records[incident.key] = self._come_back(incident, record, now)
            return _News.NEW
        rank_before, rank = _SEVERITIES[record.severity], _SEVERITIES[incident.severity]
        effect = incident.effect
        if rank < rank_before or (rank == rank_before and effect > record.effect):
            self._records[incident.key] = self._begun_again(incident, record, now)
            return _News.WORSE
        waiting = incident.numbers.waiting
        changed: dict[str, Any] = {"last_seen": now, "title": incident.title}
        turns = record.turns
        if was is not None and was.is_ending and incident.returns > was.returns:
            turns = _added(turns, Turn(at=now, text=f"Back after {numbers.duration(now - was.leading.seen)}"))
            changed.update(returned=record.returned + 1)
        if rank > rank_before:
            turns = _added(turns, Turn(at=now, text=f"Milder: a {incident.severity} since then"))
            changed.update(severity=incident.severity, effect=int(effect))
        if waiting > record.peak:
            changed.update(peak=waiting, peak_at=now)
        if now - record.compared_at >= _COMPARE:
            changed.update(compared_at=now, compared=waiting, is_growing=waiting > record.compared)
        self._records[incident.key] = replace(record, turns=turns, **changed)
        return _News.NONE

    def _begun(self, incident: Incident, now: float) -> IncidentRecord:
        waiting, was_there = incident.numbers.waiting, self._was_there(incident)
        return IncidentRecord(
            key=incident.key,
            severity=incident.severity,
            effect=int(incident.effect),
            began=min(incident.since, now, self._started if was_there else now),
            began_before=was_there,
            then=incident.numbers,
            peak=waiting,
            peak_at=now,
            last_seen=now,
            compared_at=now,
            compared=waiting,
            title=incident.title,
        )

    def _begun_again(self, incident: Incident, record: IncidentRecord, now: float) -> IncidentRecord:
        """Return the record of an incident that has got worse: with its own beginning and numbers."""
        since = "before " if record.began_before else ""
        text = f"{record.severity.capitalize()} since {since}{numbers.moment(record.began)}: {record.title}"
        return replace(
            self._begun(incident, now),
            began_before=False,
            began=min(incident.since, now),
            returned=record.returned,
            is_told=record.is_told,
            turns=_added(record.turns, Turn(at=record.began, text=f"{text}{_with_numbers(record.then)}")),
        )

    def _come_back(self, incident: Incident, record: IncidentRecord, now: float) -> IncidentRecord:
        """Return the record of an incident that had closed a few minutes ago: this is another one, with a past."""
        times = f"from {numbers.moment(record.began)} to {numbers.moment(record.last_seen)}"
        turn = Turn(
            at=record.began, text=f"{record.severity.capitalize()} {times}: {record.title}{_with_numbers(record.then)}"
        )
        return replace(self._begun(incident, now), returned=record.returned + 1, turns=_added(record.turns, turn))

    def _was_there(self, incident: Incident) -> bool:
        """Return True if the incident may have begun before our first snapshot.

        A rule that looks back over some minutes finds nothing before these have passed.
        """
        leading = incident.leading
        if incident.since < self._started - self._snapshot.interval:
            return False  # we know when it began
        if self._have_appeared(incident.topics):
            return False
        return self._observed < _FIRST or incident.since - leading.window <= self._started

    def _have_appeared(self, topics: Sequence[str]) -> bool:
        """Return True if none of the topics existed at our first snapshot. A topic of a node that we didn't see then may have."""
        if not topics or not self._first_topics.isdisjoint(topics):
            return False
        return bool(self._first_nodes) and all(it.address in self._first_nodes for it in self._snapshot.nodes)

    def _look_up_changes(self, followed: Iterable[Incident], news: Mapping[str, _News], now: float) -> None:
        recent: Recent | None = None
        for incident in followed:
            record = self._records[incident.key]
            if now - record.began <= AFTER or news[incident.key] is not _News.NONE:
                recent = recent or Recent(self._activity(), self._snapshot.findings, since=now - 2 * BEFORE)
                self._records[incident.key] = replace(record, changes=recent.before(incident, record.began))

    def _forget(self, now: float, before: float) -> None:
        """Drop incidents that have been away longer than a blip, and beyond the limit the longest away.

        Those whose findings are in another incident now aren't over, so listeners have to hear of their end.

        What was there in the last snapshot, `before`, was not away, even if that is long ago: the machine may have slept.
        """
        self._muted.forget(it for it in self._muted if (it.mark.until or 0.0) <= now)
        latest = min(now - BLIP, before)
        kept = [it for it in self._records.values() if it.last_seen >= latest or it.key in self._moved]
        kept.sort(key=lambda record: -record.last_seen)
        self._records = {record.key: record for record in kept[:MOST]}

    # Marks

    def _reopened(self, incident: Incident, before: _Marks, now: float) -> bool:
        """End the marks that no longer hold, and put the reason on the timeline. Return True if it isn't muted now."""
        is_unmuted = False
        for coverage, was in ((self._acknowledged, before.acknowledged), (self._muted, before.muted)):
            mark = coverage.set_on(incident.key) or was
            if mark is None or (mark.until is not None and mark.until <= now):
                continue
            wrong = incident.wrong
            if (reason := coverage.uncovered(incident.key, wrong)) is None:
                continue
            coverage.end(incident.key, wrong)
            record = self._records[incident.key]
            turn = Turn(at=now, text=_reopening(incident, mark, *reason))
            self._records[incident.key] = replace(record, turns=_added(record.turns, turn))
            is_unmuted |= coverage is self._muted
        return is_unmuted

    @property
    def _marks(self) -> dict[str, _Marks]:
        if self._held is None:
            self._held = self._marks_that_hold()
        return self._held

    def _marks_that_hold(self) -> dict[str, _Marks]:
        if not len(self._acknowledged) and not len(self._muted):
            return {}
        found = ((it.key, self._marks_on(it)) for it in self._incidents)
        return {key: marks for key, marks in found if marks != _UNMARKED}

    def _marks_on(self, incident: Incident, *, is_whole: bool = True) -> _Marks:
        wrong = incident.wrong
        return _Marks(
            self._acknowledged.of(incident.key, wrong, is_whole=is_whole),
            self._muted.of(incident.key, wrong, is_whole=is_whole),
        )

    # What listeners are told

    def _is_told(self, key: str) -> bool:
        record = self._records.get(key)
        return record is not None and record.is_told

    def _changes(
        self, followed: Iterable[Incident], worse: set[str], last: Mapping[str, Open]
    ) -> Iterator[IncidentChange]:
        """Yield the changes since the last snapshot. `last` has the incidents that listeners know, and that are gone."""
        now, told = self._snapshot.taken_at, list[Incident]()
        known: Mapping[str, int] | None = None
        for it in followed:
            if it.severity is Severity.INFO or self._marks.get(it.key, _UNMARKED).muted is not None:
                continue
            kind = ChangeKind.WORSE if it.key in worse else None
            if not self._is_told(it.key):
                known = _ranks(self._told) if known is None else known
                is_new = any(known.get(key, _UNTOLD) > rank for key, rank in _ranks((it,)).items())
                kind = ChangeKind.OPENED if is_new else None  # if not, all of it is known from other incidents
            told.append(it)
            if kind is not None:
                self._records[it.key] = replace(self._records[it.key], is_told=True)
                yield IncidentChange(kind=kind, at=now, it=self._opened(it))
        self._told = tuple(told)
        yield from self._closed(last, now)

    def _closed(self, last: Mapping[str, Open], now: float) -> Iterator[IncidentChange]:
        """Yield the incidents that have closed: none of their findings is in another one now."""
        away = {key: was for key, was in {**self._moved, **last}.items() if key not in self._by_key}
        present = {finding.key for finding in self._snapshot.findings} if away else set[str]()
        self._moved = {}
        for key, was in away.items():
            if any(finding.key in present for finding in was.incident.wrong):
                self._moved[key] = was
                continue
            if (record := self._records.get(key)) is not None:
                self._records[key] = replace(record, is_told=False)
            yield IncidentChange(kind=ChangeKind.CLOSED, at=now, it=was)

    # What is there now

    def open(self) -> tuple[Open, ...]:
        """Return the incidents by their impact; acknowledged ones come after the others, and remarks last."""
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
        marks = ((it.severity, self._marks.get(it.key, _UNMARKED)) for it in self._incidents)
        return _counted((severity, bool(on.acknowledged), bool(on.muted)) for severity, on in marks)

    def present(self) -> set[str]:
        """Return the keys of all incidents that aren't over, also of those whose findings are in others now."""
        return self._by_key.keys() | self._moved.keys()

    def record(self, key: str) -> IncidentRecord | None:
        """Return the record of an incident, even if it has just ended."""
        return self._records.get(key)

    def _opened(self, incident: Incident) -> Open:
        marks = self._marks.get(incident.key, _UNMARKED)
        record = self._records.get(incident.key)
        if record is None:
            return Open(incident=incident, began=incident.since, acknowledged=marks.acknowledged, muted=marks.muted)
        return Open(
            incident=incident,
            began=record.began,
            began_before=record.began_before,
            then=record.then,
            peak=record.peak,
            peak_at=record.peak_at,
            returned=record.returned,
            turns=record.turns,
            changes=record.changes,
            is_growing=record.is_growing,
            acknowledged=marks.acknowledged,
            muted=marks.muted,
        )

    def _without(self, it: Open, hidden: set[str], user: Identity) -> Open | None:
        """Return the incident without its findings about hidden topics; None if nothing is left.

        The past of a group is that of all its members, even if the user sees all that are left, so we leave it out.
        """
        incident = it.incident
        seen = [finding.without_quotes() for finding in incident.findings if finding.topic not in hidden]
        if not seen:
            return None
        if incident.cause.kind is CauseKind.SINGLE:
            changes = tuple(entry for entry in it.changes if entry.is_for(user.sees))
            return replace(it, incident=replace(incident, findings=tuple(seen)), changes=changes)
        if len(seen) == len(incident.findings):
            part = replace(incident, findings=tuple(seen))
        else:
            part = incident_of(incident.cause, seen, Index(self._snapshot, seen))
        marks = self._marks_on(part, is_whole=False)
        return Open(
            incident=part,
            began=part.since,
            began_before=part.since <= self._started + self._snapshot.interval,
            changes=tuple(entry for entry in it.changes if not entry.topic and not entry.also),
            acknowledged=marks.acknowledged,
            muted=marks.muted,
        )

    # What people say

    def acknowledge(self, key: str, mark: Mark | None, user: Identity | None = None) -> bool:
        """Acknowledge an incident, or undo that with None. Return False if it is gone, or too many are acknowledged.

        A `user` who sees only some topics marks what they see of it.
        """
        return self._marked(self._acknowledged, key, mark, user)

    def mute(self, key: str, mark: Mark | None, user: Identity | None = None) -> bool:
        """Mute an incident until `mark.until`, or unmute it with None. As for `acknowledge`."""
        return self._marked(self._muted, key, mark, user)

    def _marked(self, coverage: Coverage, key: str, mark: Mark | None, user: Identity | None) -> bool:
        if user is None or user.sees_everything:
            incident = self._by_key.get(key)
        else:
            incident = next((it.incident for it in self.seen_by(user) if it.key == key), None)
        if incident is None:
            return False
        is_whole = user is None or user.sees_everything or incident.cause.kind is CauseKind.SINGLE
        if mark is None:
            coverage.take_back(key, incident.wrong, is_whole=is_whole)
        elif not coverage.put(key, incident.wrong, mark, is_whole=is_whole):
            return False
        self._held = None
        self.version += 1
        self._open = None
        return True

    # Over a restart

    def dump(self) -> Any:
        """Return everything worth keeping."""
        acknowledged, muted = self._acknowledged.dump(), self._muted.dump()
        return {
            "format": _FORMAT,
            "records": to_json(tuple(self._records.values())),
            "acknowledged": lambda: to_json(acknowledged),  # marks may cover many thousand findings
            "muted": lambda: to_json(muted),
        }

    def load(self, dumped: Any) -> None:
        """Restore the output of `dump`. Raise ValueError for anything else, such as a file of an earlier release."""
        if isinstance(dumped, dict) and dumped.get("format") != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {dumped.get('format')}")
        kept = from_json(_Kept, dumped)
        self._records = {record.key: record for record in kept.records[:MOST]}
        self._acknowledged.load(kept.acknowledged)
        self._muted.load(kept.muted)


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


def _order(it: Open) -> tuple[object, ...]:
    """Return the sort key of a card. Impacts count by powers of two, so that small changes don't move cards."""
    is_remark = it.incident.severity is Severity.INFO
    return is_remark, bool(it.acknowledged), -int(it.incident.weight), it.began, it.key


def _ranks(incidents: Iterable[Incident]) -> Mapping[str, int]:
    """Return the ranks of the findings' severities, by their keys."""
    return {finding.key: _SEVERITIES[finding.severity] for it in incidents for finding in it.wrong}


def _added(turns: tuple[Turn, ...], turn: Turn) -> tuple[Turn, ...]:
    return (*turns, turn)[-_MOST_TURNS:]


def _with_numbers(then: Numbers) -> str:
    return f", {numbers.exact(then.waiting)} waiting" if then.waiting else ""


def _reopening(incident: Incident, mark: Mark, finding: Finding, news: str) -> str:
    """Say why a mark no longer holds."""
    said = f"Muted by {mark.by} until {numbers.moment(mark.until)}" if mark.until else f"Acknowledged by {mark.by}"
    about = finding.node
    if finding.topic:
        about = f"{finding.topic}/{finding.channel}" if finding.channel else finding.topic
    verdict = finding.verdict if about in (incident.subject, "") else f"{about}: {finding.verdict}"
    return f"{said}; reopened because {news}: {verdict}"
