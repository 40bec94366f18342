from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from taskiq.abc.serializer import TaskiqSerializer

from nsqjobs.taskiq import NsqBroker
from nsqjobs.taskiq.formatter import TaskBody

TASK = {"task_id": "1", "task_name": "ship", "labels": {"n": "1"}, "labels_types": {"n": 2}, "args": [], "kwargs": {}}


class Strict(TaskiqSerializer):
    """As orjson, it reads bytes and no subclass of them."""

    def dumpb(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def loadb(self, value: bytes) -> Any:
        if type(value) is not bytes:
            raise TypeError(f"input must be bytes, not {type(value).__name__}")
        return json.loads(value)


class Delivery(SimpleNamespace):
    """A delivery that writes down what is asked of it."""

    def __init__(self, body: bytes) -> None:
        super().__init__(message=SimpleNamespace(body=body), said=[])

    def begin(self) -> None:
        self.said.append("begin")

    def bury(self, reason: str) -> None:
        self.said.append(reason)


def ship() -> None:
    """Do nothing."""


def broker() -> NsqBroker:
    made = NsqBroker().with_serializer(Strict())
    made.register_task(ship, "ship")
    return made


def said_about(body: bytes, *, error: type[Exception] | None = None) -> list[str]:
    """Return what the formatter says about a body, which it cannot read if there is an error."""
    delivery: Any = Delivery(body)
    if error is None:
        assert broker().formatter.loads(TaskBody(body, delivery)).task_id == "1"
    else:
        with pytest.raises(error):
            broker().formatter.loads(TaskBody(body, delivery))
    said: list[str] = delivery.said
    return said


def test_a_task_that_can_be_run_is_begun() -> None:
    assert said_about(json.dumps(TASK).encode()) == ["begin"]


def test_a_task_that_the_worker_does_not_know_is_buried() -> None:
    body = json.dumps({**TASK, "task_name": "sail"}).encode()
    assert said_about(body) == ["begin", "this worker has no task sail"]


@pytest.mark.parametrize("body", [b"", b"no JSON", b"{}", json.dumps({**TASK, "labels": {"n": "one"}}).encode()])
def test_what_cannot_be_read_is_buried(body: bytes) -> None:
    begin, reason = said_about(body, error=ValueError)
    assert (begin, reason[:14]) == ("begin", "cannot be read")


def test_a_body_of_another_origin_is_only_read() -> None:
    assert broker().formatter.loads(json.dumps(TASK).encode()).task_name == "ship"
