"""What an action asks of which node, and what the user sees before confirming it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsqadmin.access import Right
from nsqadmin.actions.plan import Action, BadAction, Danger, Kind, Receipt, Step, lookupd_calls, node_calls, plan
from nsqadmin.actions.taking_back import is_light, opposite
from nsqadmin.cluster.model import Activity, Health, Producer, Severity, Snapshot, Topic, TopicNode
from tests.support import picture

TWO = (TopicNode(node="n1:4151", depth=5), TopicNode(node="n2:4151"))
NODES = (picture.node("n1:4151"), picture.node("n2:4151"))


def a_cluster(**row: Any) -> Snapshot:
    rows = (picture.channel_node("n1:4151", **row), picture.channel_node("n2:4151"))
    return picture.snapshot(picture.topic(picture.channel(*rows), nodes=TWO), nodes=NODES)


def targets(action: Action, nodes: tuple[str, ...] = ("n1:1", "n2:1")) -> list[str]:
    calls = (*lookupd_calls(action, ("l1:1", "l2:1")), *node_calls(action, nodes))
    return [f"{call.address}{call.target}" for call in calls]


def test_a_channel_is_made_in_the_directory_topic_first_and_then_on_the_nodes() -> None:
    assert targets(Action(kind=Kind.CREATE_CHANNEL, topic="t", channel="c#ephemeral")) == [
        "l1:1/topic/create?topic=t",
        "l2:1/topic/create?topic=t",
        "l1:1/channel/create?topic=t&channel=c%23ephemeral",
        "l2:1/channel/create?topic=t&channel=c%23ephemeral",
        "n1:1/channel/create?topic=t&channel=c%23ephemeral",
        "n2:1/channel/create?topic=t&channel=c%23ephemeral",
    ]


def test_a_pause_is_no_matter_of_the_directory() -> None:
    assert targets(Action(kind=Kind.PAUSE_TOPIC, topic="t")) == ["n1:1/topic/pause?topic=t", "n2:1/topic/pause?topic=t"]


def test_removing_from_a_node_is_a_tombstone_and_a_deletion_there() -> None:
    action = Action(kind=Kind.REMOVE_FROM_NODE, topic="t", nodes=("n1:1",))
    assert targets(action, ("n1:1",)) == [
        "l1:1/topic/tombstone?topic=t&node=n1%3A1",
        "l2:1/topic/tombstone?topic=t&node=n1%3A1",
        "n1:1/topic/delete?topic=t",
    ]


def test_emptying_names_what_is_lost_and_wants_the_name_typed() -> None:
    cluster = a_cluster(depth=65_000, in_flight_count=190)
    made = plan(cluster, Action(kind=Kind.EMPTY_CHANNEL, topic="t", channel="c"))
    assert made.title == "Empty channel t/c (65,190 messages on 2 nodes)"
    assert made.danger is Danger.LOSES_MESSAGES
    assert made.must_type == "c"
    assert made.consequences[0].severity is Severity.PROBLEM


def test_emptying_needs_the_right_to_delete_as_it_loses_as_much() -> None:
    emptying, deleting = (
        Action(kind=kind, topic="t", channel="c") for kind in (Kind.EMPTY_CHANNEL, Kind.DELETE_CHANNEL)
    )
    assert emptying.right is deleting.right is Right.ADMIN
    assert Action(kind=Kind.EMPTY_TOPIC, topic="t").right is Right.ADMIN
    assert Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="c").right is Right.OPERATE


def test_a_few_messages_need_no_typing() -> None:
    made = plan(a_cluster(depth=3), Action(kind=Kind.EMPTY_CHANNEL, topic="t", channel="c"))
    assert not made.must_type


def test_a_pause_on_one_node_asks_that_node_only() -> None:
    made = plan(a_cluster(), Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="c", nodes=("n2:4151",)))
    assert [call.address for call in made.calls] == ["n2:4151"]
    assert made.title == "Pause channel t/c on n2:4151"


def test_a_node_that_is_down_is_named_before() -> None:
    nodes = (picture.node("n1:4151"), picture.node("n2:4151", health=Health.DOWN))
    cluster = picture.snapshot(picture.topic(picture.channel(), nodes=TWO), nodes=nodes)
    made = plan(cluster, Action(kind=Kind.PAUSE_TOPIC, topic="t"))
    assert made.unreachable == ("n2:4151",)
    (text,) = [it.text for it in made.consequences if "n2:4151" in it.text]
    assert text == ("n2:4151 does not answer. It is asked anyway: if it only hangs, it may still do this later.")
    rows = (picture.channel_node("n1:4151"), picture.channel_node("n2:4151"))
    cluster = picture.snapshot(picture.topic(picture.channel(*rows), nodes=TWO), nodes=nodes)
    moved = plan(cluster, Action(kind=Kind.SEEK_CHANNEL, topic="t", channel="c", place="latest"))
    assert any("It is skipped, unless it reports the state that an undo needs" in it.text for it in moved.consequences)


def test_deleting_a_topic_that_is_published_to_says_who_makes_it_again() -> None:
    producer = Producer(
        node="n1:4151", client_id="p", hostname="shop-1", remote_address="10.0.0.9:1", counts=(("t", 10, 1.0),)
    )
    cluster = picture.snapshot(
        picture.topic(picture.channel(picture.channel_node(clients=(picture.client(),))), nodes=TWO),
        nodes=NODES,
        producers=(producer,),
    )
    texts = [it.text for it in plan(cluster, Action(kind=Kind.DELETE_TOPIC, topic="t")).consequences]
    assert any("shop-1" in text for text in texts)
    assert any("1 consumer will be disconnected" in text for text in texts)
    assert any("channels are deleted with it: c" in text for text in texts)


def test_a_topic_of_which_only_the_name_is_registered_is_said_to_be() -> None:
    made = plan(picture.snapshot(), Action(kind=Kind.CREATE_TOPIC, topic="new"))
    assert [call.address for call in made.calls] == ["l1:4161"]
    assert "Only the name is registered" in made.consequences[0].text
    on_a_node = plan(picture.snapshot(), Action(kind=Kind.CREATE_TOPIC, topic="new", nodes=("n1:4151",)))
    assert [call.url for call in on_a_node.calls] == [
        "http://l1:4161/topic/create?topic=new",
        "http://n1:4151/topic/create?topic=new",
    ]


def test_channel_that_only_the_directory_knows_is_deleted_there() -> None:
    inactive = Topic(name="t", lookupds=("l1:4161",), registered_channels=("c",))
    made = plan(picture.snapshot(inactive), Action(kind=Kind.DELETE_CHANNEL, topic="t", channel="c"))
    assert [call.url for call in made.calls] == ["http://l1:4161/channel/delete?topic=t&channel=c"]
    assert made.consequences[-1].text == "No node has it: only the directory changes."
    assert made.is_of_directory
    with pytest.raises(BadAction, match="CHANNEL_NOT_FOUND"):
        plan(picture.snapshot(inactive), Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="c"))
    with pytest.raises(BadAction, match="CHANNEL_NOT_FOUND"):  # which leaves the directory alone
        plan(picture.snapshot(inactive), Action(kind=Kind.DELETE_CHANNEL, topic="t", channel="c", nodes=("n1:4151",)))


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (Action(kind=Kind.CREATE_TOPIC, topic="a b"), "INVALID_TOPIC"),
        (Action(kind=Kind.CREATE_CHANNEL, topic="a", channel="b b"), "INVALID_CHANNEL"),
        (Action(kind=Kind.PAUSE_CHANNEL, topic="t"), "INVALID_CHANNEL"),
        (Action(kind=Kind.PAUSE_TOPIC, topic="gone"), "TOPIC_NOT_FOUND"),
        (Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="gone"), "CHANNEL_NOT_FOUND"),
        (Action(kind=Kind.REMOVE_FROM_NODE, topic="t"), "INVALID_NODE"),
        (Action(kind=Kind.SEEK_CHANNEL, topic="t", channel="c"), "INVALID_PLACE"),
        (Action(kind=Kind.FORGET_READER, topic="t"), "INVALID_READER"),
    ],
)
def test_what_makes_no_sense_is_refused(action: Action, code: str) -> None:
    with pytest.raises(BadAction, match=code):
        plan(a_cluster(), action)


def test_a_reader_is_forgotten_where_it_is_known_and_nowhere_else() -> None:
    action = Action(kind=Kind.FORGET_READER, topic="t", nodes=("n1:4151",), reader="nsqpipe land", into="s3://a/b")
    made = plan(a_cluster(), action)
    assert made.title == "Forget that nsqpipe land reads t on n1:4151"
    on_many = plan(a_cluster(), replace(action, nodes=("n1:4151", "n2:4151", "n3:4151")))
    assert on_many.title == "Forget that nsqpipe land reads t on 3 nodes"
    assert [call.target for call in made.calls] == [
        "/topic/reader/delete?topic=t&name=nsqpipe+land&into=s3%3A%2F%2Fa%2Fb"
    ]
    assert "s3://a/b stay" in made.consequences[0].text
    assert not made.must_type


def test_a_receipt_offers_to_do_again_what_failed() -> None:
    action = Action(kind=Kind.PAUSE_TOPIC, topic="t")
    steps = (
        Step(address="n1:1", is_lookupd=False, target="/"),
        Step(address="n2:1", is_lookupd=False, target="/", error="refused"),
    )
    receipt = Receipt(action=action, at=0.0, took=0.1, steps=steps)
    assert receipt.result == "partly"
    assert receipt.retry == Action(kind=Kind.PAUSE_TOPIC, topic="t", nodes=("n2:1",))


@pytest.mark.parametrize(
    ("kind", "other"), [(Kind.PAUSE_CHANNEL, Kind.UNPAUSE_CHANNEL), (Kind.UNPAUSE_CHANNEL, Kind.PAUSE_CHANNEL)]
)
def test_undo_of_a_pause_leaves_alone_what_was_so_before_or_failed(kind: Kind, other: Kind) -> None:
    before = kind is Kind.PAUSE_CHANNEL
    rows = [picture.channel_node(f"n{number}:1", paused=before if number == 1 else not before) for number in (1, 2, 3)]
    cluster = picture.snapshot(picture.topic(picture.channel(*rows)))
    steps = tuple(
        Step(address=row.node, is_lookupd=False, target="/", error="refused" if row.node == "n3:1" else "")
        for row in rows
    )
    receipt = Receipt(action=Action(kind=kind, topic="t", channel="c"), at=0.0, took=0.1, steps=steps)
    assert opposite(cluster, receipt) == Action(kind=other, topic="t", channel="c", nodes=("n2:1",))


def test_undo_knows_what_was_done_since_the_nodes_were_asked() -> None:
    """Who presses Undo twice may be faster than the next snapshot."""

    def done(kind: Kind, at: float) -> Activity:
        return Activity(
            at=at, took=0.1, what=kind, text="", topic="t", channel="c", nodes=("n1:4151", "n2:4151"), result="ok"
        )

    nodes = (
        picture.node("n1:4151", answered_at=10.0, answered_in=0.1),
        picture.node("n2:4151", answered_at=10.0, answered_in=0.5),  # asked while it was being unpaused
    )
    rows = [picture.channel_node(node.address, paused=True) for node in nodes]
    cluster = picture.snapshot(picture.topic(picture.channel(*rows)), nodes=nodes)
    steps = tuple(Step(address=row.node, is_lookupd=False, target="/") for row in rows)
    receipt = Receipt(action=Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="c"), at=20.0, took=0.1, steps=steps)
    back = Action(kind=Kind.UNPAUSE_CHANNEL, topic="t", channel="c")
    itself = done(Kind.PAUSE_CHANNEL, 20.0)
    early, late = done(Kind.UNPAUSE_CHANNEL, 9.45), done(Kind.UNPAUSE_CHANNEL, 15.0)
    assert opposite(cluster, receipt, [itself]) is None
    assert opposite(cluster, receipt, [itself, early]) == replace(back, nodes=("n2:4151",))
    assert opposite(cluster, receipt, [itself, late]) == replace(back, nodes=("n1:4151", "n2:4151"))
    assert opposite(cluster, receipt, [itself, done(Kind.PAUSE_CHANNEL, 16.0), late]) is None
    assert opposite(cluster, receipt, [itself, replace(late, channel="other")]) is None
    for result in ("refused", "failed"):
        assert opposite(cluster, receipt, [itself, replace(late, result=result)]) is None, result


def test_only_a_pause_that_drops_nothing_needs_no_confirmation() -> None:
    assert is_light(Kind.PAUSE_TOPIC, "t")
    assert is_light(Kind.UNPAUSE_CHANNEL, "t", "c#ephemeral")
    assert not is_light(Kind.PAUSE_CHANNEL, "t", "c#ephemeral")
    assert not is_light(Kind.EMPTY_CHANNEL, "t", "c")
