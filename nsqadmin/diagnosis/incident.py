"""The records of incidents: the cause, the present state, and the history kept by the book."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from nsqadmin.cluster.model import RECURRING, Activity, Finding, Severity
from nsqadmin.diagnosis.rules import Effect, Family, rule_of


class CauseKind(StrEnum):
    NODE = "node"  # an nsqd or nsqlookupd: everything that is wrong with it, or because of it
    CONSUMER = "consumer"  # a consumer's program and version, or its hosts
    PATTERN = "pattern"  # one family of rules over similar names
    SINGLE = "single"  # one object


class Cause(NamedTuple):
    """The common cause of several findings. Equal causes in two samples compare equal.

    A tuple, because we make and hash some 50,000 of them for a snapshot with 10,000 findings.
    """

    kind: CauseKind
    name: str  # an address, a program, a pattern such as `tenant_*.events/indexer`, or the one object
    family: Family  # of its findings
    is_remark: bool = False  # its findings are remarks: nothing is wrong

    @property
    def key(self) -> str:
        """The incident's name in URLs. A hash, because names may contain anything."""
        words = "\0".join((self.kind, self.family, self.name, "remark" if self.is_remark else ""))
        return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The sums over everything that an incident is about."""

    waiting: int = 0
    incoming: float | None = None  # messages a second that arrive in its channels; None: unknown
    channels: int = 0
    findings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The findings of one cause in one snapshot."""

    key: str
    cause: Cause
    severity: Severity  # the worst of its findings
    subject: str  # the name of its subject
    verdict: str  # the problem, without the subject
    findings: tuple[Finding, ...]  # worst first
    numbers: Numbers
    weight: float  # its impact
    since: float  # when the first of its worst findings was found
    is_inferred: bool = False  # it is likely, not certain, that these findings have one cause

    @property
    def title(self) -> str:
        return f"{self.subject}: {self.verdict}" if self.subject else self.verdict

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.topic for finding in self.findings if finding.topic))

    @property
    def leading(self) -> Finding:
        return self.findings[0]

    @property
    def effect(self) -> Effect:
        """The worst effect of the findings that have the incident's severity."""
        return max(rule_of(finding).effect for finding in self.findings if finding.severity is self.severity)

    @property
    def is_ending(self) -> bool:
        """True if nothing of it is found any more, and it closes soon unless that changes."""
        return all(finding.is_held for finding in self.findings)

    @property
    def returns(self) -> int:
        """How often something of it came back within the last hour."""
        return max((finding.returns for finding in self.findings), default=0)

    @property
    def is_recurring(self) -> bool:
        """True if something of it comes and goes, so that it stays open until that has been away for long."""
        return self.returns >= RECURRING

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that a mark has to cover: all that are no remarks, or the remarks if there is nothing else."""
        if self.severity is Severity.INFO:
            return self.findings
        return tuple(finding for finding in self.findings if finding.severity is not Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A person's mark on an incident: acknowledged, or muted for a while."""

    by: str
    at: float
    note: str = ""
    until: float | None = None  # of a muted incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Something that happened to an incident since it was first seen: a line of its timeline."""

    at: float
    text: str
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecord:
    """The book's record of an incident, kept even while the incident is away for a moment."""

    key: str
    severity: Severity
    effect: int  # the worst since `began`
    began: float  # since when it is as bad as now
    began_before: bool = False  # it was there when nsqadmin started, so it may have begun earlier
    then: Numbers  # when it began
    peak: int  # the most messages that waited
    peak_at: float
    last_seen: float
    returned: int = 0  # how often it came back soon
    turns: tuple[Turn, ...] = ()  # oldest first
    changes: tuple[Activity, ...] = ()  # just before it began, oldest first
    compared_at: float  # the moment with which we compare to see if it grows
    compared: int  # messages that waited then
    is_growing: bool = False
    is_told: bool = False  # listeners know of it: an `IncidentChange` has said so
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A present incident, as pages show it."""

    incident: Incident
    began: float
    began_before: bool = False
    then: Numbers | None = None  # None: the viewer sees only a part of it, or there are too many incidents to follow
    peak: int | None = None
    peak_at: float = 0.0
    returned: int = 0
    turns: tuple[Turn, ...] = ()
    changes: tuple[Activity, ...] = ()
    is_growing: bool = False
    acknowledged: Mark | None = None
    muted: Mark | None = None

    @property
    def key(self) -> str:
        return self.incident.key

    @property
    def state(self) -> str:
        """One word: muted, acknowledged or open."""
        return "muted" if self.muted else "acknowledged" if self.acknowledged else "open"


class ChangeKind(StrEnum):
    OPENED = "opened"
    WORSE = "worse"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChange:
    """A change of an incident between two snapshots. Remarks make none, and muted incidents only close."""

    kind: ChangeKind
    at: float
    it: Open  # the incident now; if it has closed, its last known state


class Counts(NamedTuple):
    """The number of incidents that need attention, as problems or warnings, and of marked ones."""

    problems: int
    warnings: int
    acknowledged: int  # of the problems and warnings
    muted: int  # in addition
