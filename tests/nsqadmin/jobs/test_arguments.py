"""Arguments in the bodies of all libraries, as these write them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import dramatiq
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.jobs.arguments import Arguments, arguments_of
from nsqjobs.celery.envelope import encode
from tests.support.process import needs_module

needs_module("starlette")


def celery_message(args: tuple[object, ...], kwargs: dict[str, object], **more: object) -> bytes:
    """Return the body that Celery's own code makes for a task."""
    app = Celery(broker="memory://", set_as_current=False)
    message = app.amqp.task_protocols[2]("an-id", "charge", args, kwargs)
    body = json.dumps(message.body)
    return encode(
        {
            "body": body,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {},
            "properties": {"delivery_info": {}},
            **more,
        }
    )


def test_celerys_json_in_json() -> None:
    found = arguments_of(celery_message((17, "é"), {"currency": "EUR"}), "celery")
    assert json.loads(found.args) == [17, "é"]
    assert json.loads(found.kwargs) == {"currency": "EUR"}
    assert (found.options, found.problem) == ("", "")


def test_celerys_base64() -> None:
    inner = b64encode(b'[[1], {}, {"chain": ["next"]}]').decode()
    found = arguments_of(
        celery_message((), {}, body=inner, properties={"body_encoding": "base64", "delivery_info": {}}), "celery"
    )
    assert json.loads(found.args) == [1]
    assert json.loads(found.options) == {"chain": ["next"]}


def test_celerys_pickle_is_never_read() -> None:
    found = arguments_of(celery_message((), {}, **{"content-type": "application/x-python-serialize"}), "celery")
    assert "x-python-serialize" in found.problem


def test_dramatiqs_messages() -> None:
    message: dramatiq.Message[Any] = dramatiq.Message(
        queue_name="q", actor_name="a", args=(1,), kwargs={"x": 2}, options={"eta": 5}
    )
    found = arguments_of(message.encode(), "dramatiq")
    assert [json.loads(it) for it in (found.args, found.kwargs, found.options)] == [[1], {"x": 2}, {"eta": 5}]


def test_taskiqs_and_djangos_messages() -> None:
    found = arguments_of(b'{"task_id": "1", "labels": {"_retries": "1"}, "args": [1], "kwargs": {}}', "taskiq")
    assert (json.loads(found.args), json.loads(found.options)) == ([1], {"_retries": "1"})
    assert arguments_of(b'{"id": "1", "args": [1], "kwargs": {"x": 2}}', "django-tasks").problem == ""


def test_bodies_that_may_not_be_seen_have_no_arguments() -> None:
    assert "payload" in arguments_of(None, "celery").problem


@pytest.mark.parametrize("library", ["celery", "dramatiq", "taskiq", "django-tasks", ""])
@given(
    body=st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda it: st.lists(it) | st.dictionaries(st.sampled_from(["args", "kwargs", "body", "properties", "x"]), it),
    ).map(lambda it: json.dumps(it).encode())
)
def test_any_body_has_arguments_or_a_problem(library: str, body: bytes) -> None:
    found = arguments_of(body, library)
    assert isinstance(found, Arguments)
    assert bool(found.problem) != bool(found.args)


def test_a_deep_body_is_a_problem() -> None:
    assert arguments_of(b"[" * 100_000, "celery").problem
