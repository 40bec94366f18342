"""The endpoints about a topic: answers to the byte, and the order of checks."""

from __future__ import annotations

import pytest

from tests.nsqd.http.conftest import Nsqd, code
from tests.support.asgi import ask


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_head_and_wrong_methods(nsqd: Nsqd, method: str) -> None:
    assert ask(nsqd.app, method, "/topic/create?topic=t").status == 405


def test_topic_create_is_idempotent(nsqd: Nsqd) -> None:
    for _ in range(2):
        answer = nsqd.post("/topic/create?topic=t%23ephemeral")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers == {"x-nsq-content-type": "nsq; version=1.0", "content-length": "0"}
    assert list(nsqd.broker.topics) == ["t#ephemeral"]


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
def test_topic_routes_want_a_topic(nsqd: Nsqd, action: str) -> None:
    assert nsqd.post(f"/topic/{action}?a;b").body == code("INVALID_REQUEST")
    assert nsqd.post(f"/topic/{action}", b"topic=t").body == code("MISSING_ARG_TOPIC")


@pytest.mark.parametrize(("action", "status", "answer"), [
    ("create", 400, "INVALID_TOPIC"),
    ("empty", 400, "INVALID_TOPIC"),
    ("delete", 404, "TOPIC_NOT_FOUND"),
    ("pause", 404, "TOPIC_NOT_FOUND"),
    ("unpause", 404, "TOPIC_NOT_FOUND"),
])  # fmt: skip
def test_bad_topic_name(nsqd: Nsqd, action: str, status: int, answer: str) -> None:
    for name in ("a%0A", "", "%FF"):
        got = nsqd.post(f"/topic/{action}?topic={name}")
        assert (got.status, got.body) == (status, code(answer))


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_unknown_topic(nsqd: Nsqd, action: str) -> None:
    answer = nsqd.post(f"/topic/{action}?topic=t")
    assert (answer.status, answer.body) == (404, code("TOPIC_NOT_FOUND"))
    assert nsqd.broker.topics == {}


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_answer_to_a_topic_action_waits_for_the_disk(nsqd: Nsqd, action: str) -> None:
    nsqd.broker.topic("t")
    assert nsqd.post(f"/topic/{action}?topic=t").status == 200
    assert (nsqd.turn.finished, nsqd.turn.synced) == (1, 1)


def test_topic_actions(nsqd: Nsqd) -> None:
    topic = nsqd.broker.topic("t")
    nsqd.post("/pub?topic=t", b"x")
    nsqd.post("/topic/pause?topic=t")
    assert topic.paused
    nsqd.post("/topic/unpause?topic=t")
    assert not topic.paused
    assert topic.depth == 1
    nsqd.post("/topic/empty?topic=t")
    assert topic.depth == 0
    nsqd.post("/topic/delete?topic=t")
    assert nsqd.broker.topics == {}
