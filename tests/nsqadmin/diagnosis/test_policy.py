"""What diagnosis finds about the policy files: what they do, what they are about to do, and where they differ."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.model import Finding, Health, Severity, Snapshot, TopicNode
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.diagnosis.upkeep import Upkeep
from tests.nsqadmin.diagnosis.test_diagnosis import QUIET, about, found, only, said
from tests.support.picture import NOW, channel, channel_node, client, node, snapshot, topic

HOUR, DAY = 3600.0, 86_400.0
TOO_MANY = "more than 100 messages are buried (max_buried)"
TRIPPED = "at least 50% of the last minute's deliveries were buried (breaker)"


# A channel stops itself


def stopped(why: str = TOO_MANY, address: str = "n1:4151") -> Any:
    return channel_node(address, depth=7, buried_count=101, paused=True, paused_why=why)


def test_d20_a_channel_has_paused_itself() -> None:
    finding = only(about(channel(stopped())))
    assert (finding.rule, finding.severity, finding.action) == ("D20", Severity.PROBLEM, "unpause_channel")
    assert finding.verdict == f"It has paused itself: {TOO_MANY}"
    assert said(finding) == {"buried": "101", "waiting": "7", "paused on": "n1:4151"}
    assert "kick or discard" in finding.advice


def test_d20_names_the_node_if_others_go_on() -> None:
    finding = only(about(channel(stopped(TRIPPED), channel_node("n2:4151", clients=(client("n2:4151"),)))))
    assert finding.verdict == f"It has paused itself on 1 of 2 nodes: {TRIPPED}"
    assert "the breaker starts counting from 0" in finding.advice


def test_a_person_who_pauses_is_d1_as_before() -> None:
    assert only(about(channel(channel_node(depth=7, paused=True)))).rule == "D1"


# Limits


def of_topic(**fields: Any) -> list[Finding]:
    rows = (TopicNode(node="n1:4151"),)
    full = channel(
        channel_node(depth=100, in_flight_count=1, clients=(client(ready_count=5, in_flight_count=1),)), name="slow"
    )
    return found(snapshot(topic(full, nodes=rows, **fields)))


def test_d21_publishes_are_refused() -> None:
    finding = only(of_topic(policy_recent=(("max_messages, rejected", 1204),)))
    assert (finding.rule, finding.severity, finding.window) == ("D21", Severity.PROBLEM, 300.0)
    assert finding.verdict == "Publishes are refused: max_messages is reached"
    assert said(finding) == {
        "max_messages, rejected": "1,204",
        "waiting in slow, its longest channel": "100",
        "waiting in the topic": "0",
    }


def test_d22_messages_are_dropped() -> None:
    recent = (("not on disk, dropped", 1), ("overflow, dropped", 4000))
    finding = only(about(channel(channel_node(clients=(client(ready_count=5),)), policy_recent=recent)))
    assert (finding.rule, finding.severity) == ("D22", Severity.PROBLEM)
    assert finding.verdict == "Messages are lost: 4,001 messages dropped in the last 5 min"
    assert said(finding) == {"not on disk, dropped": "1", "overflow, dropped": "4,000", "waiting": "0"}
    (of_the_topic,) = of_topic(policy_recent=recent)
    assert (of_the_topic.rule, of_the_topic.channel) == ("D22", "")


def test_d22_advises_by_the_cause_of_the_drop() -> None:
    unburied, overflown = ("not on disk, dropped", 1), ("overflow, dropped", 4000)

    def advice(*recent: tuple[str, int]) -> str:
        return only(about(channel(channel_node(clients=(client(ready_count=5),)), policy_recent=recent))).advice

    assert "ephemeral" in advice(unburied)
    assert "raise the limit" not in advice(unburied)
    assert "raise the limit" in advice(overflown)
    assert "ephemeral" not in advice(overflown)
    full = ("full, dropped", 7)
    assert "dropped as they arrive" in advice(full)
    assert "the oldest messages are dropped" not in advice(full)
    assert advice(full, overflown) == f"{advice(full)} {advice(overflown)}"
    assert advice(unburied, overflown) == f"{advice(unburied)} {advice(overflown)}"


@pytest.mark.parametrize(("cause", "severity"), [("ttl, dropped", Severity.PROBLEM), ("ttl, buried", Severity.WARNING)])
def test_d23_messages_expire_and_those_that_are_lost_are_a_problem(cause: str, severity: Severity) -> None:
    finding = only(about(channel(channel_node(clients=(client(ready_count=5),)), policy_recent=((cause, 1),))))
    assert (finding.rule, finding.severity) == ("D23", severity)
    assert finding.verdict == "Messages expire: 1 message waited for too long in the last 5 min"
    assert said(finding)[cause] == "1"


@pytest.mark.parametrize("cause", ["ttl, dry run", "overflow, dry run", "max_messages, dry run", "buried"])
def test_what_is_tried_or_buried_is_no_finding(cause: str) -> None:
    assert about(channel(policy_counts=((cause, 9),), policy_recent=((cause, 9),))) == []
    assert of_topic(policy_counts=((cause, 9),), policy_recent=((cause, 9),)) == []


@pytest.mark.parametrize("cause", ["ttl, buried", "overflow, buried", "overflow, dropped"])
def test_a_queue_without_consumers_is_not_well_because_a_policy_empties_it(cause: str) -> None:
    findings = about(channel(policy_recent=((cause, 9),)))
    assert ("D3", Severity.PROBLEM) in {(it.rule, it.severity) for it in findings}


def test_what_is_over_is_no_finding() -> None:
    assert about(channel(policy_counts=(("overflow, dropped", 4000), ("ttl, dropped", 3)))) == []


def test_what_was_lost_stays_found_while_the_node_is_silent() -> None:
    row = channel_node(clients=(client(),))
    shown = snapshot(topic(channel(row, policy_recent=(("overflow, dropped", 1),))))
    upkeep = Upkeep()
    diagnose(shown, QUIET, upkeep)
    silent = snapshot(topic(channel(row, silent=("n1:4151",)), silent=("n1:4151",)), silent=(silent_node(),))
    (finding, *_) = diagnose(silent, QUIET, upkeep)
    assert (finding.rule, finding.is_frozen) == ("D22", True)


def silent_node() -> Any:
    from nsqadmin.cluster.model import Silent

    return Silent(node="n1:4151", since=NOW, answered_at=NOW)


# What goes soon


def test_d24_an_empty_channel_goes_tomorrow() -> None:
    finding = only(about(channel(channel_node(expires_at=NOW + 20 * HOUR))))
    assert (finding.rule, finding.severity) == ("D24", Severity.INFO)
    assert finding.verdict == "It is deleted in 20h unless a consumer connects"
    assert said(finding) == {"messages in it": "0", "deleted on": "n1:4151 in 20h"}


def test_d24_with_messages_it_is_a_warning() -> None:
    findings = about(channel(channel_node(depth=5, expires_at=NOW + HOUR), channel_node("n2:4151")))
    (finding,) = [it for it in findings if it.rule == "D24"]
    assert finding.severity is Severity.WARNING
    assert finding.verdict.startswith("It is deleted on n1:4151 in 1h")


def test_d24_a_topic_goes_with_everything() -> None:
    rows = (TopicNode(node="n1:4151", expires_at=NOW + HOUR),)
    (finding,) = found(snapshot(topic(nodes=rows)))
    assert (finding.rule, finding.topic, finding.channel) == ("D24", "t", "")
    assert "unless someone publishes or subscribes" in finding.verdict


def test_what_goes_next_week_is_no_finding() -> None:
    assert about(channel(channel_node(expires_at=NOW + 7 * DAY))) == []


# Nodes


def nodes(*digests: str | None, **fields: Any) -> Snapshot:
    return snapshot(
        nodes=tuple(node(f"n{at}:4151", policy_digest=digest, **fields) for at, digest in enumerate(digests, 1))
    )


A, B = "a" * 64, "b" * 64


def test_d25_a_node_refuses_its_file_and_quotes_nothing_of_it() -> None:
    finding = only(found(nodes(A, policy_error="line 3: secret_topic: unknown key")))
    assert (finding.rule, finding.severity, finding.node) == ("D25", Severity.WARNING, "n1:4151")
    assert said(finding) == {"in force": "a" * 12}
    assert "secret" not in f"{finding}"


def test_d25_a_node_has_started_with_a_copy_of_its_file() -> None:
    finding = only(found(nodes(A, policy_error="line 3: secret_topic: unknown key", policy_is_copy=True)))
    assert (finding.rule, finding.severity, finding.node) == ("D25", Severity.WARNING, "n1:4151")
    assert finding.verdict == "n1:4151 has started with a copy of its policy file, because the file is broken"
    assert "secret" not in f"{finding}"


def test_d26_one_node_has_another_file() -> None:
    finding = only(found(nodes(A, B, A)))
    assert (finding.rule, finding.severity, finding.node) == ("D26", Severity.WARNING, "n2:4151")
    assert finding.verdict == "n2:4151 has another policy file than n1:4151, n3:4151"
    assert said(finding) == {"a" * 12: "n1:4151, n3:4151", "b" * 12: "n2:4151"}


def test_d26_one_node_has_none() -> None:
    finding = only(found(nodes("", A)))
    assert finding.verdict == "n1:4151 has no policy file, unlike n2:4151"
    assert said(finding) == {"no policy file": "n1:4151", "a" * 12: "n2:4151"}


@pytest.mark.parametrize("digests", [(A, A), ("", ""), (A, None), ("", None, ""), (None, None), (A,)])
def test_a_node_that_tells_nothing_differs_from_nobody(digests: tuple[str | None, ...]) -> None:
    assert found(nodes(*digests)) == []


def test_a_silent_node_does_not_differ_and_is_named_as_last_seen() -> None:
    last = node("n3:4151", policy_digest=B, health=Health.DOWN, answered_at=NOW - 60)
    assert {it.rule for it in found(snapshot(nodes=(*nodes(A, A).nodes, last)))} == {"D16"}
    findings = found(snapshot(nodes=(*nodes(A, "").nodes, last)))
    (finding,) = [it for it in findings if it.rule == "D26"]
    assert said(finding)[f"{'b' * 12}, when last seen"] == "n3:4151"


def test_many_nodes_are_not_all_listed() -> None:
    finding = only(found(nodes(*[A] * 20, B)))
    assert finding.verdict.endswith("n5:4151 and 15 more")


def test_all_that_differ_are_found_with_the_same_evidence() -> None:
    findings = found(nodes(*[A, B, A] * 100))
    assert len(findings) == 100
    assert len({id(it.evidence) for it in findings}) == 1
