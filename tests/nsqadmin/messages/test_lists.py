"""Lists of several nodes become one, page by page: nothing is left out, comes twice, or comes out of order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nsqadmin.messages.lists import ListedMessage, Part, merged, parse_places, written


@dataclass(frozen=True, slots=True, kw_only=True)
class Line(ListedMessage):
    second: float

    @property
    def place(self) -> str:
        return f"{self.second:.0f}"

    @property
    def at(self) -> float:
        return self.second

    @property
    def pick(self) -> str:
        return ""


def lines(node: str, *times: float, unwanted: tuple[float, ...] = ()) -> list[Line]:
    return [Line(node=node, sequence=0, attempts=0, second=at, is_wanted=at not in unwanted) for at in times]


def parts_from(nodes: dict[str, list[Line]], places: dict[str, str], limit: int) -> dict[str, Part[Line]]:
    """Read up to `limit` lines of each node behind its place, as a reader does."""
    parts = {}
    for node, all_ in nodes.items():
        some = [it for it in all_ if it.at > float(places.get(node, -1))][:limit]
        parts[node] = Part(some, goes_on=len(some) == limit)
    return parts


@pytest.mark.parametrize("most_read", [3, 5])
def test_pages_have_everything_that_is_wanted_once_and_in_order(most_read: int) -> None:
    nodes = {
        "n1": lines("n1", *range(1, 30, 2), unwanted=(3, 5, 7, 9, 11, 13, 15)),
        "n2": lines("n2", 20, 22, 40, unwanted=(22,)),
        "n3": [],
    }
    seen: list[Line] = []
    after, looked = "", 0
    for _ in range(40):
        places = parse_places(after)
        page = merged(parts_from(nodes, places, most_read), places, 3)
        seen += page.lines
        looked += page.looked
        after = page.after
        if not after:
            break
    assert [it.at for it in seen] == [1, 17, 19, 20, 21, 23, 25, 27, 29, 40]
    assert looked == 18


def test_a_list_that_was_cut_off_goes_on_and_holds_up_nobody() -> None:
    cut = Part(lines("n1", 1, 2), goes_on=True, problem="it took too long")
    page = merged({"n1": cut, "n2": Part(lines("n2", 3, 4))}, {}, 20)
    assert ([it.at for it in page.lines], page.after) == ([1, 2, 3, 4], "2@n1 4@n2")
    assert merged({"n1": cut, "n2": Part()}, {}, 20).missing == (("n1", "it took too long"),)
    assert merged({"n1": Part(problem="no answer")}, {}, 20).after == ""


def test_what_comes_next_on_a_node_may_come_before_what_others_have() -> None:
    parts = {"n1": Part(lines("n1", 1, 2), goes_on=True), "n2": Part(lines("n2", 3))}
    page = merged(parts, {}, 20)
    assert ([it.at for it in page.lines], page.after, page.reached) == ([1, 2], "2@n1", 2)


def test_places_are_read_as_they_are_written() -> None:
    places = {"n1:4151": "17", "[::1]:4151": "5e0a91c3,90012345678,17"}
    assert parse_places(written(places)) == places
    with pytest.raises(ValueError, match="isn't a place"):
        parse_places("17@n1:4151 evil")
