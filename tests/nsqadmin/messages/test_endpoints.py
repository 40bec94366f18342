"""Selected messages as lines: all of them, and within bounds."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.requests import Request

from nsqadmin.access import ALL_RIGHTS, Identity
from nsqadmin.messages.endpoints import routes
from nsqadmin.messages.model import Message, NodeLog, Page
from nsqcommon.http_api import HttpError

ALL = Identity(roles=(ALL_RIGHTS,))


def selected(messages: str, size: int = 1, *, first: int = 0, reason: str = "") -> list[int]:
    """Return the sequences that are sent, from a node whose pages have one message of this size.

    Everything before `first` was removed by retention, and nothing can be read for this `reason`.
    """

    async def read(topic: str, identity: Identity, *, node: str, place: str, limit: int) -> Page:
        at = int(place)
        if problem := reason or ("that part of its history has been removed already" if at < first else ""):
            return Page(messages=(), logs=(NodeLog(node=node, first=first, next=100, log="l1", reason=problem),))
        one = Message(node=node, id="0" * 16, timestamp=1.0, size=size, body=b"x", sequence=at, log="l1")
        return Page(messages=(one,), logs=(NodeLog(node=node, next=100, log="l1", continue_at=at + 1),))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"messages": messages}).encode()}

    endpoints, view = Mock(), Mock()
    endpoints.read = read
    scope = {
        "type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"",
        "path_params": {"topic": "t"}, "state": {"identity": ALL},
    }  # fmt: skip
    (send,) = [it for it in routes(endpoints, view) if (it.method, it.path) == ("POST", "/api/v2/messages/{topic}")]
    answer: Any = asyncio.run(send.handler(Request(scope, receive)))  # type: ignore[arg-type]  # it is a coroutine
    return [json.loads(line)["sequence"] for line in bytes(answer.body).splitlines()]


def test_a_range_is_read_on_where_large_bodies_end_a_page() -> None:
    assert selected("3-6@n1:4151 9@n1:4151", 10 << 20) == [3, 4, 5, 6, 9]


def test_bodies_that_are_too_large_together_are_refused() -> None:
    with pytest.raises(HttpError, match="TOO_LARGE") as refused:
        selected("0-99@n1:4151", 10 << 20)
    assert refused.value.status == 413


def test_what_retention_has_removed_hides_nothing_of_the_rest() -> None:
    assert selected("3-6@n1:4151 8@n1:4151", first=5) == [5, 6, 8]
    assert selected("3@n1:4151", first=5) == []


def test_a_node_that_cannot_be_read_is_no_node_without_messages() -> None:
    with pytest.raises(HttpError, match="NODE_NOT_READ") as refused:
        selected("3@n1:4151", reason="it does not answer")
    assert refused.value.details == {"reason": "n1:4151: it does not answer"}
