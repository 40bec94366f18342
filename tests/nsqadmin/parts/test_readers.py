"""The readers on the page of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.model import Reader, ReaderNode, Topic, Untold
from nsqadmin.http.live_cells import cells_of
from nsqadmin.parts.readers import landing
from nsqadmin.parts.status import State
from tests.support.picture import NOW, channel, snapshot, topic


def row(node: str = "n1:4151", **fields: Any) -> ReaderNode:
    known = {"as_of": NOW, "heard": NOW, "committed": NOW, "retention_time": 3600.0}
    return ReaderNode(node=node, **{**known, **fields})


def read_by(*rows: ReaderNode) -> Topic:
    return topic(channel(), readers=(Reader(name="land", into="/t", nodes=rows),))


def state(*rows: ReaderNode) -> State:
    lines = landing(read_by(*rows)).lines
    assert lines is not None
    return lines[0].state


def test_not_asked_is_not_the_same_as_nobody() -> None:
    assert landing(topic()).lines is None
    assert landing(topic(readers=())).lines == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, State("Up to date", "ok")),
        ({"behind": 9, "behind_time": 1.0, "rate": 9.0}, State("Keeps up", "ok")),
        ({"behind": 9, "behind_time": 600.0, "rate": 0.0}, State("Overtakes it in 50m", "info")),
        ({"behind": 9, "behind_time": 3000.0, "rate": 0.0}, State("Overtakes it in 10m", "warning")),
        ({"behind": 9, "behind_time": 3600.0, "rate": 0.0}, State("Overtakes it at any moment", "warning")),
        ({"behind": 9, "behind_time": 5.0, "retention_time": 0.0}, State("Off: nothing is kept for it", "warning")),
        ({"behind": 9}, State("Not known", "muted")),
        ({"missed": 1204}, State("1,204 messages lost", "problem")),
        ({"reason": "it is down"}, State("Not known now", "muted")),
    ],
)
def test_whether_retention_overtakes_it_is_said_in_words(fields: dict[str, Any], said: State) -> None:
    assert state(row(**fields)) == said


def test_a_reader_is_as_bad_off_as_on_its_worst_node() -> None:
    assert state(row(), row("n2:4151", missed=5), row("n3:4151", missed=6)).word == "11 messages lost"


def test_who_was_heard_of_by_any_node_is_not_silent() -> None:
    (line,) = landing(read_by(row(heard=NOW - 900), row("n2:4151"))).lines or ()
    assert not line.is_silent
    assert [it.is_silent for it in line.lines] == [True, False]


def test_nodes_that_tell_nothing_are_shown() -> None:
    untold = (Untold(node="n2:4151", reason="it is down"),)
    assert landing(topic(readers=(), readers_untold=untold)).untold == untold


def test_numbers_of_readers_are_live() -> None:
    cells = cells_of(snapshot(read_by(row(behind=9, behind_time=12.4), row("n2:4151"))), "topic:t")
    assert cells["topics/t/readers"] == 1
    assert cells["topics/t/reader/land//t/behind"] == 9
    assert cells["topics/t/reader/land//t/behind_time"] == 12
    assert cells["topics/t/reader/land//t@n2:4151/behind_time"] == 0
    assert cells_of(snapshot(topic()), "topic:t")["topics/t/readers"] is None
