"""Checks nsqadmin's verdicts against what really happens in a `World`: each fault is said, and nothing else is.

    begin(fault) ─ DETECTED ─► said in each snapshot, never milder ─► end(fault) ─ CLOSED ─► said no more

If it was said no more and then again twice within an hour, it may be said for QUIET after the end: it comes and goes.

What a person sees is a *verdict*: the worst finding about a channel or node, in an incident that is not muted. While a
fault lasts, its verdict must not improve, whatever happens to other nodes, to its messages, or to marks of people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Final

from nsqadmin.cluster.model import RECURRING, Finding, Severity, Snapshot
from nsqadmin.diagnosis.incident import ChangeKind, IncidentChange, Open
from nsqadmin.diagnosis.rules import Family
from nsqadmin.diagnosis.upkeep import QUIET
from nsqadmin.webhook.ledger import Ledger
from nsqadmin.webhook.post import Post
from tests.nsqadmin import simulated_world
from tests.nsqadmin.steered_world import WALL, World

DETECTED: Final = 120.0  # seconds after its beginning in which a fault is said
CLOSED: Final = 120.0  # seconds after its end in which it is said no more
MOST_FLIPS: Final = 2  # in an hour
MOST_OPENED: Final = 4  # in an hour, whatever its causes do
_HOUR: Final = 3600.0
SILENT: Final = "D16"  # the rule about a node that does not answer
_RANKS: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1}
_WELL: Final = 2
_WORDS: Final = ("problem", "warning", "well")


@dataclass(slots=True, eq=False)
class Fault:
    """Something that is wrong: with a channel, named topic/channel, or with a node, named by its address."""

    subject: str
    severity: Severity = Severity.PROBLEM  # at least
    detected: float = DETECTED
    is_death: bool = False  # of a node, or it hangs: its incident has a true beginning
    is_muted: bool = False  # a person has muted it
    began: float = 0.0
    ended: float | None = None

    def __str__(self) -> str:
        until = "" if self.ended is None else f" to {_minute(self.ended)}"
        return f"{self.subject}, from {_minute(self.began)}{until}"

    def again(self, *, is_muted: bool) -> Fault:
        """Return another one of its kind."""
        return replace(self, is_muted=is_muted)

    def must_be_said(self, at: float) -> bool:
        return self.began + self.detected <= at and (self.ended is None or at < self.ended)


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot, as people see it."""

    at: float
    said: dict[str, int]  # the rank of each subject's verdict in incidents that aren't muted
    muted: dict[str, int]  # the same in those that are
    titles: dict[str, str]  # of the incident with the worst finding
    began: dict[str, tuple[float, bool]]  # of the incident of each node that doesn't answer
    families: set[tuple[str, Family]]  # of the findings about each subject
    recurring: set[str]  # subjects of which something comes and goes, as nsqadmin says


@dataclass(slots=True)
class Verdicts:
    world: World | simulated_world.World
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  # when a node answered again
    restarts: list[float] = field(default_factory=list)  # of nsqadmin
    posts: list[Post] = field(default_factory=list)
    _ledger: Ledger = field(default_factory=Ledger)
    _read: int = 0  # of the world's changes

    def __post_init__(self) -> None:
        self.world.watchers.append(self._see)

    @property
    def _closed(self) -> float:
        """Return the seconds after its end in which a fault is said. It is over at the next tick, and seen at one more."""
        return CLOSED + 2 * self.world.tick

    def begin(self, fault: Fault) -> Fault:
        fault.began = self.world.now
        self.faults.append(fault)
        return fault

    def end(self, fault: Fault) -> None:
        fault.ended = self.world.now
        if fault.is_death:
            self.returns.append(self.world.now)

    def restart(self) -> None:
        """Note that nsqadmin is started again: what it held then, it holds for some time, until its rules can find it."""
        self.restarts.append(self.world.now)

    def _spans_of(self, subject: str) -> list[tuple[float, float]]:
        """Return when something may be said about this: while one of its faults lasts, and a little longer.

        When a node comes back, its consumers have to connect again, and what has waited there may expire at once. While
        a node is silent, it is unknown whether a fault is over there, so it is said on.
        """
        spans = [(it.began, it.ended if it.ended is not None else inf) for it in self.faults if it.subject == subject]
        moments = (*self.returns, *self.restarts)
        return [(begin, self._said_until(end)) for begin, end in (*spans, *zip(moments, moments, strict=True))]

    def _said_until(self, end: float) -> float:
        until = end + self._closed
        for silence in (it for it in self.faults if it.is_death):
            if silence.began <= until:
                until = max(until, (silence.ended if silence.ended is not None else inf) + self._closed)
        return until

    @staticmethod
    def subjects_of(it: Open, *, but: str) -> set[str]:
        """Return what is wrong in it, without remarks and without the findings of one rule."""
        return {_subject(finding) for finding in it.incident.wrong if finding.rule != but}

    def _see(self, snapshot: Snapshot) -> None:
        changes, self._read = self.world.changes[self._read :], len(self.world.changes)
        self.posts += self._ledger.posts_for(changes, self.world.book.present, snapshot.taken_at)
        seen = Seen(snapshot.taken_at, {}, {}, {}, {}, set(), set())
        silent = {node.address for node in snapshot.nodes if not node.is_reachable}
        for it in self.world.book.open():
            self._add(it, seen, silent)
        self.seen.append(seen)

    def _add(self, it: Open, seen: Seen, silent: set[str]) -> None:
        of_node = next((finding.node for finding in it.incident.findings if finding.node in silent), "")
        for finding in it.incident.findings:
            subject = _subject(finding)
            if of_node and not finding.node:
                continue  # because of its node
            rank = _RANKS.get(finding.severity)
            if rank is None:
                continue
            seen.families.add((subject, it.incident.cause.family))
            seen.recurring.update((subject,) if finding.is_recurring else ())
            where = seen.muted if it.state == "muted" else seen.said
            if rank < where.get(subject, _WELL):
                where[subject] = rank
                seen.titles[subject] = it.incident.title
        if any(finding.node == of_node and finding.rule == SILENT for finding in it.incident.findings):
            seen.began[of_node] = it.began, it.began_before

    # What is wrong with it

    def failures(self) -> list[str]:
        """Return everything that was wrong, with its minute."""
        found = [text for fault in self.faults for text in self._of(fault)]
        return [*found, *self._false_alarms(), *self._flips(), *self._unbalanced_news()]

    def _of(self, fault: Fault) -> Iterator[str]:
        times = [seen for seen in self.seen if fault.must_be_said(seen.at)]
        if not fault.is_muted:
            yield from _joined(
                (seen.at, f"{fault}: expected {fault.severity.value}, is {self._words(fault, seen)}")
                for seen in times
                if seen.said.get(fault.subject, _WELL) > _RANKS[fault.severity]
            )
        if fault.is_death and not self._is_known_death(fault):
            yield from self._of_death(fault, times)
            yield from self._news(fault)

    def _words(self, fault: Fault, seen: Seen) -> str:
        muted = seen.muted.get(fault.subject)
        return _WORDS[seen.said.get(fault.subject, _WELL)] + (
            f" and {_WORDS[muted]} muted" if muted is not None else ""
        )

    def _is_known_death(self, fault: Fault) -> bool:
        """Return True if an earlier death of the node is still open, because it comes and goes."""
        kinds = [it.kind for it in self.world.changes if it.at < fault.began and _is_about_death(it, fault.subject)]
        return bool(kinds) and kinds[-1] is not ChangeKind.CLOSED

    def _of_death(self, fault: Fault, times: list[Seen]) -> Iterator[str]:
        if any(fault.began <= at <= fault.began + fault.detected for at in self.restarts):
            return
        latest = fault.began + 4 * self.world.tick
        yield from _joined(
            (seen.at, f"{fault}: its incident began {_minute(began)}{', or before' if is_before else ''}")
            for seen in times
            if fault.subject in seen.began
            for began, is_before in [seen.began[fault.subject]]
            if is_before or not fault.began - 1 <= began <= latest
        )

    def _news(self, fault: Fault) -> Iterator[str]:
        """Find what listeners were told of a death, other than its beginning and its end."""
        assert fault.ended is not None
        until = fault.ended + self._closed
        for at in self.restarts:
            until = at + self._closed if fault.ended <= at <= until else until
        kinds = [
            change.kind.value
            for change in self.world.changes
            if fault.began <= change.at <= until and _is_about_death(change, fault.subject)
        ]
        if kinds == ["opened"] and any(_is_recurring(fault.ended, it) for it in self._openings_of(fault.subject)):
            return
        if [kind for kind in kinds if kind != "worse"] != ["opened", "closed"] or kinds[-1:] != ["closed"]:
            yield f"{fault}: listeners were told: {', '.join(kinds) or 'nothing'}"

    def _unbalanced_news(self) -> Iterator[str]:
        """Find incidents that receivers were told of twice without an end, or whose end they weren't told of."""
        known: dict[str, Post] = {}
        for post in self.posts:
            title = f"{post.subject}: {post.verdict} ({_minute(post.at)})"
            if (post.kind is ChangeKind.OPENED) is (post.key in known):
                yield f"receivers were told {post.kind.value} at the wrong time: {title}"
            if post.kind is ChangeKind.CLOSED:
                known.pop(post.key, None)
            else:
                known[post.key] = post
        for key in known.keys() - self.world.book.present():
            post = known[key]
            yield f"receivers were not told of its end: {post.subject}: {post.verdict} ({_minute(post.at)})"

    def _false_alarms(self) -> Iterator[str]:
        """Find what is said without a reason, or for too long after the reason is gone."""
        subjects = {subject for seen in self.seen for subject in (*seen.said, *seen.muted)}
        spans = {subject: self._spans_of(subject) for subject in subjects}
        opened = {subject: self._openings_of(subject) for subject in subjects}
        yield from _joined(
            (seen.at, f"{subject}: nothing is wrong, but {seen.titles[subject]}")
            for seen in self.seen
            for subject in {**seen.said, **seen.muted}
            if not any(begin <= seen.at <= end for begin, end in spans[subject])
            and not self._comes_and_goes(seen.at, subject, opened[subject], spans[subject])
        )
        for subject, families in opened.items():
            for times in families:
                most = max((sum(at <= it < at + _HOUR for it in times) for at in times), default=0)
                if most > MOST_OPENED:
                    yield f"{subject}: opened {most} times within an hour: {', '.join(map(_minute, times))}"

    def _comes_and_goes(
        self, at: float, subject: str, families: list[list[float]], spans: list[tuple[float, float]]
    ) -> bool:
        """Return True if something may still be said because it has come back at least twice."""
        returns = max(sum(it <= at for it in times[1:]) for times in families)
        if returns < RECURRING or not any(end < at <= self._said_until(end + QUIET) for _, end in spans):
            return False
        return any(subject in seen.recurring for seen in self.seen if at - QUIET <= seen.at <= at)

    def _openings_of(self, subject: str) -> list[list[float]]:
        """Return when something was said about it, right after nothing was, for each family."""
        found = []
        for family in {family for seen in self.seen for it, family in seen.families if it == subject}:
            there = [(seen.at, (subject, family) in seen.families) for seen in self.seen]
            found.append([at for (_, before), (at, after) in pairwise(there) if after and not before])
        return found

    def _flips(self) -> Iterator[str]:
        for fault in self.faults:
            if fault.is_muted:
                continue
            others = [it for it in self.faults if it.subject == fault.subject and it is not fault]
            ranks = [
                (seen.at, seen.said.get(fault.subject, _WELL))
                for seen in self.seen
                if fault.must_be_said(seen.at)
                and not any(it.began <= seen.at <= self._said_until(it.ended or inf) for it in others)
            ]
            flips = [at for (_, before), (at, after) in pairwise(ranks) if before != after]
            worst = max((sum(1 for other in flips if at <= other < at + _HOUR) for at in flips), default=0)
            if worst > MOST_FLIPS:
                yield f"{fault}: {worst} flips in an hour, at {', '.join(map(_minute, flips[:10]))}"


def _is_about_death(change: IncidentChange, node: str) -> bool:
    return any((it.node, it.rule) == (node, SILENT) for it in change.it.incident.findings)


def _is_recurring(at: float, opened: list[float]) -> bool:
    return sum(at - _HOUR <= it <= at for it in opened[1:]) >= RECURRING


def _subject(finding: Finding) -> str:
    return finding.node or (f"{finding.topic}/{finding.channel}" if finding.channel else finding.topic)


def _joined(findings: Iterator[tuple[float, str]]) -> Iterator[str]:
    """Yield each text once, with when it was true."""
    times: dict[str, list[float]] = {}
    for at, text in findings:
        times.setdefault(text, []).append(at)
    for text, all_times in times.items():
        yield f"{text} ({len(all_times)} times from {_minute(all_times[0])} to {_minute(all_times[-1])})"


def _minute(at: float) -> str:
    return f"{(at - WALL) / 60:.1f}"
