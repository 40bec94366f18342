"""Incidents as cards, as a timeline and as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Activity, Finding, Severity
from nsqadmin.diagnosis.incident import CauseKind, Numbers, Open
from nsqadmin.diagnosis.incident_book import in_view
from nsqadmin.diagnosis.suspects import RULES as OF_HANDLERS

if TYPE_CHECKING:
    from nsqadmin.diagnosis.incident import Incident
    from nsqadmin.parts.links import Links

MOST_CARDS: Final = 8  # on the overview
_MOST_NAMES: Final = 3  # members to name on a card
_MOST_IN_TEXT: Final = 20  # findings in the plain text
_LOST: Final = frozenset(("node_down", "node_gone", "lookupd_down"))


@dataclass(frozen=True, slots=True)
class Primary:
    """The single button of a card: an action on the cluster, or a link to the next step."""

    label: str
    href: str = ""
    action: str = ""  # kind of an action, which has its own confirmation page


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A line of an incident's timeline."""

    at: float
    text: str
    who: str = ""
    is_begin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    open: Open
    href: str
    now_and_then: str  # "12,031 waiting (was 1,200)"
    names: tuple[tuple[str, str], ...]  # the first of its members, with their links
    others: int  # number of further members
    reason: Moment | None  # the last change before it began, otherwise the last one soon after
    primary: Primary


def cards_of(incidents: Iterable[Open], links: Links) -> tuple[Card, ...]:
    return tuple(card_of(it, links) for it in incidents)


def card_of(it: Open, links: Links) -> Card:
    members = _members(it, links)
    is_many = it.incident.cause.kind in (CauseKind.PATTERN, CauseKind.CONSUMER)
    shown = tuple(members.items())[:_MOST_NAMES] if is_many else ()
    return Card(
        open=it,
        href=links.incident(it.key),
        now_and_then=now_and_then(it),
        names=shown,
        others=len(members) - len(shown) if is_many else 0,
        reason=_reason(it),
        primary=primary(it, links),
    )


def _reason(it: Open) -> Moment | None:
    changes = [entry for entry in it.changes if not _is_itself(entry, it.incident)]
    changes = [entry for entry in changes if entry.at <= it.began] or changes
    return _change(changes[-1]) if changes else None


def _is_itself(entry: Activity, incident: Incident) -> bool:
    """Return True if the incident is that this node is lost, so that the event is no reason for it."""
    return incident.cause.kind is CauseKind.NODE and entry.what in _LOST and entry.nodes == (incident.subject,)


def primary(it: Open, links: Links) -> Primary:
    """Return the most likely next step."""
    incident, first = it.incident, it.incident.findings[0]
    match incident.cause.kind:
        case CauseKind.NODE:
            is_nsqd = not first.verdict.startswith("nsqlookupd")
            return Primary("Show the node", links.node(incident.subject) if is_nsqd else links.to("/lookup"))
        case CauseKind.CONSUMER:
            return Primary("Show its consumers", links.to("/consumers", filter=incident.subject.replace("*", " ")))
        case CauseKind.PATTERN:
            return Primary(f"Show all {numbers.exact(len(_members(it, links)))}", links.incident(it.key))
        case CauseKind.SINGLE:
            return _of_one(first, links)


def _of_one(finding: Finding, links: Links) -> Primary:
    if finding.action:
        return Primary("", action=finding.action)
    if finding.channel and finding.rule in (*OF_HANDLERS, "D6"):
        return Primary("Show its consumers", links.channel(finding.topic, finding.channel, tab="consumers"))
    what = "channel" if finding.channel else "topic" if finding.topic else "node"
    return Primary(f"Show the {what}", links.about(finding.topic, finding.channel, finding.node))


def now_and_then(it: Open) -> str:
    """Write how many messages wait now, and how many did when it began if that differs."""
    now, then = it.incident.numbers, it.then
    if not now.waiting and (then is None or not then.waiting):
        return ""
    text = f"{numbers.exact(now.waiting)} waiting"
    if then is not None and then.waiting != now.waiting:
        text += f" (was {numbers.exact(then.waiting)})"
    return text


def time_line(it: Open) -> tuple[Moment, ...]:
    """Return the events before the incident and since, oldest first."""
    return tuple(sorted(_moments(it), key=lambda moment: moment.at))


def _moments(it: Open) -> Iterator[Moment]:
    yield from map(_change, it.changes)
    for turn in it.turns:
        yield Moment(at=turn.at, text=turn.text, who=turn.who)
    before = "nsqadmin started, and it was already there" if it.began_before else "It began"
    yield Moment(at=it.began, text=f"{before}{_with_numbers(it.then)}", is_begin=True)
    if it.peak is not None and it.then is not None and it.peak > max(it.then.waiting, it.incident.numbers.waiting):
        yield Moment(at=it.peak_at, text=f"{numbers.exact(it.peak)} messages were waiting, the most so far")
    if (mark := it.acknowledged) is not None:
        yield Moment(at=mark.at, text=f"Acknowledged{_with_note(mark.note)}", who=mark.by)
    if (mark := it.muted) is not None:
        yield Moment(at=mark.at, text=f"Muted until {numbers.moment(mark.until)}{_with_note(mark.note)}", who=mark.by)


def _change(entry: Activity) -> Moment:
    return Moment(at=entry.at, text=entry.text, who=_who(entry))


def _who(entry: Activity) -> str:
    if entry.is_outside:
        return f"{entry.user or 'someone'}, outside nsqadmin"
    return entry.by if entry.is_action else ""


def _with_numbers(then: Numbers | None) -> str:
    if then is None or not then.waiting:
        return ""
    return f", with {numbers.several(then.waiting, 'message')} waiting"


def _with_note(note: str) -> str:
    return f": {note}" if note else ""


def _members(it: Open, links: Links) -> dict[str, str]:
    """Return the subjects of the findings by name, with links."""
    return {
        name_of(finding): links.about(finding.topic, finding.channel, finding.node) for finding in it.incident.findings
    }


def name_of(finding: Finding) -> str:
    if not finding.topic:
        return finding.node
    return f"{finding.topic}/{finding.channel}" if finding.channel else finding.topic


# As plain text


def as_text(it: Open, *, now: float, url: str) -> str:
    """Return the incident as text for a chat or a ticket. Times are UTC, because readers may be anywhere."""
    incident = it.incident
    lines = [
        f"{incident.severity.value.upper()}: {incident.title}",
        _since(it, now),
    ]
    lines += [text for text in (now_and_then(it),) if text]
    if it.acknowledged:
        lines.append(f"acknowledged by {it.acknowledged.by}{_with_note(it.acknowledged.note)}")
    lines += ["", "Timeline"]
    lines += [
        f"  {numbers.moment(line.at)}  {line.text}{f' ({line.who})' if line.who else ''}" for line in time_line(it)
    ]
    lines += ["", "Findings"]
    lines += [f"  {_in_text(finding)}" for finding in incident.findings[:_MOST_IN_TEXT]]
    if (rest := len(incident.findings) - _MOST_IN_TEXT) > 0:
        lines.append(f"  and {numbers.exact(rest)} more")
    if advice := incident.findings[0].advice:
        lines += ["", f"What to do: {advice}"]
    lines += ["", url, ""]
    return "\n".join(
        "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line) for line in lines
    )


def _since(it: Open, now: float) -> str:
    if it.began_before:
        return f"since before {numbers.moment(it.began)} (nsqadmin started)"
    return f"since {numbers.moment(it.began)} ({numbers.duration(max(0.0, now - it.began))})"


def _in_text(finding: Finding) -> str:
    facts = ", ".join(f"{fact.label} {fact.value}" for fact in finding.evidence)
    verdict = finding.verdict if finding.topic else finding.verdict.removeprefix(f"{finding.node} ")
    return f"{name_of(finding)}: {verdict}{f' ({facts})' if facts else ''}"


# The page of all


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    severity: str = ""
    rule: str = ""
    words: str = ""

    def matches(self, it: Open) -> bool:
        incident = it.incident
        if self.severity and incident.severity.value != self.severity:
            return False
        if self.rule and all(finding.rule != self.rule for finding in incident.findings):
            return False
        wanted = self.words.lower().split()
        if not wanted:
            return True
        text = f"{incident.title} {' '.join(name_of(finding) for finding in incident.findings)}".lower()
        return all(word in text for word in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The incidents of a page, divided as in `in_view`."""

    cards: tuple[Card, ...]
    left_out: int
    muted: tuple[Card, ...]
    remarks: tuple[Card, ...]
    findings: int  # number of findings in the cards, including those left out
    rules: tuple[str, ...] = ()  # to filter by

    @property
    def total(self) -> int:
        return len(self.cards) + self.left_out


def listing(incidents: tuple[Open, ...], links: Links, *, most: int, chosen: IncidentFilter | None = None) -> Listing:
    matching = incidents if chosen is None else tuple(it for it in incidents if chosen.matches(it))
    attention, muted, remarks = in_view(matching)
    return Listing(
        cards=cards_of(attention[:most], links),
        left_out=max(0, len(attention) - most),
        muted=cards_of(muted[:most], links),
        remarks=cards_of(remarks[:most], links),
        findings=sum(it.incident.numbers.findings for it in attention),
        rules=tuple(sorted({finding.rule for it in incidents for finding in it.incident.findings}, key=_number)),
    )


def verdict(incidents: Iterable[Open], *, is_first: bool) -> str:
    """Put the incidents into words: `2 problems, 1 warning`, or `All is well`."""
    if is_first:
        return "Waiting for the first answers"
    severities = [it.incident.severity for it in incidents]
    counts = ((severities.count(Severity.PROBLEM), "problem"), (severities.count(Severity.WARNING), "warning"))
    return ", ".join(numbers.several(count, word) for count, word in counts if count) or "All is well"


def _number(rule: str) -> tuple[int, str]:
    digits = rule.lstrip("D")
    return (int(digits) if digits.isdigit() else 0), rule
