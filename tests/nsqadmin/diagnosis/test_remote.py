"""Rules about nodes' copies in an object store, and what becomes of a node that another machine has taken over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from nsqadmin.cluster.copies import read_copy, successors_of
from nsqadmin.cluster.events import events_between
from nsqadmin.cluster.model import Finding, Health, Metric, Node, RemoteCopy, Severity
from nsqadmin.cluster.node_stats import NodeAnswer
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.upstream.node_view import silent_among, unanswered_by
from tests.support.picture import NOW, node, snapshot

STORE = "s3://lake/nsq"
OWNED = RemoteCopy(store=STORE, name="orders-1", state="owner")


class NoTrends:
    def recent(self, key: str, metric: Metric, seconds: float) -> Sequence[float]:
        return ()


def found(*nodes: Node) -> list[Finding]:
    return list(diagnose(snapshot(nodes=nodes), NoTrends()))


def owner(address: str = "a:4151", start: float = NOW - 7200, health: Health = Health.OK, **copy: Any) -> Node:
    return node(address, remote=replace(OWNED, **copy), start_time=start, health=health)


def said(finding: Finding) -> dict[str, str]:
    return {it.label: it.value for it in finding.evidence}


def test_a_copy_that_is_complete_is_nothing_to_say() -> None:
    assert found(owner(behind_seconds=0.4)) == []


def test_d28_the_store_does_not_answer_and_nothing_else_is_said_about_that() -> None:
    refusal = "remote: nothing listens there"
    away = owner(state="down", refusal=refusal, behind_seconds=90.0, behind_bytes=1200)
    (finding,) = found(replace(away, own_health=f"NOK - {refusal}"))
    assert (finding.rule, finding.severity, finding.node) == ("D28", Severity.PROBLEM, "a:4151")
    assert said(finding) == {"store": STORE, "it says": refusal, "bytes not copied": "1,200"}


def test_a_node_with_another_fault_than_its_store_is_not_well() -> None:
    away = owner(state="down", refusal="remote: nothing listens there")
    assert {it.rule for it in found(replace(away, own_health="NOK - failed to sync"))} == {"D16", "D28"}


@pytest.mark.parametrize(("seconds", "rules"), [(60.0, []), (61.0, ["D29"])])
def test_d29_the_copy_is_late(seconds: float, rules: list[str]) -> None:
    assert [it.rule for it in found(owner(behind_seconds=seconds))] == rules


@pytest.mark.parametrize(
    ("is_adopted", "ago", "rules"), [(True, 300.0, ["D30"]), (True, 3601.0, []), (False, 300.0, [])]
)
def test_d30_a_node_has_taken_over_a_name_lately(is_adopted: bool, ago: float, rules: list[str]) -> None:
    findings = found(owner(start=NOW - ago, is_adopted=is_adopted))
    assert [it.rule for it in findings] == rules
    assert [it.verdict for it in findings] == ["a:4151 has taken over orders-1"] * len(rules)


def test_d31_files_lie_aside() -> None:
    (finding,) = found(owner(asides=("/data/aside-1", "/data/aside-2")))
    assert (finding.rule, finding.severity) == ("D31", Severity.WARNING)
    assert said(finding) == {"folders": "2", "the newest": "/data/aside-2"}


def test_d32_one_name_is_in_use_by_two_nodes() -> None:
    (finding,) = found(owner("a:4151", state="down"), owner("b:4151", start=NOW - 4000))[1:]
    assert (finding.rule, finding.severity, finding.node) == ("D32", Severity.PROBLEM, "a:4151")
    assert finding.verdict == "orders-1 is in use by a:4151 and by b:4151"


WATCHED: dict[str, Any] = {"wants_standby": True}


@pytest.mark.parametrize(
    ("ago", "copy", "rules"),
    [
        (61.0, WATCHED, ["D33"]),
        (61.0, WATCHED | {"state": "down"}, ["D28", "D33"]),
        (59.0, WATCHED, []),
        (7200.0, WATCHED | {"standbys": ("b:4151",)}, []),
        (7200.0, WATCHED | {"state": "standby"}, []),
        (7200.0, WATCHED | {"wants_standby": False}, []),
    ],
)
def test_d33_no_standby_waits_for_a_node_that_wants_one(ago: float, copy: dict[str, Any], rules: list[str]) -> None:
    findings = found(owner(start=NOW - ago, **copy))
    assert [it.rule for it in findings] == rules
    if rules:
        assert (findings[-1].severity, findings[-1].node) == (Severity.WARNING, "a:4151")
        assert "--remote-name=orders-1" in findings[-1].advice


def test_a_node_that_does_not_answer_is_not_said_to_have_no_standby() -> None:
    assert "D33" not in {it.rule for it in found(owner(health=Health.DOWN, **WATCHED))}


@pytest.mark.parametrize("other", [{"name": "orders-2"}, {"store": "s3://other/nsq"}, {"state": "standby"}])
def test_other_names_other_stores_and_standbys_are_no_second_owner(other: dict[str, Any]) -> None:
    assert found(owner("a:4151"), owner("b:4151", **other)) == []


# A node that is lost, and goes on elsewhere


def answer(copy: RemoteCopy | None, *, is_silent: bool = False) -> NodeAnswer:
    return NodeAnswer(at=0.0, topics={}, producers=None, has_clients=False, remote=copy, is_silent=is_silent)


def test_a_silent_node_is_succeeded_by_the_one_that_owns_its_name() -> None:
    lost = answer(OWNED, is_silent=True)
    assert successors_of({"a": lost, "b": answer(OWNED), "c": answer(None)}) == {"a": "b"}
    assert successors_of({"a": lost, "b": answer(replace(OWNED, state="standby"))}) == {}
    assert successors_of({"a": answer(OWNED), "b": answer(OWNED)}) == {}


def test_a_node_that_goes_on_elsewhere_is_no_problem_and_its_numbers_do_not_count() -> None:
    lost = replace(owner("a:4151", health=Health.DOWN), answered_at=NOW - 60, topic_count=1, depth=9)
    new = owner("b:4151", start=NOW - 30, is_adopted=True)
    (problem,) = [it for it in found(lost, new) if it.node == "a:4151"]
    assert problem.severity is Severity.PROBLEM
    assert problem.advice.endswith("start nsqd on another machine with --remote-name=orders-1.")
    gone_on = replace(lost, successor="b:4151")
    findings = {it.rule: it for it in found(gone_on, new)}
    assert findings["D16"].severity is Severity.WARNING
    assert findings["D16"].verdict == "a:4151 does not answer; b:4151 has taken over its name"
    assert findings["D30"].verdict == "b:4151 has taken over orders-1 from a:4151"
    assert silent_among([gone_on]) == ()
    assert list(unanswered_by([gone_on], [])) == []


def test_a_takeover_is_one_event_whenever_nsqlookupd_forgets_the_lost_node() -> None:
    lost, new = owner("a:4151", health=Health.DOWN), owner("b:4151", start=NOW)
    alone, both = snapshot(nodes=(lost,)), snapshot(nodes=(replace(lost, successor="b:4151"), new))
    after = snapshot(nodes=(new,))
    for pictures in ([alone, both, after], [alone, after]):
        events = [it for before, now in pairwise(pictures) for it in events_between(before, now)]
        assert [it.text for it in events if it.what == "taken_over"] == [
            "nsqd b:4151 has taken over orders-1 from a:4151"
        ]


def test_what_a_node_says_about_its_copy_is_read() -> None:
    assert read_copy(
        {
            "store": STORE,
            "name": "orders-1",
            "state": "down",
            "refusal": "remote: no answer",
            "behind_seconds": 0.4,
            "behind_bytes": 12,
            "waiting_publishes": 3,
            "started": {"decision": "adopt", "fetched": 3, "aside": ""},
            "aside": ["/data/aside-1"],
            "standby": True,
            "watched_by": ["b:4151"],
        }
    ) == RemoteCopy(
        store=STORE,
        name="orders-1",
        state="down",
        refusal="remote: no answer",
        behind_seconds=0.4,
        behind_bytes=12,
        waiting_publishes=3,
        is_adopted=True,
        asides=("/data/aside-1",),
        wants_standby=True,
        standbys=("b:4151",),
    )
    assert read_copy(None) is None
    assert read_copy({}) == RemoteCopy()
    with pytest.raises(ValueError, match="too high"):
        read_copy({"behind_seconds": 1e300})


def test_viewers_who_see_few_topics_do_not_see_the_words_of_the_store() -> None:
    seen = owner(state="down", refusal="remote: t.secret").seen_by(lambda topic: False)
    assert seen.remote == replace(OWNED, state="down")
