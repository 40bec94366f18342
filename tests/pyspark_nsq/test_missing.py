"""Known nodes that do not answer: they are named, and never count as having nothing to read."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import NsqError, Refused
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane, Offsets
from pyspark_nsq.missing import Departed, Presence, Seen, check, in_one_line, presence, waited_for
from pyspark_nsq.options import Access, source_options

A, B = Lane("a", "orders", "log"), Lane("b", "orders", "log")
DOWN = {"b:1": "b:1 cannot be reached"}
READ = Offsets({A: 5, B: 5}, closed={B: 5})
UNREAD = Offsets({A: 5, B: 4}, closed={B: 5})


def gone(*, has_drained: bool, is_retired: bool = False) -> Departed:
    return Departed("b:1", "b", ("orders",), has_drained, is_retired)


@pytest.mark.parametrize(
    ("seen", "offsets", "missing"),
    [
        (Seen(registered={"a:1"}, lanes={"a:1": [A]}), Offsets({A: 5}), {}),
        (Seen(registered={"a:1", "b:1"}, silent=DOWN), Offsets({}), {"b:1"}),
        (Seen(registered={"a:1"}, departed=[gone(has_drained=False)], silent=DOWN), Offsets({}), {"b:1"}),
        (Seen(registered={"a:1"}, departed=[gone(has_drained=False)]), Offsets({}), set()),  # it answers
        (Seen(departed=[gone(has_drained=True)], silent=DOWN), Offsets({}), {"b:1"}),  # it may only be restarted
        (Seen(departed=[gone(has_drained=True, is_retired=True)], silent=DOWN), Offsets({}), set()),
        (Seen(departed=[gone(has_drained=True, is_retired=True)], silent=DOWN), UNREAD, {"b:1", "node a"}),
        (Seen(departed=[gone(has_drained=True)], silent=DOWN, lanes={"a:1": [A]}), READ, set()),
        (Seen(departed=[gone(has_drained=True)], silent=DOWN, lanes={"a:1": [A]}), UNREAD, {"b:1"}),
        # NSQ's nsqlookupd does not remember nodes, but the query has seen the lane.
        (Seen(registered={"a:1"}, silent=DOWN, lanes={"a:1": [A], "b:1": [B]}), UNREAD, {"b:1"}),
        (Seen(registered={"a:1"}, silent=DOWN, lanes={"a:1": [A], "b:1": [B]}), READ, set()),
        (Seen(registered={"a:1"}, lanes={"a:1": [A]}), UNREAD, {"node b"}),
        (Seen(registered={"a:1"}, lanes={"a:1": [A]}), READ, set()),
        # The silent node almost certainly has the lane; of two lanes it can have only one.
        (Seen(registered={"a:1", "b:1"}, silent=DOWN, lanes={"a:1": [A]}), UNREAD, {"b:1"}),
        (Seen(registered={"b:1"}, silent=DOWN), UNREAD, {"b:1", "node a", "node b"}),
        # The node was down and came back without its topic: no other node has the lane.
        (Seen(registered={"a:1", "b:1"}, lanes={"a:1": [A], "b:1": []}), Offsets({A: 1, B: 1}), {"node b"}),
    ],
)
def test_missing_nodes_are_named(seen: Seen, offsets: Offsets, missing: Any) -> None:
    assert presence(seen, offsets).missing.keys() == set(missing)


def test_lanes_of_who_may_come_back_are_waited_for() -> None:
    assert waited_for([gone(has_drained=False), Departed("old:1", "", None, False)]) == {"b"}
    assert waited_for([gone(has_drained=True)]) == {"b"}
    assert waited_for([gone(has_drained=True, is_retired=True)]) == set()


def test_what_has_to_be_there_is_checked() -> None:
    found = Presence(2, {"c:1": "c:1 cannot be reached", "d:1": "d:1 cannot be reached"})
    check(found, require_all=False, require=2)
    with pytest.raises(NsqError, match="all nodes have to be there: c:1 cannot be reached; d:1 cannot be reached"):
        check(found, require_all=True, require=0)
    with pytest.raises(NsqError, match="3 nodes have to be there, and 2 are: c:1 cannot"):
        check(found, require_all=False, require=3)
    with pytest.raises(NsqError, match=r"^1 nodes have to be there, and 0 are$"):
        check(Presence(0, {}), require_all=False, require=1)
    assert in_one_line({str(number): str(number) for number in range(5)}) == "0; 1; 2; and 2 more"


# Real nodes, no Spark


class Answers(Http):
    """The answers of an nsqlookupd that has node a and remembers node b; a test sets b's own."""

    def __init__(self, answer: dict[str, Any] | NsqError, topics: list[str] | None) -> None:
        super().__init__(Access())
        self._answer = answer
        self._topics = topics

    def json(self, address: str, target: str, *, timeout: float | None = None, is_lookupd: bool = False) -> Any:
        if is_lookupd:
            there = {"broadcast_address": "a", "http_port": 1, "topics": ["orders"], "tombstones": [False]}
            away = {"broadcast_address": "b", "http_port": 1, "topics": self._topics, "node": "b"}
            return {"producers": [there], "missing": [away | {"drained": False, "retired": False}]}
        if address == "b:1":
            if isinstance(self._answer, NsqError):
                raise self._answer
            return self._answer
        return {
            "node": "a",
            "topic": "orders",
            "log": "log",
            "first": 0,
            "next": 5,
            "bytes": 5,
            "last_time": 1,
            "retention_time": 1,
            "retention_bytes": 0,
        }


NO_RIGHT = Refused("b:1", 403, "E_UNAUTHORIZED", {})
NO_TOPIC = Refused("b:1", 404, "TOPIC_NOT_FOUND", {"node": "b"})


@pytest.mark.parametrize(
    ("answer", "topics", "pattern"),
    [
        (NO_RIGHT, ["orders"], "orders"),
        (Refused("b:1", 500, "INTERNAL_ERROR", {}), None, "orders"),
        (Refused("b:1", 404, "Not Found", {}), ["orders"], "orders"),
        ({"no": "log"}, ["orders"], "orders"),
        (NO_RIGHT, None, "ord*"),
    ],
)
def test_a_node_that_is_not_registered_and_refuses_to_answer_is_missing(
    answer: dict[str, Any] | NsqError, topics: list[str] | None, pattern: str
) -> None:
    def cluster(**more: str) -> Cluster:
        given = {"lookupd": "x:4161", "topic": pattern, "discoverySeconds": "10", **more}
        return Cluster(source_options(given), Answers(answer, topics))

    missing = cluster().missing()
    assert missing.keys() == {"b:1"}
    with pytest.raises(NsqError, match=r"b:1 .*; failOnDataLoss=false reads what the others have"):
        cluster().heads()
    with pytest.raises(NsqError, match=r"all nodes have to be there: b:1 "):
        cluster(requireAllNodes="true").heads(for_stream=True)
    assert cluster().look(Offsets({}))[1].missing == missing


def test_only_a_node_that_says_so_has_no_such_topic() -> None:
    cluster = Cluster(source_options({"lookupd": "x:4161", "topic": "orders"}), Answers(NO_TOPIC, ["orders"]))
    assert cluster.missing() == {}
    assert [str(lane) for lane in cluster.heads()] == ["a/orders/log"]
