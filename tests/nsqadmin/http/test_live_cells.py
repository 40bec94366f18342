"""The live numbers of a page."""

from __future__ import annotations

import pytest

from nsqadmin.http.live_cells import BadScope, cells_of, checked_scope, difference, topic_of, topic_of_cell
from tests.support.picture import channel, channel_node, client, snapshot, topic

SHOWN = snapshot(topic(channel(channel_node(depth=3, clients=(client(ready_count=2),)))), topic(name="other"))


def test_each_page_has_its_own_numbers() -> None:
    one = cells_of(SHOWN, "channel:t/c")
    assert one["topics/t/c/depth"] == 3
    assert one["topics/t/c@n1:4151/depth"] == 3
    assert one["topics/t/c/clients/n1:4151/10.0.0.1:5000/ready"] == 2
    assert not any(key.startswith("topics/other") for key in one)
    assert "topics/other/depth" in cells_of(SHOWN, "topics")
    assert cells_of(SHOWN, "nodes")["nodes/n1:4151/health"] == "ok"
    assert cells_of(SHOWN, "topic:nosuch").keys() == cells_of(SHOWN, "channel:no/such").keys()


def test_what_is_buried_is_a_live_number_of_the_channel_and_of_each_node() -> None:
    picture = snapshot(topic(channel(channel_node(buried_count=2), channel_node("n2:4151", buried_count=3))))
    cells = cells_of(picture, "channel:t/c")
    assert [cells[f"topics/t/c{at}/buried"] for at in ("", "@n1:4151", "@n2:4151")] == [5, 2, 3]


def test_only_what_has_changed_is_sent_and_what_is_gone_is_null() -> None:
    assert difference({"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "c": None, "d": 0}) == {"b": 3, "d": 0}
    assert difference({"a": 1}, {}) == {"a": None}


@pytest.mark.parametrize("scope", ["overview", "topic:t", "channel:t/c", "node:[::1]:4151", "consumers"])
def test_pages_that_there_are(scope: str) -> None:
    assert checked_scope(scope) == scope


@pytest.mark.parametrize("scope", ["", "everything", "topic:", "channel:t", "topic", "overview:x"])
def test_pages_that_there_are_not(scope: str) -> None:
    with pytest.raises(BadScope):
        checked_scope(scope)


def test_whose_number_it_is() -> None:
    assert [topic_of_cell(it) for it in ("topics/t/c/depth", "topics/t@n1:4151/depth", "cluster/depth")] == [
        "t",
        "t",
        "",
    ]
    assert [topic_of(it) for it in ("channel:t/c", "topic:t", "node:t", "topics")] == ["t", "t", "", ""]


def test_all_numbers_of_a_nodes_rows_are_live_so_that_they_fit_its_totals() -> None:
    here, there = client("n1:4151", ready_count=2), client("n2:4151")
    row = channel_node(depth=3, deferred_count=4, requeue_count=5, timeout_count=6, clients=(here,))
    one = topic(channel(row, channel_node("n2:4151", clients=(there,))))
    cells = cells_of(snapshot(one), "node:n1:4151")
    ends = ("depth", "backend_depth", "in_flight", "deferred", "requeue_count", "timeout_count", "clients")
    assert [cells[f"topics/t/c@n1:4151/{end}"] for end in ends] == [3, 0, 0, 4, 5, 6, 1]
    assert cells["topics/t@n1:4151/backend_depth"] == 0
    assert cells["topics/t/c/clients/n1:4151/10.0.0.1:5000/ready"] == 2
    assert not any("n2:4151" in key for key in cells)
