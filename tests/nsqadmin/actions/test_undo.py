"""What an undo keeps, until when it promises everything, and what it says it has given back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqadmin.actions.plan import Action, Kind, plan
from nsqadmin.actions.undo import Undone, Undos, UndoState, read_state, read_undone, result_of, words_undone
from nsqadmin.cluster.model import TopicNode
from tests.support import picture

EMPTY = Action(kind=Kind.EMPTY_CHANNEL, topic="t", channel="c")


def a_document(**retention: Any) -> bytes:
    return json.dumps({"count": 140, "retention": {"kept": True, "time": 3600, "bytes": 0, **retention}}).encode()


def a_state(node: str = "n1:4151", size: int = 10, **fields: Any) -> UndoState:
    return UndoState(node=node, document=b"x" * size, **fields)


@pytest.mark.parametrize(
    ("retention", "oldest_at", "complete_until", "kept_until"),
    [
        ({}, 900.0, 4500.0, 4600.0),
        ({}, None, None, 4600.0),
        ({"bytes": 1}, 900.0, None, None),
        ({"kept": False, "time": 0}, 900.0, None, None),
        ({"time": 1e300}, 900.0, None, None),
        ({}, 1e300, 4600.0, 4600.0),
    ],
)
def test_retention_by_time_alone_says_until_when(
    retention: dict[str, Any], oldest_at: float | None, complete_until: float | None, kept_until: float | None
) -> None:
    state = read_state("n1:4151", a_document(**retention), at=1000.0, oldest_at=oldest_at)
    assert (state.count, state.complete_until, state.kept_until) == (140, complete_until, kept_until)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"count":"1","retention":{"kept":true,"time":1,"bytes":0}}',
        b'{"count":-1,"retention":{"kept":true,"time":1,"bytes":0}}',
        b'{"count":1' + b"0" * 30 + b',"retention":{"kept":true,"time":1,"bytes":0},"restored":-1,"gone":0}',
        b'{"count":1,"retention":{"kept":true,"time":NaN,"bytes":0}}',
        b'{"count":1,"retention":{"kept":true,"time":1' + b"0" * 400 + b',"bytes":0}}',
        b'{"count":1,"retention":{"kept":true,"time":1,"bytes":0}}' + b" " * (1 << 20),
    ],
)
def test_a_node_may_answer_anything(answer: bytes) -> None:
    state = read_state("n1:4151", answer, at=1.0, oldest_at=None)
    assert state.document == b""
    assert "description of the channel cannot be" in state.why_not
    if not answer.endswith(b" "):
        assert read_undone(a_state(), answer).error == "its answer cannot be read"


def test_the_oldest_records_go_when_there_are_too_many_bytes() -> None:
    undos = Undos(most=25)
    first, second, third = (undos.add(EMPTY, [a_state(size=10)]) for _ in range(3))
    assert undos.find(first) is None
    assert undos.find(second) is not None
    assert undos.find(third) is not None
    assert undos.add(EMPTY, [a_state(size=26)]) == "", "it would push out everything and not fit"
    assert undos.find(third) is not None


def test_without_a_state_of_any_node_there_is_nothing_to_keep() -> None:
    assert Undos().add(EMPTY, []) == ""
    assert Undos().add(EMPTY, [UndoState(node="n1:4151", why_not="it keeps no history")]) == ""


def test_a_record_promises_what_all_of_its_nodes_promise_and_is_offered_while_one_does() -> None:
    undos = Undos()
    states = [a_state(complete_until=50.0, kept_until=100.0), a_state("n2:4151", complete_until=60.0, kept_until=200.0)]
    record = undos.find(undos.add(EMPTY, states))
    assert record is not None
    assert record.complete_until == 50.0
    assert [record.is_offered(now) for now in (99.0, 150.0, 200.0)] == [True, True, False]
    record.done.add("n2:4151")
    assert not record.is_offered(150.0)
    unknown = undos.find(undos.add(EMPTY, [*states, a_state("n3:4151")]))
    assert unknown is not None
    assert unknown.complete_until is None


def test_the_words_count_what_is_back_and_what_is_gone() -> None:
    undos = Undos()
    record = undos.find(undos.add(EMPTY, [a_state()]))
    assert record is not None
    back = Undone(node="n1:4151", count=140, restored=140)
    gone = Undone(node="n2:4151", count=140, restored=128, gone=12)
    silent = Undone(node="n3:4151", count=140, error="does not answer: nothing could be undone there", can_retry=True)
    assert back.text == "140 of 140 are back"
    assert gone.text == "128 of 140 are back; 12 are gone: history no longer has them"
    assert words_undone(record, [back]) == "undid: emptied t/c, 140 messages back"
    assert words_undone(record, [gone, silent]) == "undid: emptied t/c, 128 messages back, 12 gone; failed on n3:4151"
    assert [result_of(rows) for rows in ([back], [back, gone], [back, silent], [silent])] == [
        "ok",
        "partly",
        "partly",
        "failed",
    ]


def consequences(action: Action, *having: str) -> str:
    """Return what the dialog says about two nodes, of which those in `having` keep history."""
    nodes = tuple(picture.node(name, has_history=name in having) for name in ("n1:4151", "n2:4151"))
    rows = tuple(TopicNode(node=node.address, has_log=node.has_history) for node in nodes)
    channel = picture.channel(
        *(picture.channel_node(node.address, depth=5) for node in nodes), name=action.channel or "c"
    )
    snapshot = picture.snapshot(picture.topic(channel, nodes=rows), nodes=nodes)
    return " ".join(it.text for it in plan(snapshot, action).consequences)


def test_a_dialog_calls_final_only_what_is_final() -> None:
    both = ("n1:4151", "n2:4151")
    can, cannot = "Can be undone for as long as the nodes keep the messages.", "cannot be undone"
    assert can in consequences(EMPTY, *both)
    assert cannot not in consequences(EMPTY, *both)
    assert "It cannot be undone on n2:4151, which keeps no history." in consequences(EMPTY, "n1:4151")
    assert "This cannot be undone." in consequences(EMPTY)
    assert can not in consequences(EMPTY)
    topic = Action(kind=Kind.DELETE_TOPIC, topic="t")
    assert "This cannot be undone." in consequences(topic, *both)
    ephemeral = Action(kind=Kind.EMPTY_CHANNEL, topic="t", channel="c#ephemeral")
    assert "This cannot be undone." in consequences(ephemeral, *both)
    move = Action(kind=Kind.SEEK_CHANNEL, topic="t", channel="c", place="latest")
    assert cannot not in consequences(move, "n1:4151"), "without history it does not move"
