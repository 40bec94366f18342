"""What nodes tell of their policy files is read, whatever it is, and compared."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.policies import Demand, NodePolicy, Row, files_of, read_policy, rows_of
from nsqadmin.cluster.sane import NotUnderstood

ANSWER: dict[str, Any] = {
    "path": "policy.toml",
    "digest": "d1",
    "read_at": 1_700_000_000_000_000_000,
    "error": "",
    "topic": {"ack": {"value": "synced", "line": 12, "dry_run": False}},
    "channel": {"max_attempts": {"value": 10, "line": 1, "dry_run": True}},
}
TEN = Demand(key="max_messages", value="10", line=1, is_dry=False)
TWENTY = Demand(key="max_messages", value="20", line=1, is_dry=False)
TTL = Demand(key="ttl", value='"7d"', line=4, is_dry=False)


def test_an_answer_is_read_with_values_as_they_are_written() -> None:
    found = read_policy("n1:4151", ANSWER, skew=5.0)
    assert (found.path, found.digest, found.read_at) == ("policy.toml", "d1", 1_699_999_995.0)
    assert found.of_topic == (Demand(key="ack", value='"synced"', line=12, is_dry=False),)
    assert found.of_channel == (Demand(key="max_attempts", value="10", line=1, is_dry=True),)


def test_a_node_without_a_file_demands_nothing() -> None:
    assert read_policy("n1:4151", {"path": "", "digest": "", "read_at": 0, "error": ""}) == NodePolicy(node="n1:4151")


@pytest.mark.parametrize("odd", [
    None, [], "x", {}, {**ANSWER, "read_at": "soon"}, {**ANSWER, "topic": [1]}, {**ANSWER, "topic": {"ack": 1}},
    {**ANSWER, "topic": {"ack": {"value": 1, "line": "one", "dry_run": False}}},
    {**ANSWER, "topic": {str(n): {"value": 1, "line": 1, "dry_run": False} for n in range(200)}},
])  # fmt: skip
def test_nonsense_is_refused(odd: Any) -> None:
    with pytest.raises(NotUnderstood):
        read_policy("n1:4151", odd)


def test_a_value_that_is_too_long_is_cut() -> None:
    odd = {**ANSWER, "topic": {"ack": {"value": "x" * 10_000, "line": 1, "dry_run": False}}}
    assert len(read_policy("n1:4151", odd).of_topic[0].value) == 200


def test_what_all_nodes_demand_alike_is_one_row_without_names() -> None:
    assert rows_of([("n1", [TEN, TTL]), ("n2", [TEN, TTL])]) == (
        Row(key="max_messages", demand=TEN, nodes=()),
        Row(key="ttl", demand=TTL, nodes=()),
    )


def test_where_nodes_differ_each_value_names_its_nodes_and_so_does_its_absence() -> None:
    assert rows_of([("n1", [TEN, TTL]), ("n2", [TWENTY, TTL]), ("n3", [TTL])]) == (
        Row(key="max_messages", demand=TEN, nodes=("n1",)),
        Row(key="max_messages", demand=TWENTY, nodes=("n2",)),
        Row(key="max_messages", demand=None, nodes=("n3",)),
        Row(key="ttl", demand=TTL, nodes=()),
    )
    assert rows_of([]) == ()


def test_the_file_that_most_nodes_have_is_first_and_who_tells_nothing_has_none() -> None:
    told = [
        NodePolicy(node="n1"),
        *(NodePolicy(node=it, digest="d") for it in ("n2", "n3")),
        NodePolicy(node="n4", untold="it is old"),
    ]
    assert [(it.digest, [on.node for on in it.nodes]) for it in files_of(told)] == [("d", ["n2", "n3"]), ("", ["n1"])]
