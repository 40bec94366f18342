"""Tables are sorted by the links in their headers, and cut into pages."""

from __future__ import annotations

from starlette.requests import Request

from nsqadmin.parts.tables import KEYS, Sorting, part_of
from tests.support.picture import NOW, node


def sorting(url: str, table: str = "nodes", default: str = "", **page: str) -> Sorting:
    path, _, query = url.partition("?")
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
    return Sorting(Request({**scope, "query_string": query.encode()}), table, default, **page)


def test_a_header_sorts_by_its_column_and_then_turns_the_table_round() -> None:
    assert sorting("/nodes").href("depth", descending=True) == "/nodes?sort-nodes=-depth"
    assert sorting("/nodes?sort-nodes=-depth").href("depth", descending=True) == "/nodes?sort-nodes=depth"
    assert sorting("/nodes?sort-nodes=-depth").href("node", descending=False) == "/nodes?sort-nodes=node"
    assert sorting("/nodes?sort-nodes=-depth").direction("depth") == "descending"
    assert sorting("/nodes?sort-nodes=depth").direction("depth") == "ascending"
    assert sorting("/nodes?sort-nodes=depth").direction("node") == ""


def test_a_link_keeps_the_rest_of_the_url_but_begins_with_the_first_page() -> None:
    it = sorting("/topics/a%23ephemeral/c?tab=consumers&sort-other=x&page=3&fresh=1", "consumers", "state")
    assert it.href("rate", descending=True) == "/topics/a%23ephemeral/c?tab=consumers&sort-other=x&sort-consumers=-rate"
    assert it.page(2) == "/topics/a%23ephemeral/c?tab=consumers&sort-other=x&page=2"
    assert sorting("/c?sort-consumers=-rate&page=3", "consumers", "state").page(1) == "/c?sort-consumers=-rate"


def test_the_way_in_which_rows_come_needs_no_argument() -> None:
    turned = sorting("/c?sort-consumers=-state", "consumers", "state")
    assert turned.href("state", descending=False) == "/c"


def test_an_unknown_column_is_none() -> None:
    assert sorting("/nodes?sort-nodes=-password").chosen == ""


def test_rows_are_sorted_with_unknown_values_last_both_ways() -> None:
    nodes = [node("n1:1", start_time=NOW - 5), node("n2:1"), node("n3:1", start_time=NOW - 900)]
    assert [it.address for it in sorting("/nodes?sort-nodes=-up").rows(nodes)] == ["n3:1", "n1:1", "n2:1"]
    assert [it.address for it in sorting("/nodes?sort-nodes=up").rows(nodes)] == ["n1:1", "n3:1", "n2:1"]
    assert [it.address for it in sorting("/nodes").rows(nodes)] == ["n1:1", "n2:1", "n3:1"]


def test_every_column_of_nodes_can_sort() -> None:
    nodes = [node("n1:1"), node("n2:1", start_time=NOW)]
    for column in KEYS["nodes"]:
        assert len(sorting(f"/nodes?sort-nodes=-{column}").rows(nodes)) == 2


def test_a_long_table_has_pages_and_a_number_beyond_is_the_last() -> None:
    parts = [part_of(range(205), page, per_page=100) for page in (0, 1, 3, 99)]
    assert [(it.page, len(it.rows), it.pages, it.total) for it in parts] == [
        (1, 100, 3, 205),
        (1, 100, 3, 205),
        (3, 5, 3, 205),
        (3, 5, 3, 205),
    ]


def test_two_tables_of_one_page_have_numbers_of_their_own() -> None:
    url = "/nodes/n1?page=3&page-topics=2"
    topics, consumers = sorting(url, "node-topics", "name", page="page-topics"), sorting(url, "consumers", "state")
    assert (topics.number, consumers.number) == (2, 3)
    assert topics.page(4) == "/nodes/n1?page-topics=4"
    assert consumers.page(1) == "/nodes/n1?page-topics=2"
