"""Messages in flight of several nodes, as recorded: times by our clock, pages, masks, and names of consumers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio

from nsqadmin.access import ALL_RIGHTS, Identity
from nsqadmin.decoding.decoders import Decoders
from nsqadmin.messages.filters import Filter
from nsqadmin.messages.in_flight import InFlight, MessageInFlight, NodeInFlight, name_of_consumer
from nsqadmin.messages.lists import ListPage, Look, Summary, parse_places
from nsqadmin.messages.looking import Looking
from nsqadmin.messages.masking import Masking
from nsqadmin.messages.reasons import Reasons
from nsqadmin.messages.selection_reading import SelectionReader
from tests.support.picture import NOW, channel, channel_node, snapshot

SECOND = 10**9
EVERYTHING = Identity(roles=(ALL_RIGHTS,))
LINE: dict[str, Any] = {
    "id": "0f3c9a8e5d2b1000",
    "sequence": 17,
    "attempts": 2,
    "since": 1_000 * SECOND,
    "in_flight_ms": 480_000,
    "deadline": 1_540 * SECOND,
    "last_touch": 1_470 * SECOND,
    "timestamp": 900 * SECOND,
    "consumer": {
        "client_id": "worker-1",
        "hostname": "worker-1.lan",
        "remote_address": "10.0.0.7:51234",
        "user_agent": "nsqjobs/1.3",
        "version": "V2",
    },
    "after": "5e0a91c3,90012345678,17",
    "size": 812,
    "key": "order-17",
    "group": "acme",
    "headers": {"nsq-group": "acme", "job-name": "send_receipt"},
}


class Nodes:
    """Recorded lists, as `Reader` yields their lines."""

    def __init__(self, **lists: Sequence[dict[str, Any]]) -> None:
        self._lists = lists
        self.asked: list[dict[str, list[str]]] = []

    async def documents(self, node: str, target: str, *, nothing: object) -> AsyncGenerator[dict[str, Any], None]:
        arguments = parse_qs(target.partition("?")[2])
        self.asked.append(arguments)
        after = arguments.get("after", [""])[0]
        behind = [it for it in self._lists[node] if not after or place_of(it["after"]) > place_of(after)]
        for line in behind[: int(arguments["limit"][0])]:
            yield line

    def look(self, identity: Identity, topic: str, wanted: Filter) -> Looking[Any]:
        return Looking(Decoders(), Masking(), identity, topic, wanted)


def place_of(after: str) -> tuple[int, int]:
    _, since, sequence = after.split(",")
    return int(since), int(sequence)


def in_flight_for(seconds: float, sequence: int = 1, *, ahead: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return a line of a node whose clock is `ahead` of ours."""
    since = int((NOW + ahead - seconds) * SECOND)
    place = f"5e0a91c3,{int(1e9 - seconds * 1e6)},{sequence}"
    times = {"since": since, "deadline": since + 60 * SECOND, "timestamp": since - SECOND}
    line = {**LINE, **times, "in_flight_ms": int(seconds * 1000), "sequence": sequence, "after": place, **more}
    del line["last_touch"]
    return line


class Counts:
    """Nodes that say how many messages are in flight, and what their clocks show."""

    def __init__(self, ahead: Mapping[str, float]) -> None:
        self._ahead = ahead

    async def get_json(self, node: str, _: str) -> Any:
        return {"count": 1, "log": "a", "now": int((NOW + self._ahead.get(node, 0.0)) * SECOND)}


def page(
    nodes: Nodes, *names: str, after: str = "", ahead: Mapping[str, float] | None = None, **asked: Any
) -> ListPage[MessageInFlight]:
    reader = SelectionReader(InFlight(lambda: NOW), Counts(ahead or {}), nodes)  # type: ignore[arg-type]
    on = channel(*(channel_node(it) for it in names))
    summary: Summary[NodeInFlight] = trio.run(reader.summary, snapshot(), on)
    assert not summary.missing
    look = Look(**{"limit": 100, "after": parse_places(after), **asked})
    return trio.run(reader.page, on, summary, EVERYTHING, look)


@pytest.mark.parametrize("ahead", [0.0, 3_600.0, -86_400.0])
def test_all_times_are_by_our_clock_however_wrong_the_nodes_is(ahead: float) -> None:
    start = int(NOW + ahead - 1_480) * SECOND
    times = ("since", "deadline", "last_touch", "timestamp")
    line = {**LINE, **{it: start + LINE[it] for it in times}}
    (one,) = page(Nodes(n1=[line]), "n1", ahead={"n1": ahead}).lines
    found = one.since, one.deadline, one.last_touch, one.published
    assert found == pytest.approx((NOW - 480.0, NOW + 60.0, NOW - 10.0, NOW - 580.0), abs=1e-3)
    assert (one.age, one.left, one.since_touch) == pytest.approx((480.0, 60.0, 10.0), abs=1e-3)
    assert (one.consumer.client_id, one.consumer.is_gone, one.size, one.attempts) == ("worker-1", False, 812, 2)
    assert one.job is not None
    assert (one.job.name, dict(one.other_headers)) == ("send_receipt", {"nsq-group": "acme"})


def test_messages_of_all_nodes_are_merged_by_age_page_by_page_whatever_their_clocks_say() -> None:
    nodes = Nodes(
        n1=[in_flight_for(it, int(100 - it), ahead=900.0) for it in (90, 70, 50, 30, 10)],
        n2=[in_flight_for(it, int(100 - it), ahead=-900.0) for it in (80, 60, 5)],
    )
    seen: list[int] = []
    after = ""
    for _ in range(9):
        some = page(nodes, "n1", "n2", after=after, limit=2, ahead={"n1": 900.0, "n2": -900.0})
        seen += [round(it.age) for it in some.lines]
        after = some.after
        if not after:
            break
    assert seen == [90, 80, 70, 60, 50, 30, 10, 5]


def test_nodes_select_by_the_name_of_the_consumer() -> None:
    nodes = Nodes(n1=[])
    page(nodes, "n1", client="10.0.0.7:51234")
    page(nodes, "n1")
    assert [it.get("client") for it in nodes.asked] == [["10.0.0.7:51234"], None]


def test_what_a_node_cannot_say_is_unknown() -> None:
    line = in_flight_for(1.0)
    for name in ("sequence", "size", "key", "group", "headers"):
        del line[name]
    line |= {"unread": "reading from disk takes too long", "consumer": {**LINE["consumer"], "gone": True}}
    (one,) = page(Nodes(n1=[line]), "n1").lines
    assert (one.known_sequence, one.size, one.key, one.headers) == (None, None, "", {})
    assert (one.unread, one.consumer.is_gone, one.last_touch, one.job) == (line["unread"], True, None, None)


def test_one_that_should_have_timed_out_already_has_less_than_no_time_left() -> None:
    (one,) = page(Nodes(n1=[in_flight_for(61.0)]), "n1").lines
    assert one.left == pytest.approx(-1.0, abs=1e-3)


@pytest.mark.parametrize(
    "odd",
    [
        {"since": -1},
        {"since": "now"},
        {"deadline": None},
        {"consumer": "ana"},
        {"consumer": {}},
        {"headers": ["a"]},
        {"size": 1.5},
        {"after": 7},
        {"last_touch": True},
    ],
)
def test_nonsense_of_one_node_fails_only_that_node(odd: dict[str, Any]) -> None:
    some = page(Nodes(n1=[{**LINE, **odd}], n2=[LINE]), "n1", "n2")
    assert [it.node for it in some.lines] == ["n2"]
    assert [node for node, _ in some.missing] == ["n1"]


def test_who_may_not_see_messages_sees_who_has_them_and_nothing_of_what_is_in_them() -> None:
    (whole,) = page(Nodes(n1=[LINE]), "n1").lines
    reasons = Reasons(Masking(), all_see_payload=False)
    seen = whole.seen(reasons.sight(Identity(), "t"))
    assert (seen.key, seen.group, seen.headers, seen.job, seen.is_withheld) == ("", "", {}, None, True)
    assert (seen.consumer, seen.since, seen.size) == (whole.consumer, whole.since, whole.size)
    assert whole.seen(reasons.sight(EVERYTHING, "t")) == whole
    (bare,) = page(Nodes(n1=[{**LINE, "key": "", "group": "", "headers": {}}]), "n1").lines
    assert not bare.seen(reasons.sight(Identity(), "t")).is_withheld


def test_a_consumer_without_a_connection_has_no_lasting_address() -> None:
    assert name_of_consumer("V2", "worker", "10.0.0.7:51234") == "10.0.0.7:51234"
    assert name_of_consumer("HTTP", "10.0.0.7", "10.0.0.7:51234") == "10.0.0.7"


def test_one_message_is_found_again_by_its_place() -> None:
    kind = InFlight()
    assert kind.place_before("5e0a91c3,90,17") == "5e0a91c3,90,16"
    assert kind.place_before("5e0a91c3,90,0") == f"5e0a91c3,89,{(1 << 63) - 1}"
