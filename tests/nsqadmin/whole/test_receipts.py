from __future__ import annotations

import pytest

from nsqadmin.actions.plan import Action, Kind, Receipt, Step, plan
from nsqadmin.cluster.model import TopicNode
from nsqadmin.pages.receipt import in_words
from tests.support import picture

NODES = ("n1:4151", "n2:4151")
CLUSTER = picture.snapshot(
    picture.topic(
        picture.channel(*(picture.channel_node(node, depth=2) for node in NODES)),
        nodes=tuple(TopicNode(node=node) for node in NODES),
    ),
    nodes=tuple(map(picture.node, NODES)),
)


@pytest.mark.parametrize(
    ("kind", "nodes", "said"),
    [
        (Kind.EMPTY_CHANNEL, NODES, "Empty channel t/c (4 messages on 2 nodes): done on 2 of 2 nodes."),
        (Kind.EMPTY_CHANNEL, (), "Empty channel t/c (4 messages on 2 nodes): done on 2 of 2 nodes."),
        (Kind.PAUSE_CHANNEL, NODES, "Pause channel t/c: done on 2 of 2 nodes."),
    ],
)
def test_the_summary_has_the_whole_title(kind: Kind, nodes: tuple[str, ...], said: str) -> None:
    action = Action(kind=kind, topic="t", channel="c", nodes=nodes)
    steps = tuple(Step(address=node, is_lookupd=False, target="/") for node in NODES)
    assert in_words(plan(CLUSTER, action), Receipt(action=action, at=1.0, took=0.1, steps=steps)) == said


def test_the_summary_tells_silence_from_refusal() -> None:
    action = Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="c")
    steps = (
        Step(address="n1:4151", is_lookupd=False, target="/", error="timeout", may_follow=True),
        Step(address="n2:4151", is_lookupd=False, target="/", error="refused"),
    )
    said = in_words(plan(CLUSTER, action), Receipt(action=action, at=1.0, took=0.1, steps=steps))
    assert said == "Pause channel t/c: done on 0 of 2 nodes, asked, no answer: n1:4151, failed on n2:4151."
