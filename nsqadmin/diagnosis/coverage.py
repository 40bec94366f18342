"""People's marks on incidents, and what each of them covers.

A mark covers the findings that it was set on, each up to the severity that it had then. It holds for an incident if it
covers all of the incident's findings that are no remarks. Some findings spread, for example from one node to four:
then the mark covers those places only (`rules.py`). So it doesn't matter how findings are grouped into incidents:
whatever is worse than it was, or was not there, is not covered, and muting one thing never hides another. One exception
keeps groups quiet: the mark of a group also covers a new member, if that is a warning of a rule that the mark knows.

    muted    ana    orders/c: D6 a warning             covers it
                    orders/c: D6 a problem             doesn't: it is worse
                    orders/c: D6, and D22 a problem    D6 only; D22 is in another family, and so in another incident

A mark that once doesn't hold for an incident is over, so that the incident stays open when it improves later. But a
user who sees only some topics marks what they see, and for them the mark is not over: otherwise they would learn from
it that something hidden has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from nsqadmin.cluster.model import Finding, Severity
from nsqadmin.diagnosis.incident import Mark  # noqa: TC001 - from_json reads annotations at run time
from nsqadmin.diagnosis.rules import name_of_rule, rule_of

MOST_MARKS: Final = 1000
MOST_COVERED: Final = 200_000  # findings, by all marks together
_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}


_Name = tuple[str, str]  # the incident and the person
_Coverings = dict[_Name, "Covering"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Covering:
    """A mark with what it covers."""

    key: str  # of the incident that it was set on
    mark: Mark
    covers: Mapping[str, Severity] = field(default_factory=dict)  # by the findings' keys
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the findings that may spread
    rules: Mapping[str, Severity] = field(default_factory=dict)  # of further members; empty: it covers only part of it
    seen: float = 0.0  # when something that it covers was last there
    is_over: bool = False  # it once did not hold, and now only does for users who see a part
    ended: tuple[str, ...] = ()  # the same for some of the findings, which had moved to another incident

    @property
    def name(self) -> _Name:
        return self.key, self.mark.by

    def has(self, finding: Finding) -> bool:
        return self.has_severity_of(finding) and set(_places(finding)).issubset(self.places.get(finding.key, ()))

    def has_severity_of(self, finding: Finding) -> bool:
        return finding.key in self.covers and _is_up_to(finding.severity, self.covers[finding.key])

    def has_for_all(self, finding: Finding) -> bool:
        return self.has(finding) and not self.is_over and finding.key not in self.ended

    def has_rule_of(self, finding: Finding) -> bool:
        is_member = finding.key in self.covers
        covered = None if self.is_over or is_member else self.rules.get(name_of_rule(finding))
        return covered is not None and finding.severity is not Severity.PROBLEM and _is_up_to(finding.severity, covered)


class Coverage:
    """All marks of one kind."""

    def __init__(self) -> None:
        self._all: _Coverings = {}
        self._covered = 0  # findings, by all of them together
        self._seen: dict[_Name, float] = {}  # when something of it was last there
        self._by_finding: dict[str, _Coverings] = {}
        self._by_incident: dict[str, _Coverings] = {}

    def __len__(self) -> int:
        return len(self._all)

    def put(self, key: str, findings: Sequence[Finding], mark: Mark, *, is_whole: bool) -> bool:
        """Add a mark on the incident, in place of an earlier one by the same person. Return False if there are too many.

        `is_whole` says that these are all findings of the incident that a mark has to cover.
        """
        before = self._all.get((key, mark.by))
        others = len(self._all) - (before is not None)
        covered = self._covered + len(findings) - (len(before.covers) if before is not None else 0)
        if others >= MOST_MARKS or covered > MOST_COVERED or not findings:
            return False
        rules: dict[str, Severity] = {}
        for it in findings if is_whole else ():
            name = name_of_rule(it)
            rules[name] = min(it.severity, rules.get(name, it.severity), key=_SEVERITIES.__getitem__)
        covers = {it.key: it.severity for it in findings}
        places = {it.key: where for it in findings if (where := _places(it))}
        if before is not None:
            self._remove(before)
        self._add(Covering(key=key, mark=mark, covers=covers, places=places, rules=rules, seen=mark.at))
        return True

    def take_back(self, key: str, findings: Iterable[Finding], *, is_whole: bool) -> None:
        """Remove the marks on the incident, or for a user who sees a part of it, what they cover of that part."""
        keys = {it.key for it in findings}
        for it in self._about(key, keys):
            covers = {each: severity for each, severity in it.covers.items() if each not in keys}
            if not covers or (it.key == key and is_whole):
                self._remove(it)
            else:
                self._change(it, replace(it, covers=covers, rules={}))

    def end(self, key: str, findings: Iterable[Finding]) -> None:
        """End the marks that no longer hold for the incident, but not for users who see only a part of it."""
        keys = {it.key for it in findings}
        for it in self._about(key, keys):
            if it.key == key:
                self._change(it, replace(it, is_over=True))
            else:
                self._change(it, replace(it, ended=tuple(keys.intersection(it.covers).union(it.ended))))

    def forget(self, is_over: Iterable[Covering]) -> None:
        for it in tuple(is_over):
            self._remove(it)

    def see(self, present: set[str], now: float, *, most_away: float) -> None:
        """Forget the marks of which nothing has been there for `most_away` seconds. `present` has findings' keys."""
        gone = []
        for it in self:
            if not present.isdisjoint(it.covers):
                self._seen[it.name] = now
            elif now - self._seen_at(it) > most_away:
                gone.append(it)
        self.forget(gone)

    # Questions

    def __iter__(self) -> Iterator[Covering]:
        return iter(self._all.values())

    def of(self, key: str, findings: Sequence[Finding], *, is_whole: bool = True) -> Mark | None:
        """Return the mark that holds for the incident, or for the part of it that a user sees. None: there is none."""
        if not self._all:
            return None
        found: Covering | None = None
        for finding in findings:
            covering = self._covering(key, finding, is_whole=is_whole)
            if covering is None:
                return None
            if found is None or _end(covering) < _end(found):
                found = covering
        return found.mark if found is not None else None

    def set_on(self, key: str) -> Mark | None:
        """Return a mark that was set on this whole incident, and isn't over."""
        here = self._by_incident.get(key, {}).values()
        return next((it.mark for it in here if it.rules and not it.is_over), None)

    def uncovered(self, key: str, findings: Sequence[Finding]) -> tuple[Finding, str] | None:
        """Return the first finding that no mark covers, and why not; None if all are covered."""
        for it in findings:
            if self._covering(key, it, is_whole=True) is None:
                return it, self._news_of(it)
        return None

    def _news_of(self, finding: Finding) -> str:
        known = self._by_finding.get(finding.key, {}).values()
        if not known:
            return "this is new"
        has_spread = any(it.has_severity_of(finding) and not it.has(finding) for it in known)
        return "this has spread" if has_spread else f"this is a {finding.severity} now"

    def _covering(self, key: str, finding: Finding, *, is_whole: bool) -> Covering | None:
        """Return the mark that covers the finding for the longest time."""
        coverings = self._by_finding.get(finding.key, {}).values()
        if not is_whole:
            return max((it for it in coverings if it.has(finding)), key=_end, default=None)
        found = [it for it in coverings if it.has_for_all(finding)]
        found += [it for it in self._by_incident.get(key, {}).values() if it.has_rule_of(finding)]
        return max(found, key=_end, default=None)

    def _seen_at(self, covering: Covering) -> float:
        return self._seen.get(covering.name, covering.seen)

    # Changes: of one mark at a time, because somebody may mark a thousand incidents at once

    def _about(self, key: str, findings: Iterable[str]) -> list[Covering]:
        """Return the marks that are on the incident or cover one of the findings."""
        found: _Coverings = dict(self._by_incident.get(key, {}))
        for it in findings:
            found.update(self._by_finding.get(it, {}))
        return list(found.values())

    def _add(self, it: Covering) -> None:
        self._all[it.name] = it
        self._covered += len(it.covers)
        self._by_incident.setdefault(it.key, {})[it.name] = it
        for key in it.covers:
            self._by_finding.setdefault(key, {})[it.name] = it

    def _remove(self, it: Covering) -> None:
        self._take_out(it)
        self._seen.pop(it.name, None)

    def _change(self, before: Covering, it: Covering) -> None:
        self._take_out(before)
        self._add(it)

    def _take_out(self, it: Covering) -> None:
        del self._all[it.name]
        self._covered -= len(it.covers)
        for index, keys in ((self._by_incident, (it.key,)), (self._by_finding, tuple(it.covers))):
            for key in keys:
                here = index[key]
                del here[it.name]
                if not here:
                    del index[key]

    # Over a restart

    def dump(self) -> tuple[Covering, ...]:
        return tuple(replace(it, seen=self._seen_at(it)) for it in self)

    def load(self, coverings: Sequence[Covering]) -> None:
        for it in {it.name: it for it in coverings[:MOST_MARKS]}.values():
            self._add(it)


def _end(covering: Covering) -> float:
    return covering.mark.until if covering.mark.until is not None else inf


def _places(finding: Finding) -> tuple[str, ...]:
    return finding.others if rule_of(finding).spreads else ()


def _is_up_to(severity: Severity, covered: Severity) -> bool:
    return _SEVERITIES[severity] >= _SEVERITIES[covered]
