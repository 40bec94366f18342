from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from taskiq.abc.serializer import TaskiqSerializer

from nsqjobs.taskiq import NsqBroker
from nsqjobs.taskiq.formatter import TaskBody
from nsqjobs.taskiq.labels import group_of

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


# Groups


def sent(broker: NsqBroker, *args: Any, labels: dict[str, Any] | None = None, **kwargs: Any) -> str | None:
    """Return the group of a message for a call of the task `charge`."""
    task = broker.find_task("charge")
    assert task is not None
    message = broker.formatter.dumps(task.kicker().with_labels(**(labels or {}))._prepare_message(*args, **kwargs))
    assert "nsq_group_by" not in message.labels
    read = broker.formatter.loads(message.message)
    assert read.labels.get("nsq_group") == message.labels.get("nsq_group"), "a retry has the labels of the message"
    return group_of(message.labels)


@pytest.mark.parametrize("by", ["account", lambda account, amount: account])
def test_a_call_or_the_task_says_the_group(by: Any) -> None:
    broker = NsqBroker()

    @broker.task(task_name="charge", nsq_group_by=by)
    def charge(account: str, amount: int) -> None: ...

    assert sent(broker, "ana", 5) == "ana"
    assert sent(broker, account="ben", amount=5) == "ben"
    assert sent(broker, "ana", 5, labels={"nsq_group": "cleo"}) == "cleo"
    with pytest.raises(ValueError, match="invalid group"):
        sent(broker, "x" * 129, 5)


def test_a_task_without_a_rule_has_no_group_unless_the_call_says_one() -> None:
    broker = NsqBroker()

    @broker.task(task_name="charge")
    def charge(account: str) -> None: ...

    assert sent(broker, "ana") is None
    assert sent(broker, "ana", labels={"nsq_group": 7}) == "7"
