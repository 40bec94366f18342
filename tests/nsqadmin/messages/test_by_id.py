"""Asking nodes where a message is: what they answer, and what is said of those that don't."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio
import trio.testing

from nsqadmin.access import ALL_RIGHTS, Identity
from nsqadmin.cluster.model import Health
from nsqadmin.messages.by_id import FoundPlaces, MessagePlace, find_message
from nsqadmin.upstream.client import UpstreamError
from tests.support.picture import node, snapshot, viewer

ID = "0d4c5e9b1f2a3b4c"
PLACE = {"topic": "orders", "log": "a1", "sequence": 7}


class Nodes:
    """Answers to GET /message, by node. A number is a status without an answer; None never answers."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    async def get_json(self, address: str, target: str) -> Any:
        path, _, query = target.partition("?")
        assert (path, parse_qs(query)) == ("/message", {"id": [ID]})
        answer = self._answers[address.partition(":")[0]]
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, int):
            raise UpstreamError("refused", status=answer, body=json.dumps({"message": "NOT_FOUND"}).encode())
        return answer


def found(identity: Identity = Identity(roles=(ALL_RIGHTS,)), down: str = "", **answers: Any) -> FoundPlaces:  # noqa: B008 - it is frozen
    nodes = tuple(node(f"{it}:4151", health=Health.DOWN if it == down else Health.OK) for it in answers)

    async def ask() -> FoundPlaces:
        with trio.fail_after(60):
            return await find_message(Nodes(**answers), snapshot(nodes=nodes), ID, identity)  # type: ignore[arg-type]

    return trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))


def answer(*places: Any, unread: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"node": "x", "messages": list(places), "unread": list(unread)}


def test_every_place_on_every_node_is_found() -> None:
    told = found(n1=answer(PLACE), n2=answer(), n3=answer({**PLACE, "topic": "copies"}, PLACE))
    assert told == FoundPlaces(
        places=(
            MessagePlace("copies", "n3:4151", 7, "a1"),
            MessagePlace("orders", "n1:4151", 7, "a1"),
            MessagePlace("orders", "n3:4151", 7, "a1"),
        )
    )


def test_nodes_that_were_not_searched_are_named_with_the_reason() -> None:
    told = found(n1=answer(PLACE), n2=None, n3=404, n4=answer(unread=("orders", "mails")), n5=answer(), down="n5")
    assert [it.node for it in told.places] == ["n1:4151"]
    assert told.missing == (
        ("n2:4151", "it has sent nothing for 3 s"),
        ("n3:4151", "it cannot find messages by id: it is a Go nsqd or an older version"),
        ("n4:4151", "it could not read the history of 2 topics"),
        ("n5:4151", "it does not answer"),
    )


@pytest.mark.parametrize(
    "nonsense",
    [
        [],
        {},
        "text",
        answer(None),
        answer({}),
        answer({**PLACE, "topic": 1}),
        answer({**PLACE, "sequence": "7"}),
        answer({**PLACE, "sequence": -1}),
        answer({**PLACE, "log": "<script>"}),
        {"messages": 3, "unread": []},
        {"messages": [], "unread": 3},
    ],
)
def test_nonsense_fails_only_its_node(nonsense: Any) -> None:
    told = found(n1=nonsense, n2=answer(PLACE))
    assert [it.node for it in told.places] == ["n2:4151"]
    ((node, why),) = told.missing
    assert node == "n1:4151"
    assert why.startswith("its answer cannot be read")


def test_hidden_topics_are_neither_found_nor_counted() -> None:
    told = found(viewer("mails"), n1=answer(PLACE, unread=("orders",)), n2=answer({**PLACE, "topic": "mails"}))
    assert [it.topic for it in told.places] == ["mails"]
    assert told.missing == ()
