"""What is left of the picture of the cluster for a user who does not see all topics."""

from __future__ import annotations

from nsqadmin.cluster.model import Activity, Evidence, Finding, Health, Lookupd, Producer, Severity, Unanswered
from nsqadmin.cluster.view import seen_by
from tests.support.picture import node, snapshot, topic, viewer


def producer(name: str, *topics: str) -> Producer:
    counts = tuple((it, 10, 1.0) for it in topics)
    return Producer(node="n1:4151", client_id=name, hostname=name, remote_address="r:1", counts=counts)


def test_a_producer_is_seen_by_what_it_publishes_to_topics_that_are_seen() -> None:
    picture = snapshot(
        topic(name="open"),
        topic(name="hidden"),
        producers=(producer("both", "open", "hidden"), producer("secret", "hidden")),
    )
    seen = seen_by(picture, viewer("open"))
    assert [it.name for it in seen.topics] == ["open"]
    assert seen.topic("hidden") is None
    assert seen.producers == (producer("both", "open"),)


def test_who_sees_all_topics_sees_the_picture_itself() -> None:
    picture = snapshot(topic(name="open"))
    assert seen_by(picture, viewer("*")) is picture


def test_what_nsqlookupds_and_nodes_list_is_left_out_if_it_is_hidden() -> None:
    picture = snapshot(
        topic(name="open"),
        nodes=(node(tombstones=("open", "hidden")),),
        lookupds=(Lookupd(address="l1:4161", topics=("hidden", "open")),),
    )
    seen = seen_by(picture, viewer("open"))
    assert [it.topics for it in seen.lookupds] == [("open",)]
    assert [it.tombstones for it in seen.nodes] == [("open",)]


def test_who_reads_of_an_action_sees_all_topics_that_it_names() -> None:
    entry = Activity(at=0.0, what="replay", text="replayed 1 of hidden to open", topic="open", also=("hidden",))
    assert [entry.is_for(viewer(*it).sees) for it in (("open",), ("hidden",), ("open", "hidden"), ("*",))] == [
        False,
        False,
        True,
        True,
    ]
    assert Activity(at=0.0, what="node_down", text="n1 is down").is_for(viewer("open").sees)


def test_who_does_not_see_all_topics_reads_no_words_of_nodes_which_may_name_any() -> None:
    said = "topic hidden: disk full"
    finding = Finding(
        rule="D16",
        severity=Severity.PROBLEM,
        verdict="n1 is not well",
        advice="",
        node="n1:4151",
        evidence=(Evidence(label="it says", value=said), Evidence(label="version", value="1.3.0")),
    )
    picture = snapshot(
        topic(name="open"),
        nodes=(node(error=said, own_health=said, policy_error=said, unreachable=(said,)),),
        lookupds=(Lookupd(address="l1:4161", error=said, health=Health.DOWN),),
        findings=(finding,),
        unanswered=(Unanswered(what="n1 does not answer", where="n1:4151", advice="", raw=said),),
    )
    seen = seen_by(picture, viewer("open"))
    assert "hidden" not in repr(seen)
    assert [it.label for it in seen.findings[0].evidence] == ["version"]
    assert "hidden" in repr(seen_by(picture, viewer("*")))
