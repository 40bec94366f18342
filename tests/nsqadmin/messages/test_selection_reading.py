"""Looking at what nodes have buried or deferred: in bounded steps, and with words for what could not be looked at."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio

from nsqadmin.access import ALL_RIGHTS, Identity
from nsqadmin.decoding.decoders import Decoders
from nsqadmin.messages.buried import BURIED, NodeSummary
from nsqadmin.messages.deferred import DEFERRED, Deferral, NodeDeferred
from nsqadmin.messages.filters import Filter, parse_filter
from nsqadmin.messages.lists import ListPage, Look, Summary
from nsqadmin.messages.looking import Looking
from nsqadmin.messages.masking import Masking
from nsqadmin.messages.reading import Unreadable
from nsqadmin.messages.selection_reading import SelectionReader
from tests.support.picture import channel, channel_node, snapshot


class Nodes:
    """Lists of deferred messages by node, as `Reader` yields their lines."""

    def __init__(self, lists: dict[str, list[dict[str, Any]]], breaks: str = "") -> None:
        self._lists = lists
        self._breaks = breaks
        self.asked: list[tuple[str, str]] = []
        self.arguments: dict[str, list[str]] = {}  # of the last request

    async def documents(self, node: str, target: str, *, nothing: object) -> AsyncGenerator[dict[str, Any], None]:
        arguments = parse_qs(target.partition("?")[2])
        self.arguments = arguments
        after = arguments.get("after", [""])[0]
        self.asked.append((node, after))
        first = int(after.rpartition(",")[2]) + 1 if after else 0
        for line in self._lists[node][first : first + int(arguments["limit"][0])]:
            yield line
        if self._breaks == node:
            raise Unreadable("the answer broke off")

    def look(self, identity: Identity, topic: str, wanted: Filter) -> Looking[Any]:
        return Looking(Decoders(), Masking(), identity, topic, wanted)


def listed(count: int, *, first_due: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return lines of one node, one due each second; each third is "red"."""
    return [
        {
            "sequence": number,
            "due": (first_due + number) * 1_000_000_000,
            "attempts": 0,
            "after": f"5e0a91c3,{number},{number}",
            "id": f"{number:016x}",
            "timestamp": 1,
            "body": "red" if number % 3 == 0 else "blue",
            **more,
        }
        for number in range(count)
    ]


BURIED_LINE: dict[str, Any] = {
    "sequence": 0,
    "attempts": 1,
    "id": "f" * 16,
    "buried_at": 2,
    "reason": "bad",
    "client": "a",
}


def look(
    nodes: Nodes, names: tuple[str, ...], wanted: str = "", everything: bool = False, **more: Any
) -> ListPage[Deferral]:
    reader = SelectionReader(DEFERRED, None, nodes)  # type: ignore[arg-type]
    on = channel(*(channel_node(it) for it in names))
    summary = Summary(nodes=tuple(NodeDeferred(node=it, count=1, log="a") for it in names))
    asked = Look(**{"wanted": parse_filter(wanted), "limit": 100, "after": {}, "seconds": 60.0, **more})
    return trio.run(reader.everything if everything else reader.page, on, summary, Identity(roles=(ALL_RIGHTS,)), asked)


def test_a_search_reads_on_until_it_has_enough() -> None:
    nodes = Nodes({"n1": listed(5_000), "n2": listed(10, first_due=2_000)})
    page = look(nodes, ("n1", "n2"), "red", limit=400)
    assert [it.sequence for it in page.lines] == list(range(0, 1_200, 3))
    assert page.looked == 1_198  # up to the last hit
    assert len(nodes.asked) == 3
    assert page.after == "5e0a91c3,1197,1197@n1"


def test_a_search_ends_with_its_time_and_goes_on_behind_what_it_has_looked_at() -> None:
    nodes = Nodes({"n1": listed(2_500), "n2": listed(2, first_due=1_500)})
    page = look(nodes, ("n1", "n2"), "nosuch", seconds=0.0)
    assert (page.lines, page.looked, round(page.reached or 0)) == ((), 1_000, 999)
    assert page.after == "5e0a91c3,999,999@n1"
    found = look(nodes, ("n1", "n2"), "red", everything=True, limit=10_000)
    assert (len(found.lines), found.looked, found.after) == (834 + 1, 2_502, "")


def test_what_cannot_be_read_is_named_and_nothing_is_said_about_it() -> None:
    unread = [{**it, "unread": "the disk can't be read now"} for it in listed(3)]
    for line in unread:
        del line["body"]
    nodes = Nodes({"n1": unread, "n2": listed(3)}, breaks="n2")
    page = look(nodes, ("n1", "n2"), "red")
    assert [it.node for it in page.lines] == ["n2"]
    assert [node for node, _ in page.missing] == ["n1", "n2"]
    assert "cannot be read now, so they were not searched" in dict(page.missing)["n1"]
    assert len(look(nodes, ("n1",)).lines) == 3  # without a search they are shown


@pytest.mark.parametrize("odd", [{"due": "soon"}, {"after": None}, {"id": 5}, {"timestamp": "x"}])
def test_nonsense_of_one_node_fails_only_that_node(odd: dict[str, Any]) -> None:
    nodes = Nodes({"n1": listed(2, **odd), "n2": listed(2)})
    page = look(nodes, ("n1", "n2"))
    assert {it.node for it in page.lines} == {"n2"}
    assert [node for node, _ in page.missing] == ["n1"]


def test_nodes_look_for_the_reason_of_buried_messages_and_one_that_has_not_told_its_count_is_not_asked() -> None:
    nodes = Nodes({"n1": [{**BURIED_LINE, "sequence": 3, "timestamp": 1, "body": "red"}]})
    reader = SelectionReader(BURIED, None, nodes)  # type: ignore[arg-type]
    on = channel(channel_node("n1"), channel_node("n2"))
    summary = Summary(nodes=(NodeSummary(node="n1", count=1), NodeSummary(node="n2", count=9, error="it is silent")))
    asked = Look(after={}, limit=20, reason="ba")
    page = trio.run(reader.page, on, summary, Identity(roles=(ALL_RIGHTS,)), asked)
    assert [(it.reason, it.place, it.pick) for it in page.lines] == [("bad", "3", f"{'f' * 16}@n1")]
    assert (page.missing, page.after) == ((("n2", "it is silent"),), "")
    assert nodes.asked == [("n1", "")]
    assert nodes.arguments == {"topic": ["t"], "channel": ["c"], "limit": ["20"], "reason": ["ba"]}


class Counts:
    """Nodes that tell how many messages they have deferred."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get_json(self, node: str, _: str) -> Any:
        self.asked.append(node)
        return {"count": 9, "log": "a"}


def test_one_deferred_message_is_looked_for_on_its_node_alone() -> None:
    nodes, counts = Nodes({"n1": listed(9), "n2": listed(9)}), Counts()
    on, user = channel(channel_node("n1"), channel_node("n2")), Identity(roles=(ALL_RIGHTS,))
    reader = SelectionReader(DEFERRED, counts, nodes)  # type: ignore[arg-type]
    page = trio.run(reader.one, snapshot(), on, user, "n2", "5e0a91c3,4,4")
    assert [it.pick for it in page.lines] == ["4@n2@a"]
    assert (counts.asked, [node for node, _ in nodes.asked]) == (["n2"], ["n2"])
    assert trio.run(reader.one, snapshot(), on, user, "n2", "5e0a91c3,4,3").lines == (), "it has moved"
    assert trio.run(reader.one, snapshot(), on, user, "evil:80", "5e0a91c3,4,4").lines == ()
    with pytest.raises(ValueError, match="unpack"):
        trio.run(reader.one, snapshot(), on, user, "n2", "4")


def test_one_buried_message_is_shown_although_nobody_can_tell_how_many_there_are() -> None:
    nodes = Nodes({"n1": [{**BURIED_LINE, "timestamp": 1, "body": "red"}]})
    reader = SelectionReader(BURIED, None, nodes)  # type: ignore[arg-type]  # no node is asked for a number
    page = trio.run(reader.one, snapshot(), channel(channel_node("n1")), Identity(roles=(ALL_RIGHTS,)), "n1", "0")
    assert [it.place for it in page.lines] == ["0"]
