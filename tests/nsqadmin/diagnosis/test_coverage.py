"""A mark covers what it was set on, and nothing that is worse or was not there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from nsqadmin.cluster.model import Finding, Severity
from nsqadmin.diagnosis.coverage import MOST_COVERED, MOST_MARKS, Coverage
from nsqadmin.diagnosis.incident import Mark
from tests.support.picture import NOW

PROBLEM, WARNING = Severity.PROBLEM, Severity.WARNING
ANA = Mark(by="ana", at=NOW, until=NOW + 900)
BEN = Mark(by="ben", at=NOW, until=NOW + 3600)
KEY = "k"


def finding(name: str = "a", rule: str = "D6", severity: Severity = WARNING) -> Finding:
    return Finding(rule=rule, severity=severity, verdict="v", advice="a", topic="t", channel=name)


A, B = finding("a"), finding("b")


def marked(*findings: Finding, mark: Mark = ANA, is_whole: bool = True) -> Coverage:
    coverage = Coverage()
    assert coverage.put(KEY, findings, mark, is_whole=is_whole)
    return coverage


def test_a_mark_holds_for_what_it_was_set_on_and_for_less() -> None:
    coverage = marked(A, replace(B, severity=PROBLEM))
    assert coverage.of(KEY, [A, B]) == ANA
    assert coverage.of("another", [A]) == ANA  # however findings are grouped


def test_a_mark_does_not_hold_for_what_is_worse_or_new() -> None:
    coverage = marked(A)
    assert coverage.of(KEY, [replace(A, severity=PROBLEM)]) is None
    assert coverage.of(KEY, [A, replace(A, rule="D7")]) is None
    assert coverage.of(KEY, [A, replace(B, severity=PROBLEM)]) is None
    assert coverage.of("another", [A, B]) is None
    assert coverage.uncovered(KEY, [replace(A, severity=PROBLEM)]) == (
        replace(A, severity=PROBLEM),
        "this is a problem now",
    )
    assert coverage.uncovered(KEY, [A, replace(B, severity=PROBLEM)]) == (replace(B, severity=PROBLEM), "this is new")


def test_a_mark_does_not_hold_for_further_places() -> None:
    here = Finding(
        rule="D16",
        facet="registration",
        severity=WARNING,
        verdict="v",
        advice="a",
        node="n1:1",
        others=("l1:1", "l2:1"),
    )
    coverage, further = marked(here), replace(here, others=("l1:1", "l2:1", "l3:1"))
    assert coverage.of(KEY, [replace(here, others=("l2:1",))]) == ANA
    assert coverage.of(KEY, [further]) is None
    assert coverage.uncovered(KEY, [further]) == (further, "this has spread")
    compared = replace(here, rule="D26", facet="")  # its `others` only say with whom it was compared
    assert marked(compared).of(KEY, [replace(compared, others=("n3:1",))]) == ANA


def test_a_further_warning_of_the_same_rule_is_no_news_in_a_group() -> None:
    assert marked(A).of(KEY, [A, B]) == ANA
    assert marked(A, is_whole=False).of(KEY, [A, B]) is None  # somebody who sees only `a` says nothing about `b`


def test_what_several_marks_cover_together_is_covered_until_the_first_ends() -> None:
    coverage = marked(A)
    coverage.put("other", [B], BEN, is_whole=True)
    assert coverage.of("group", [A, B]) == ANA


def test_an_ended_mark_still_holds_for_those_who_see_a_part() -> None:
    coverage = marked(A)
    coverage.end(KEY, [A])
    assert (coverage.of(KEY, [A]), coverage.of(KEY, [A], is_whole=False)) == (None, ANA)
    assert coverage.set_on(KEY) is None


def test_a_mark_that_ends_in_one_incident_still_holds_for_what_is_in_another() -> None:
    coverage = marked(A, B)
    coverage.end("another", [A])
    assert (coverage.of("another", [A]), coverage.of(KEY, [B])) == (None, ANA)
    again = Coverage()
    again.load(coverage.dump())
    assert (again.of("another", [A]), again.of(KEY, [B])) == (None, ANA)


def test_marks_of_two_people_do_not_replace_each_other() -> None:
    coverage = marked(A, B)
    coverage.put(KEY, [A], BEN, is_whole=False)
    assert coverage.of(KEY, [A, B]) == ANA
    assert coverage.of(KEY, [A], is_whole=False) == BEN  # it lasts longer
    coverage.put(KEY, [A], replace(ANA, note="again"), is_whole=True)
    assert len(coverage) == 2


def test_a_mark_is_taken_back_in_whole_or_in_part() -> None:
    coverage = marked(A, B)
    coverage.take_back(KEY, [A], is_whole=False)
    assert (coverage.of(KEY, [A, B]), coverage.of(KEY, [B])) == (None, ANA)
    coverage.take_back(KEY, [B], is_whole=True)
    assert len(coverage) == 0


def test_a_mark_of_another_incident_is_taken_back_for_these_findings() -> None:
    coverage = marked(A, B)
    coverage.take_back("another", [A], is_whole=True)
    assert (coverage.of("another", [A]), coverage.of(KEY, [B])) == (None, ANA)


def test_a_mark_is_forgotten_when_nothing_of_it_is_there_for_long() -> None:
    coverage = marked(A)
    coverage.see({A.key}, NOW + 500, most_away=600)
    coverage.see(set(), NOW + 1000, most_away=600)
    again = Coverage()
    again.load(coverage.dump())
    again.see(set(), NOW + 1099, most_away=600)
    assert len(again) == 1
    again.see(set(), NOW + 1101, most_away=600)
    assert len(again) == 0


def test_changes_of_single_marks_leave_what_a_restart_would_build() -> None:
    random, coverage = Random(3), Coverage()
    names, keys, people = "abcdef", ("k1", "k2", "k3"), ("ana", "ben")
    for at in range(600):
        key, now = random.choice(keys), NOW + 10 * at
        its = [finding(name, severity=random.choice((PROBLEM, WARNING))) for name in random.sample(names, 3)]
        mark = Mark(by=random.choice(people), at=now, until=now + random.randrange(300))
        match random.randrange(5):
            case 0 | 1:
                assert coverage.put(key, its, mark, is_whole=random.random() < 0.7)
            case 2:
                coverage.take_back(key, its, is_whole=random.random() < 0.3)
            case 3:
                coverage.end(key, its)
            case 4:
                coverage.forget([it for it in coverage if (it.mark.until or 0.0) <= now])
        coverage.see({it.key for it in its}, now, most_away=100.0)
        again = Coverage()
        again.load(coverage.dump())
        assert again.dump() == coverage.dump()
        for key in keys:
            for shown in (its, its[:1]):
                assert again.of(key, shown) == coverage.of(key, shown)
                assert again.of(key, shown, is_whole=False) == coverage.of(key, shown, is_whole=False)
                assert again.uncovered(key, shown) == coverage.uncovered(key, shown)
                assert again.set_on(key) == coverage.set_on(key)


def test_there_is_a_bound() -> None:
    coverage = Coverage()
    for number in range(MOST_MARKS):
        assert coverage.put(str(number), [A], ANA, is_whole=True)
    assert not coverage.put("more", [A], ANA, is_whole=True)
    assert not Coverage().put(KEY, [A] * (MOST_COVERED + 1), ANA, is_whole=True)
    assert not Coverage().put(KEY, [], ANA, is_whole=True)
