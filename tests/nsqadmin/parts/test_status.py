"""A state is the worst of a thing and its parts, and several states are several words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqadmin.cluster.model import Finding, Health, Severity, Snapshot
from nsqadmin.parts.status import NodeStates, Standing, State
from tests.support.picture import channel, channel_node, node, snapshot, topic

PROBLEM, WARNING, INFO = Severity.PROBLEM, Severity.WARNING, Severity.INFO


def finding(rule: str, severity: Severity = PROBLEM, **about: object) -> Finding:
    return Finding(rule=rule, severity=severity, verdict="v", advice="a", **about)  # type: ignore[arg-type]


def words(state: State) -> list[str]:
    return [state.word, *(it.word for it in state.also)]


def test_a_paused_channel_whose_consumers_fail_is_both() -> None:
    paused = channel(channel_node(depth=5, paused=True))
    standing = Standing((finding("D1", WARNING, topic="t", channel="c"), finding("D8", topic="t", channel="c")))
    assert words(standing.channel(paused)) == ["Problem", "Paused"]
    assert standing.channel(paused).kinds == {"problem", "warning"}
    assert words(Standing((finding("D1", WARNING, topic="t", channel="c"),)).channel(paused)) == ["Paused"]
    itself = channel(channel_node(paused=True, paused_why="breaker"))
    assert words(Standing((finding("D20", topic="t", channel="c"),)).channel(itself)) == ["Paused itself"]


def test_a_topic_is_as_bad_as_its_worst_channel() -> None:
    whole = topic(channel(name="a"), channel(name="b"), channel(name="c"))
    findings = (
        finding("D24", WARNING, topic="t"),
        finding("D3", topic="t", channel="a"),
        finding("D9", WARNING, topic="t", channel="b"),
        finding("D10", INFO, topic="t", channel="c"),
    )
    assert words(Standing(findings).whole_topic(whole)) == ["1 problem", "1 warning", "Warning"]
    assert words(Standing(findings[:1]).whole_topic(whole)) == ["Warning"]
    assert words(Standing(()).whole_topic(whole)) == ["OK"]


def test_what_is_unknown_is_not_fine() -> None:
    part = channel(channel_node(), channel_node("n2:4151"), silent=("n2:4151",))
    assert words(Standing(()).channel(part)) == ["Partly unknown"]
    assert words(Standing(()).whole_topic(topic(part, silent=("n2:4151",)))) == ["Unknown"]
    assert words(Standing((finding("D3", topic="t", channel="c"),)).channel(part)) == ["Problem"]


@pytest.fixture
def cluster() -> Snapshot:
    """Return a cluster in which one channel has a stuck consumer on n1, no consumer on n2, and loses messages on n3."""
    rows = (
        channel_node("n1:4151", depth=5, in_flight_count=1, client_count=1),
        channel_node("n2:4151", depth=5),
        channel_node("n3:4151", client_count=1, policy_recent=(("overflow, dropped", 3),)),
        channel_node("n4:4151", client_count=1),
    )
    nodes = (
        node("n1:4151"),
        node("n2:4151", health=Health.SLOW),
        node("n3:4151", draining=True),
        node("n4:4151"),
    )
    findings = (
        finding("D4", topic="t", channel="c"),
        finding("D22", topic="t", channel="c"),
        finding("D16", INFO, node="n3:4151", facet="draining"),
        finding("D26", WARNING, node="n4:4151"),
    )
    return snapshot(topic(channel(*rows)), nodes=nodes, findings=findings)


def test_a_node_is_as_bad_as_its_share_of_channels(cluster: Snapshot) -> None:
    nodes = NodeStates(cluster, Standing(cluster.findings))
    assert [words(nodes.whole(it.address)) for it in cluster.nodes] == [
        ["OK"],
        ["1 problem", "Slow"],
        ["1 problem", "Draining"],
        ["Warning"],
    ]
    assert words(nodes.own("n3:4151")) == ["Draining"]
    assert words(nodes.own("elsewhere:1")) == ["Unknown"]


def test_a_channel_on_a_node_has_the_state_of_that_share(cluster: Snapshot) -> None:
    standing, it = Standing(cluster.findings), cluster.topics[0].channels[0]
    assert [standing.share(it, row).word for row in it.nodes] == ["OK", "Problem", "Problem", "OK"]


def test_a_finding_that_no_share_explains_is_about_all_of_them() -> None:
    it = channel(channel_node("n1:4151"), channel_node("n2:4151"))
    standing = Standing((finding("D8", topic="t", channel="c"),))
    assert [standing.share(it, row).word for row in it.nodes] == ["Problem", "Problem"]


def test_consumers_that_are_stuck_on_one_node_say_nothing_about_the_others() -> None:
    it = channel(channel_node("n1:4151", depth=50), channel_node("n2:4151", depth=7))
    standing = Standing((replace(finding("D7", topic="t", channel="c"), others=("n1:4151",)),))
    assert [standing.share(it, row).word for row in it.nodes] == ["Problem", "OK"]
