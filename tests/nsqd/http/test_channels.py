"""The endpoints about a channel: answers to the byte, and the order of checks."""

from __future__ import annotations

import pytest

from tests.nsqd.http.conftest import Nsqd, code


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
@pytest.mark.parametrize(("query", "status", "answer"), [
    ("%z", 400, "INVALID_REQUEST"),
    ("", 400, "MISSING_ARG_TOPIC"),
    ("channel=!", 400, "MISSING_ARG_TOPIC"),
    ("topic=", 400, "INVALID_ARG_TOPIC"),
    ("topic=!&channel=!", 400, "INVALID_ARG_TOPIC"),
    ("topic=unknown", 400, "MISSING_ARG_CHANNEL"),
    ("topic=unknown&channel=", 400, "INVALID_ARG_CHANNEL"),
    ("topic=unknown&channel=c", 404, "TOPIC_NOT_FOUND"),
])  # fmt: skip
def test_channel_routes_check_in_order(nsqd: Nsqd, action: str, query: str, status: int, answer: str) -> None:
    got = nsqd.post(f"/channel/{action}?{query}")
    assert (got.status, got.body) == (status, code(answer))
    assert nsqd.broker.topics == {}


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_unknown_channel(nsqd: Nsqd, action: str) -> None:
    nsqd.broker.topic("t")
    answer = nsqd.post(f"/channel/{action}?topic=t&channel=c")
    assert (answer.status, answer.body) == (404, code("CHANNEL_NOT_FOUND"))


def test_channel_actions(nsqd: Nsqd) -> None:
    topic = nsqd.broker.topic("t")
    for _ in range(2):
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 200
    channel = topic.channels["c"]
    nsqd.post("/pub?topic=t", b"x")
    nsqd.post("/channel/pause?topic=t&channel=c")
    assert channel.paused
    nsqd.post("/channel/unpause?topic=t&channel=c")
    assert not channel.paused
    assert channel.depth == 1
    nsqd.post("/channel/empty?topic=t&channel=c")
    assert channel.depth == 0
    assert nsqd.post("/channel/delete?topic=t&channel=c").body == b""
    assert topic.channels == {}
    assert nsqd.turn.synced == 4
