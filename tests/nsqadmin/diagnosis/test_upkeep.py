"""Findings get worse at once and better slowly, and never because a node is silent or messages are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqadmin.cluster.model import Finding, Health, Severity, Silent, Snapshot
from nsqadmin.diagnosis.rules import rule_of
from nsqadmin.diagnosis.upkeep import HOLD, MILDER, QUIET, SEVERITIES, Upkeep
from tests.support.picture import NOW, channel, channel_node, node, snapshot, topic

PROBLEM, WARNING, INFO = Severity.PROBLEM, Severity.WARNING, Severity.INFO
STEP = 5.0  # seconds
HOUR = 3600.0


def finding(rule: str = "D3", severity: Severity = PROBLEM, **fields: object) -> Finding:
    about = {} if "node" in fields else {"topic": "orders", "channel": "billing"}
    return Finding(rule=rule, severity=severity, verdict="v", advice="a", **{**about, **fields})  # type: ignore[arg-type]


def moment(at: float, *, silent: Sequence[str] = (), **fields: object) -> Snapshot:
    """Return a snapshot of one channel on two nodes."""
    names = ("n1:4151", "n2:4151")
    here = channel(*map(channel_node, names), topic="orders", name="billing", silent=tuple(silent))
    known: dict[str, object] = {
        "nodes": tuple(
            node(it, health=Health.DOWN if it in silent else Health.OK, answered_at=NOW + at) for it in names
        ),
        "silent": tuple(Silent(node=it, since=NOW, answered_at=NOW) for it in silent),
        "taken_at": NOW + at,
        "interval": STEP,
    }
    return snapshot(topic(here, name="orders", silent=tuple(silent)), **{**known, **fields})  # type: ignore[arg-type]


def shown(upkeep: Upkeep, at: float, *found: Finding, silent: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the rules and severities that are shown."""
    followed = upkeep.follow(found, moment(at, silent=silent))
    return sorted((it.rule, it.severity.value) for it in followed)


def restarted(upkeep: Upkeep) -> Upkeep:
    again = Upkeep()
    again.load(msgpack.unpackb(msgpack.packb(upkeep.dump(), default=lambda value: value())))
    return again


D3, D4, D7 = (("D3", "problem"), ("D4", "problem"), ("D7", "problem"))


def test_a_consumer_that_is_away_for_a_moment_is_not_said() -> None:
    upkeep = Upkeep()
    for at in (0, 5, 10):
        assert shown(upkeep, at) == []
    for at in (15, 20, 30, 40):
        assert shown(upkeep, at, finding("D4")) == []
    assert shown(upkeep, 45) == []
    for at in (50, 60, 70, 75):
        assert shown(upkeep, at, finding("D4")) == []
    (later,) = upkeep.follow([finding("D4")], moment(80))
    assert (later.rule, later.since) == ("D4", NOW + 50)
    assert shown(upkeep, 85) == [D4]  # and then it stays
    assert shown(upkeep, 90, finding("D4")) == [D4]


def test_at_the_start_it_is_said_at_once() -> None:
    assert shown(Upkeep(), 0, finding("D4")) == [D4]


def test_what_is_still_found_after_its_end_stays_for_a_shorter_time() -> None:
    for rule, last in (("D7", 95), ("D9", 35)):
        upkeep = Upkeep()
        upkeep.follow([finding(rule)], moment(0))
        stays = [at for at in range(5, 200, 5) if shown(upkeep, at)]
        assert stays[-1] == last + 5


def test_a_finding_ends_within_two_minutes() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding()], moment(0))
    assert shown(upkeep, 5) == [D3]
    (held,) = upkeep.follow([], moment(HOLD))
    assert (held.is_held, held.seen) == (True, NOW)
    assert shown(upkeep, 5 + HOLD) == []
    assert 5 + HOLD < 120


@pytest.mark.parametrize(("interval", "last"), [(0.2, 4.2), (5.0, 105.0), (60.0, 120.0)])
def test_with_more_frequent_samples_you_learn_sooner(interval: float, last: float) -> None:
    upkeep = Upkeep()
    upkeep.follow([finding()], replace(moment(0), interval=interval))
    at = interval
    while upkeep.follow([], replace(moment(at), interval=interval)):
        at += interval
    assert at == pytest.approx(last, abs=interval)


def test_a_finding_that_comes_and_goes_stays_one() -> None:
    upkeep = Upkeep()
    for at in range(0, 3600, 60):
        (it,) = upkeep.follow([finding()] if at % 120 == 0 else [], moment(at))
        assert it.since == NOW


def test_a_milder_state_has_to_last() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7")], moment(0))
    for at in range(5, 5 + int(MILDER), 5):
        assert shown(upkeep, at, finding("D7", WARNING)) == [D7]
    assert shown(upkeep, 5 + MILDER, finding("D7", WARNING)) == [("D7", "warning")]


def test_it_gets_worse_at_once_and_from_then_on_milder_only_after_an_hour() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7")], moment(0))
    at = 5.0
    while shown(upkeep, at, finding("D7", WARNING)) == [D7]:
        at += STEP
    (worse,) = upkeep.follow([finding("D7")], moment(at + STEP))
    assert (worse.severity, worse.since) == (PROBLEM, NOW + at + STEP)
    back = at + STEP
    while shown(upkeep, at + 2 * STEP, finding("D7", WARNING)) == [D7]:
        at += STEP
    assert at + 2 * STEP - back >= HOUR


def test_another_rule_of_the_family_that_is_as_bad_takes_its_place() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7")], moment(0))
    assert shown(upkeep, 5, finding("D3")) == [D3]
    assert shown(upkeep, 10, finding("D8")) == [D3, ("D8", "problem")]  # another family says nothing about delivery


def test_what_somebody_switches_back_is_over_at_once() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D1", WARNING)], moment(0))
    assert shown(upkeep, 5) == []


def test_what_is_deleted_is_over_at_once() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding(), finding("D25", WARNING, node="n1:4151")], moment(0))
    gone = replace(moment(5), topics=(), nodes=(), _by_name={}, _by_address={})
    assert upkeep.follow([], gone) == []


def test_nothing_improves_while_messages_are_lost() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D6")], moment(0))
    for at in range(5, 600, 5):
        assert ("D6", "problem") in shown(upkeep, at, finding("D22"))
    for at in range(600, 600 + int(HOLD), 5):
        assert ("D6", "problem") in shown(upkeep, at)
    assert shown(upkeep, 600 + HOLD) == []


# Silent nodes

SILENT = ("n2:4151",)


def test_a_finding_freezes_while_a_node_is_silent_and_is_held_when_it_is_back() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7")], moment(0))
    for at in range(5, 7200, 60):
        (frozen,) = upkeep.follow([], moment(at, silent=SILENT))
    assert (frozen.is_frozen, frozen.since, frozen.seen) == (True, NOW, NOW)
    (held,) = upkeep.follow([], moment(7200))
    assert (held.is_frozen, held.is_held) == (False, True)
    assert shown(upkeep, 7200 + HOLD) == []


def test_a_finding_that_changes_its_rule_while_it_is_frozen() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7")], moment(0))
    assert shown(upkeep, 5, finding("D6"), silent=SILENT) == [("D6", "problem"), D7]
    assert shown(upkeep, 10, finding("D6")) == [("D6", "problem")]


def test_what_is_known_of_a_node_freezes_when_it_dies_and_ends_when_it_is_forgotten() -> None:
    upkeep = Upkeep()
    sick = finding("D28", node="n2:4151")
    upkeep.follow([sick], moment(0))
    dead = finding("D16", node="n2:4151", facet="reach")
    assert shown(upkeep, 5, dead, silent=SILENT) == [("D16", "problem"), ("D28", "problem")]
    alone = moment(HOUR)
    forgotten = replace(alone, nodes=alone.nodes[:1], _by_address={}, _by_name={})
    assert upkeep.follow([], forgotten) == []


def test_a_node_that_was_forgotten_but_is_still_announced_freezes_nothing() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D28", node="n2:4151")], moment(0))
    never = finding("D16", node="n2:4151", facet="reach")
    shown_nodes = (node("n1:4151"), node("n2:4151", health=Health.NEVER))
    for at in range(5, 5 + int(HOLD) + 5, 5):
        followed = upkeep.follow([never], moment(at, nodes=shown_nodes))
    assert [it.facet for it in followed] == ["reach"]


def test_a_comparison_freezes_when_no_other_node_is_left_to_compare_with() -> None:
    upkeep = Upkeep()
    differs = finding("D26", WARNING, node="n1:4151", others=("n2:4151", "n3:4151"))
    upkeep.follow([differs], moment(0))
    nodes = (node("n1:4151"), node("n2:4151", health=Health.DOWN, answered_at=NOW), node("n3:4151"))
    both = (nodes[0], nodes[1], replace(nodes[1], address="n3:4151"))
    (frozen,) = upkeep.follow([], moment(5, nodes=both))
    assert frozen.is_frozen
    (held,) = upkeep.follow([], moment(10, nodes=nodes))  # one of them is enough
    assert held.is_held


def test_it_holds_over_a_restart() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7"), finding("D10", INFO)], moment(0))
    upkeep.follow([], moment(5, silent=SILENT))
    again = restarted(upkeep)
    (frozen,) = again.follow([], moment(HOUR, silent=SILENT))
    assert (frozen.is_frozen, frozen.since, frozen.seen) == (True, NOW, NOW)
    again = restarted(again)
    assert shown(again, HOUR + 5) == [D7]
    assert shown(again, HOUR + 5 + HOLD) == []


def test_rules_get_time_to_find_it_again_after_a_restart() -> None:
    upkeep = Upkeep()
    upkeep.follow([finding("D7")], moment(0))
    again = restarted(upkeep)
    assert shown(again, HOUR) == [D7]
    (found,) = again.follow([finding("D7")], moment(HOUR + 60))
    assert (found.is_held, found.since) == (False, NOW)


@pytest.mark.parametrize("dumped", [None, [], {}, {"format": 2}, {"format": 1, "findings": [7]}])
def test_a_file_of_something_else_is_refused(dumped: object) -> None:
    with pytest.raises(ValueError, match=r"expected|missing"):
        Upkeep().load(dumped)


# What comes and goes


def played(upkeep: Upkeep, spans: Sequence[tuple[float, float]], until: float) -> tuple[list[float], list[float]]:
    """Find D3 within these spans, and return when something is shown for the first time again, and when nothing is."""
    opened, closed, was_shown = list[float](), list[float](), False
    for at in range(0, int(until), int(STEP)):
        is_there = any(begin <= at < end for begin, end in spans)
        is_shown = bool(upkeep.follow([finding()] if is_there else [], moment(at)))
        if is_shown is not was_shown:
            (opened if is_shown else closed).append(at)
        was_shown = is_shown
    return opened, closed


def test_what_comes_back_twice_within_an_hour_stays_until_it_has_been_away_for_half_an_hour() -> None:
    spans = [(at, at + 30) for at in range(300, 7200, 300)]
    opened, closed = played(Upkeep(), spans, 4 * HOUR)
    assert opened == [300, 600, 900]
    assert closed == [430, 730, 6900 + 30 + QUIET]


def test_what_has_come_back_once_still_closes_within_two_minutes() -> None:
    opened, closed = played(Upkeep(), [(0, 300), (900, 1200), (4600, 4900)], 2 * HOUR)
    assert opened == [0, 900, 4600]
    assert closed == [400, 1300, 5000]


def test_a_long_time_of_trouble_is_no_coming_and_going() -> None:
    opened, closed = played(Upkeep(), [(0, 30), (300, 330), (600, 5000)], 2 * HOUR)
    assert (len(opened), closed[-1]) == (3, 5100)


def test_what_comes_and_goes_says_so_and_is_known_after_a_restart() -> None:
    upkeep = Upkeep()
    played(upkeep, [(0, 30), (300, 330)], 500)
    upkeep = restarted(upkeep)
    (back,) = upkeep.follow([finding()], moment(600))
    assert (back.is_held, back.returns, back.is_recurring) == (False, 2, True)
    upkeep = restarted(upkeep)
    (away,) = upkeep.follow([], moment(900))
    assert (away.is_held, away.returns, away.seen) == (True, 2, NOW + 600)
    (again,) = upkeep.follow([finding()], moment(1100))
    assert (again.is_held, again.returns, again.since) == (False, 3, NOW + 600)


def test_the_channels_of_a_node_that_comes_and_goes_do_not() -> None:
    upkeep = Upkeep()
    for at in range(0, 1800, 300):
        assert D3 in shown(upkeep, at, finding(), silent=SILENT)
        assert D3 in shown(upkeep, at + 60)
        assert shown(upkeep, at + 60 + HOLD) == []


def test_what_somebody_switches_or_deletes_does_not_come_and_go() -> None:
    upkeep = Upkeep()
    for at in range(0, 3000, 300):
        assert shown(upkeep, at, finding("D1", WARNING)) == [("D1", "warning")]
        assert shown(upkeep, at + 150) == []
    upkeep = Upkeep()
    for at in range(0, 3000, 300):
        assert shown(upkeep, at, finding()) == [D3]
        assert upkeep.follow([], snapshot(taken_at=NOW + at + 50, interval=STEP)) == []
    assert shown(upkeep, 3100, finding()) == [D3]
    assert shown(upkeep, 3105) == [D3]
    assert shown(upkeep, 3105 + HOLD) == []


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(4, 100)), min_size=4, max_size=9))
def test_whatever_comes_and_goes_opens_at_most_four_times_in_an_hour(pattern: list[tuple[int, int]]) -> None:
    """Each pair is for how many samples it is there, and away."""
    upkeep, opened, at, was_shown = Upkeep(), list[float](), 0.0, False
    for there, away in pattern:
        for number in range(there + away):
            at += 20.0
            is_shown = bool(upkeep.follow([finding()] if number < there else [], moment(at)))
            if is_shown and not was_shown:
                opened.append(at)
            was_shown = is_shown
    assert all(len([it for it in opened if begin <= it < begin + HOUR]) <= 4 for begin in opened)


# Whatever happens

found = st.sets(
    st.builds(
        finding, st.sampled_from(["D1", "D3", "D4", "D6", "D7", "D8", "D22"]), st.sampled_from([PROBLEM, WARNING, INFO])
    ).map(lambda it: replace(it, severity=PROBLEM if it.rule == "D22" else it.severity)),
    max_size=3,
)
steps = st.lists(st.tuples(found, st.booleans(), st.booleans()), min_size=2, max_size=40)


@given(steps, st.sampled_from([5.0, 30.0, 90.0]))
def test_nothing_improves_for_a_bad_reason(script: list[tuple[set[Finding], bool, bool]], pause: float) -> None:
    """Findings come and go, a node falls silent and returns, and nsqadmin is restarted."""
    upkeep, before = Upkeep(), list[Finding]()
    for number, (its, is_silent, is_restart) in enumerate(script):
        if is_restart:
            upkeep = restarted(upkeep)
        now = moment(pause * number, silent=SILENT if is_silent else ())
        followed = upkeep.follow(list(its), now)
        worst = {it.key: SEVERITIES[it.severity] for it in followed}
        for it in its:
            if not rule_of(it).patience:
                assert worst[it.key] <= SEVERITIES[it.severity]  # worse at once
        is_losing = any(it.rule == "D22" for it in its)
        for it in before:
            if it.severity is INFO or not (is_silent or (is_losing and it.rule != "D1")):
                continue
            assert worst[it.key] <= SEVERITIES[it.severity]
        before = followed


@given(st.lists(st.sampled_from([None, WARNING, PROBLEM]), min_size=50, max_size=300))
def test_a_severity_changes_at_most_twice_an_hour(script: list[Severity | None]) -> None:
    upkeep, changed, before = Upkeep(), list[float](), None
    for number, severity in enumerate(script):
        at = 30.0 * number
        followed = upkeep.follow([finding("D7", severity)] if severity else [], moment(at))
        after = min((it.severity for it in followed), key=SEVERITIES.__getitem__, default=None)
        if after is not None and before is not None and after is not before:
            changed.append(at)
        if after is None:  # its cause was away for longer than the hold: what comes next is another life
            changed.clear()
        assert len([it for it in changed if at - it < HOUR]) <= 2
        before = after


@given(steps)
def test_all_is_well_within_two_minutes_after_all_is_well(script: list[tuple[set[Finding], bool, bool]]) -> None:
    upkeep, last = Upkeep(), list[Finding]()
    for number, (its, is_silent, is_restart) in enumerate(script):
        if is_restart:
            upkeep = restarted(upkeep)
        last = upkeep.follow(list(its), moment(20.0 * number, silent=SILENT if is_silent else ()))
    at = 20.0 * len(script)
    most = QUIET + 20 if any(it.is_recurring for it in last) else 120
    while upkeep.follow([], moment(at)):
        at += STEP
        assert at <= 20.0 * len(script) + most
