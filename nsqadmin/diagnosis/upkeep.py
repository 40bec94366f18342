"""Follows findings from one snapshot to the next, so that a verdict gets worse at once and better slowly.

What we see of an object can improve for a bad reason: a node is silent, so that its messages can't time out; the policy
drops what waits, so that the backlog stops growing; a timeout happens every ten minutes, so that half the time nothing
is found. So a finding that isn't found any more stays

    while a node that it rests on is silent               marked as frozen
    while the object loses messages                       marked as held
    until nothing of its family has been found for HOLD   marked as held
    if it comes and goes: until it has been away for QUIET
    if something milder of its family is found: until that has lasted for MILDER, and for an hour if the severity has
    changed in the hour before, so that it changes at most twice an hour

A finding comes and goes if its family has ended and come back twice within the hour. So a cause that comes and goes all
day opens three times and then no more, while one that is mended at the second try ends as soon as any other.

Some rules need patience (`rules.py`), so there it gets worse not quite at once. For example, that a channel has no consumer
on some nodes is shown after half a minute, because consumers need a moment to connect to a node that has come back.

The family matters (`rules.py`): a finding gives way at once to another one that is as bad and of the same family, for
example when consumers that hang are stopped. What somebody switches off, such as a pause, ends at once, and so does
everything about an object that is deleted, or a node that is forgotten. Remarks only freeze.

Times are counted from snapshot to snapshot, and survive a restart as `dump` and `load`. After one, the findings of
before are held until the rules have seen enough to find them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.cluster.model import RECURRING, Finding, Severity, Snapshot
from nsqadmin.cluster.recording import from_json, to_json
from nsqadmin.diagnosis.rules import Effect, Family, rule_of

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel

SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}
UNKNOWN_IN_PART: Final = "D17"
HOLD: Final = 100.0  # seconds; an incident has to close within two minutes
MILDER: Final = 300.0  # seconds
QUIET: Final = 1800.0  # seconds
_HOUR: Final = 3600.0
_LATEST: Final = 115.0  # seconds after which a finding has ended, even if samples are far apart
_SAMPLES_OF_HOLD: Final = 20  # with more frequent samples, you learn sooner that it is over
_SAMPLES_OF_MILDER: Final = 60
_SAMPLES_OF_QUIET: Final = 360
_SAMPLES_OF_HOUR: Final = 720
_INTERVAL: Final = 5.0  # seconds; with more frequent samples, patience is shorter
_FIRST: Final = 2  # snapshots after the start
_NOTHING: Final = SEVERITIES[Severity.INFO]  # the rank of a subject about which there are only remarks
_MOST_KEPT: Final = 2000  # findings over a restart
_FORMAT: Final = 1

_Subject = tuple[str, str, str, Family]  # topic, channel, node


class Upkeep:
    def __init__(self) -> None:
        self._followed: dict[_Subject, _Followed] = {}
        self._awaited: dict[str, float] = {}  # findings that have to last before they are shown, and since when
        self._snapshots = 0

    def follow(self, found: Iterable[Finding], snapshot: Snapshot) -> list[Finding]:
        """Return the findings to show: those of the rules, with the times when they began, and those that stay."""
        by_subject: dict[_Subject, list[Finding]] = {}
        losing: set[tuple[str, str]] = set()
        for finding in self._lasting(found, snapshot):
            rule = rule_of(finding)
            by_subject.setdefault((finding.topic, finding.channel, finding.node, rule.family), []).append(finding)
            if rule.effect is Effect.LOST:
                losing.add((finding.topic, finding.channel))
        moment = _Moment(snapshot, losing)
        before, self._followed = self._followed, {}
        shown: list[Finding] = []
        for subject, its in by_subject.items():
            self._followed[subject] = followed = before.pop(subject, None) or _Followed()
            shown += followed.next(its, moment)
        for subject, followed in before.items():
            shown += followed.next((), moment)
            if followed.is_alive(moment):
                self._followed[subject] = followed
        return _without_doubts(shown)

    def _lasting(self, found: Iterable[Finding], snapshot: Snapshot) -> Iterator[Finding]:
        """Yield the findings without those that have to last for longer, unless they were shown before.

        At the start we don't know for how long they have lasted.
        """
        now, pace = snapshot.taken_at, min(1.0, snapshot.interval / _INTERVAL)
        before, self._awaited = self._awaited, {}
        self._snapshots += 1
        for finding in found:
            rule = rule_of(finding)
            if rule.patience and self._snapshots > _FIRST:
                key = finding.key
                followed = self._followed.get((finding.topic, finding.channel, finding.node, rule.family))
                if followed is None or key not in followed.shown:
                    since = before.get(key, now)
                    if now - since < rule.patience * pace:
                        self._awaited[key] = since
                        continue
                    finding = replace(finding, since=since)
            yield finding

    # Over a restart

    def dump(self) -> Any:
        known = [it for followed in self._followed.values() for it in followed.dated]
        known = [it for it in known if it.severity is not Severity.INFO][:_MOST_KEPT]
        pasts = [past for subject, it in self._followed.items() if (past := it.past_of(subject)) is not None]
        return {
            "format": _FORMAT,
            "findings": lambda: to_json(known),
            "pasts": lambda: to_json(pasts[:_MOST_KEPT]),
        }

    def load(self, dumped: Any) -> None:
        """Restore the output of `dump`. Raise ValueError for anything else."""
        kept = from_json(_Kept, dumped)
        if kept.format != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {kept.format}")
        for it in kept.findings[:_MOST_KEPT]:
            subject = (it.topic, it.channel, it.node, rule_of(it).family)
            self._followed.setdefault(subject, _Followed()).restore(it)
        for past in kept.pasts[:_MOST_KEPT]:
            subject = (past.topic, past.channel, past.node, past.family)
            self._followed.setdefault(subject, _Followed()).restore_past(past)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """When a family of findings about an object ended and came back."""

    topic: str
    channel: str
    node: str
    family: Family
    gone_since: float | None
    returned: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    format: int
    findings: tuple[Finding, ...] = ()
    pasts: tuple[_Past, ...] = ()


class _Moment:
    """What a snapshot says about the reasons for keeping a finding."""

    def __init__(self, snapshot: Snapshot, losing: set[tuple[str, str]]) -> None:
        self.now = snapshot.taken_at
        self.hold = min(HOLD, _LATEST - snapshot.interval, _SAMPLES_OF_HOLD * snapshot.interval)
        self.milder = min(MILDER, _SAMPLES_OF_MILDER * snapshot.interval)
        self.quiet = min(QUIET, _SAMPLES_OF_QUIET * snapshot.interval)
        self.hour = min(_HOUR, _SAMPLES_OF_HOUR * snapshot.interval)
        self._snapshot = snapshot
        self._losing = losing
        self._silent = {it.address for it in snapshot.nodes if not it.is_reachable and it.is_known and not it.successor}
        self._silent |= {it.address for it in snapshot.lookupds if not it.is_reachable}
        self._silent |= {it.node for it in snapshot.silent}
        self._lookupds = {it.address for it in snapshot.lookupds}
        self._channels: dict[str, dict[str, Channel]] = {}

    def has_object(self, finding: Finding) -> bool:
        if finding.channel:
            return self._channel(finding) is not None
        if finding.topic:
            return self._snapshot.topic(finding.topic) is not None
        return self._snapshot.node(finding.node) is not None or finding.node in self._lookupds

    def is_silent(self, finding: Finding) -> bool:
        """Return True if the finding rests on a node or nsqlookupd that is silent."""
        if not self._silent:
            return False
        if finding.channel:
            channel = self._channel(finding)
            return channel is not None and bool(channel.silent)
        if finding.topic:
            topic = self._snapshot.topic(finding.topic)
            return topic is not None and bool(topic.silent)
        if rule_of(finding).family is Family.POLICY and finding.others:  # compared with others: one of them is enough
            return finding.node in self._silent or self._silent.issuperset(finding.others)
        return not self._silent.isdisjoint((finding.node, *finding.others))

    def is_losing(self, finding: Finding) -> bool:
        return bool(finding.topic) and (finding.topic, finding.channel) in self._losing

    def _channel(self, finding: Finding) -> Channel | None:
        """Find a channel by name. `Snapshot.channel` scans a topic's channels."""
        if (of_topic := self._channels.get(finding.topic)) is None:
            topic = self._snapshot.topic(finding.topic)
            of_topic = {it.name: it for it in topic.channels} if topic is not None else {}
            self._channels[finding.topic] = of_topic
        return of_topic.get(finding.channel)


class _Followed:
    """The findings of one family about one object, from snapshot to snapshot."""

    __slots__ = (
        "_changed",
        "_gone",
        "_gone_since",
        "_milder_since",
        "_rank",
        "_returned",
        "_seen",
        "shown",
    )

    def __init__(self) -> None:
        self.shown: dict[str, Finding] = {}  # by key
        self._gone: dict[str, tuple[Finding, float]] = {}  # and since when; if one comes back soon, it is the same
        self._rank = _NOTHING  # the worst that is shown
        self._changed: tuple[float, ...] = ()  # when the severity changed within the last hour
        self._gone_since: float | None = None  # since when nothing is found; stays after what was held has ended
        self._milder_since: float | None = None  # since when what is found is milder than what is held
        self._seen = 0.0  # the last snapshot
        self._returned: tuple[float, ...] = ()  # when it came back within the last hour

    def is_alive(self, moment: _Moment) -> bool:
        if self.shown or self._gone:
            return True
        return self._gone_since is not None and moment.now - self._gone_since < moment.hour

    @property
    def dated(self) -> Iterator[Finding]:
        """What is shown, with when it was last found."""
        return (replace(it, seen=it.seen or self._seen) for it in self.shown.values())

    def restore(self, finding: Finding) -> None:
        self.shown[finding.key] = finding
        self._rank = min(self._rank, SEVERITIES[finding.severity])
        self._seen = finding.seen

    def restore_past(self, past: _Past) -> None:
        self._gone_since = past.gone_since
        self._returned = past.returned

    def past_of(self, subject: _Subject) -> _Past | None:
        """Return what has to survive a restart beside the findings; None if that is nothing.

        What is held then gets its full time again, because the rules need some time to find it.
        """
        gone_since = self._gone_since if self._rank == _NOTHING else None
        if gone_since is None and not self._returned:
            return None
        topic, channel, node, family = subject
        return _Past(
            topic=topic,
            channel=channel,
            node=node,
            family=family,
            gone_since=gone_since,
            returned=self._returned,
        )

    def next(self, found: Sequence[Finding], moment: _Moment) -> Iterable[Finding]:
        """Return the findings to show, now that the rules have found these."""
        now = moment.now
        if (same := self._same(found)) is not None:  # in the worst case there are ten thousand of these
            self._milder_since = None
            self._seen = now
            return (same,)
        shown: dict[str, Finding] = {}
        for it in found:
            key = it.key
            if key not in shown or SEVERITIES[it.severity] < SEVERITIES[shown[key].severity]:
                shown[key] = it if it.since else replace(it, since=self._since(key, it, now))
        self._note_return(found, moment)
        self._keep(shown, moment)
        for key, it in shown.items():
            if it.returns != len(self._returned):
                shown[key] = replace(it, returns=len(self._returned))
        rank = _rank_of(shown)
        if rank < self._rank < _NOTHING:
            self._changed = (*self._changed, now)
        self._remember(shown, now, moment.hold)
        self._rank, self._seen = rank, now
        return shown.values()

    def _same(self, found: Sequence[Finding]) -> Finding | None:
        """Return the finding if it is the only one now and before, and as bad."""
        if len(found) != 1 or len(self.shown) != 1 or self._gone or self._returned or self._gone_since is not None:
            return None
        it, key = found[0], found[0].key
        before = self.shown.get(key)
        if before is None or it.severity is not before.severity:
            return None
        self.shown[key] = same = it if it.since else replace(it, since=before.since)
        return same

    def _since(self, key: str, finding: Finding, now: float) -> float:
        """Return when the finding began. One that gets worse begins again."""
        before = self.shown.get(key)
        if before is None and key in self._gone:
            before = self._gone[key][0]
        if before is None or SEVERITIES[finding.severity] < SEVERITIES[before.severity]:
            return now
        return before.since

    def _note_return(self, found: Sequence[Finding], moment: _Moment) -> None:
        """Remember that something is found again that had ended, or would have ended if it didn't come and go.

        A finding about a channel with a silent node may be a consequence of that: if the node comes and goes, its
        channels don't.
        """
        if self._returned:
            self._returned = tuple(at for at in self._returned if 0 <= moment.now - at < moment.hour)
        if self._gone_since is None or not any(_counts(it) and not (it.topic and moment.is_silent(it)) for it in found):
            return
        away, has_ended = moment.now - self._gone_since, self._rank == _NOTHING
        if away < moment.hour and (has_ended or away >= moment.hold):
            self._returned = (*self._returned, moment.now)

    def _keep(self, shown: dict[str, Finding], moment: _Moment) -> None:
        """Add the findings that stay although they aren't found now, or only in a milder form."""
        left: list[tuple[str, Finding]] = []
        for key, before in self.shown.items():
            newer = shown.get(key)
            if newer is not None and SEVERITIES[newer.severity] <= SEVERITIES[before.severity]:
                continue
            if before.rule == UNKNOWN_IN_PART:
                continue
            if not moment.has_object(before):  # another one of this name is new
                self._gone_since, self._returned = None, ()
                continue
            if moment.is_silent(before):
                shown[key] = before if before.is_frozen else self._marked(before, is_frozen=True)
            elif before.severity is Severity.INFO or rule_of(before).is_switch:
                continue
            elif moment.is_losing(before):
                shown[key] = self._held(before)
            else:
                left.append((key, before))
        rank = _rank_of(shown)
        left = [(key, before) for key, before in left if SEVERITIES[before.severity] < rank]
        if not left:
            self._milder_since = None
            self._gone_since = self._gone_since if rank == _NOTHING else None
        elif self._is_kept(rank, moment, echo=max(rule_of(before).echo for _, before in left)):
            shown.update((key, self._held(before)) for key, before in left)
        elif rank < _NOTHING:
            self._changed = (*self._changed, moment.now)

    def _is_kept(self, rank: int, moment: _Moment, *, echo: float) -> bool:
        """Return True if findings that are worse than `rank` stay for now. `echo` is for how long they have stayed."""
        now = moment.now
        if self._milder_since is None or self._milder_since > now:  # the clock may have been set back
            self._milder_since = now
        if rank == _NOTHING:
            if self._gone_since is None or self._gone_since > now:
                self._gone_since = now
            is_recurring = len(self._returned) >= RECURRING
            return now - self._gone_since < (moment.quiet if is_recurring else moment.hold - echo)
        self._gone_since = None
        self._changed = tuple(at for at in self._changed if 0 <= now - at < _HOUR)
        return bool(self._changed) or now - self._milder_since < moment.milder

    def _held(self, finding: Finding) -> Finding:
        return finding if finding.is_held else self._marked(finding, is_held=True)

    def _marked(self, finding: Finding, *, is_frozen: bool = False, is_held: bool = False) -> Finding:
        return replace(finding, is_frozen=is_frozen, is_held=is_held, seen=finding.seen or self._seen)

    def _remember(self, shown: dict[str, Finding], now: float, span: float) -> None:
        if self._gone or len(shown) != len(self.shown) or shown.keys() != self.shown.keys():
            gone = {key: (it, now) for key, it in self.shown.items()} | self._gone
            self._gone = {key: (it, at) for key, (it, at) in gone.items() if key not in shown and now - at <= span}
        self.shown = shown


def _counts(finding: Finding) -> bool:
    return finding.severity is not Severity.INFO and not rule_of(finding).is_switch


def _rank_of(shown: dict[str, Finding]) -> int:
    return min((SEVERITIES[it.severity] for it in shown.values()), default=_NOTHING)


def _without_doubts(shown: list[Finding]) -> list[Finding]:
    """Drop D17, which says that we know nothing, where an earlier finding has stayed."""
    frozen = {(it.topic, it.channel) for it in shown if it.is_frozen}
    if not frozen:
        return shown
    return [it for it in shown if it.rule != UNKNOWN_IN_PART or (it.topic, it.channel) not in frozen]
