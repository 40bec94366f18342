"""An edit of a job's arguments changes these and nothing else, in the bodies that the libraries themselves write."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

import dramatiq
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from taskiq import TaskiqMessage

from nsqadmin.jobs.editing import BadArguments, CannotEdit, call_in
from nsqjobs.celery.envelope import encode
from tests.support.process import needs_module

needs_module("starlette")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda it: st.lists(it, max_size=3) | st.dictionaries(st.text(), it, max_size=3),
    max_leaves=8,
)
ARGS, KWARGS = st.lists(VALUES, max_size=3), st.dictionaries(st.text(), VALUES, max_size=3)
CELERY = Celery(broker="memory://", set_as_current=False)


def of_celery(args: list[Any], kwargs: dict[str, Any], *, base64: bool = True) -> bytes:
    """Return a message as Celery and kombu make it, which is Base64 unless the transport says otherwise."""
    made = CELERY.amqp.task_protocols[2]("an-id", "charge", args, kwargs)
    with CELERY.connection_for_write() as connection:
        channel: Any = connection.default_channel
        text = json.dumps(made.body)
        body, encoding = channel.encode_body(text, "base64" if base64 else None)
    headers = {**made.headers, "argsrepr": repr(tuple(args)), "kwargsrepr": repr(kwargs)}
    return encode(
        {
            "body": body,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": headers,
            "properties": {**({"body_encoding": encoding} if encoding else {}), "delivery_info": {}},
        }
    )


def celerys_call(body: bytes) -> Any:
    document = json.loads(body)
    inner = document["body"]
    return json.loads(b64decode(inner) if document["properties"].get("body_encoding") else inner)


def of_dramatiq(args: list[Any], kwargs: dict[str, Any]) -> bytes:
    message: dramatiq.Message[Any] = dramatiq.Message("q", "a", tuple(args), kwargs, options={"eta": 5})
    return bytes(message.encode())


def of_taskiq(args: list[Any], kwargs: dict[str, Any]) -> bytes:
    message = TaskiqMessage(task_id="1", task_name="a", labels={"x": "1"}, args=args, kwargs=kwargs)
    return message.model_dump_json().encode()


def of_django(args: list[Any], kwargs: dict[str, Any]) -> bytes:
    document = {"id": "1", "task": "shop.charge", "run_after": None, "args": args, "kwargs": kwargs}
    return json.dumps(document, separators=(",", ":")).encode()


PLAIN = {"dramatiq": of_dramatiq, "taskiq": of_taskiq, "django-tasks": of_django}


@given(args=ARGS, kwargs=KWARGS, new=ARGS)
@pytest.mark.parametrize("library", PLAIN)
def test_an_edit_changes_the_arguments_only(
    library: str, args: list[Any], kwargs: dict[str, Any], new: list[Any]
) -> None:
    body = PLAIN[library](args, kwargs)
    call = call_in(body, library)
    assert json.loads(call.args) == args
    assert call.edited(call.args, call.kwargs) == body
    assert call.edited(call.args.replace("\n", "\n  "), call.kwargs) == body  # spaces are no edit
    edited = call.edited(json.dumps(new), call.kwargs)
    assert json.loads(edited) == json.loads(body) | {"args": new}


@pytest.mark.parametrize("base64", [False, True])
@given(args=ARGS, kwargs=KWARGS, new=KWARGS)
def test_an_edit_of_celerys_json_in_json(
    base64: bool, args: list[Any], kwargs: dict[str, Any], new: dict[str, Any]
) -> None:
    body = of_celery(args, kwargs, base64=base64)
    call = call_in(body, "celery")
    assert json.loads(call.kwargs) == kwargs
    assert call.edited(call.args, call.kwargs) == body
    edited = call.edited(call.args, json.dumps(new))
    assert celerys_call(edited) == [args, new, celerys_call(body)[2]]
    old, now = json.loads(body), json.loads(edited)
    for document in (old, now):
        document.pop("body")
        document["headers"].pop("argsrepr"), document["headers"].pop("kwargsrepr")
    assert now == old


def test_celerys_worker_logs_the_edited_arguments() -> None:
    edited = call_in(of_celery([17], {"to": "ana"}), "celery").edited("[18]", '{"to": "ben"}')
    headers = json.loads(edited)["headers"]
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("(18,)", "{'to': 'ben'}")


@pytest.mark.parametrize("library", ["celery", "taskiq"])
def test_arguments_of_any_depth_are_edited_or_refused(library: str) -> None:
    call = call_in(of_celery([17], {}) if library == "celery" else b'{"args":[17],"kwargs":{}}', library)
    for depth in range(900, 1_000):  # the interpreter's limit is reached somewhere in there
        with suppress(BadArguments):
            call.edited("[" * depth + "]" * depth, "{}")
    with pytest.raises(BadArguments, match="nested too deeply"):
        call.edited("[" * 100_000 + "]" * 100_000, "{}")


def test_what_nothing_would_write_again_stays_as_it_was() -> None:
    """Numbers that Python writes in another way, and escapes."""
    body = b'{ "args": [1.10, 1E2, -0, "\\u0041/\\/"], "kwargs": {"n": 10000000000000000000000001}, "x": 2.50 }'
    call = call_in(body, "taskiq")
    assert call.args == '[1.10, 1E2, -0, "\\u0041/\\/"]'  # indented, it would be other numbers
    assert call.edited(call.args, '{"n": 3.10}') == body.replace(b'{"n": 10000000000000000000000001}', b'{"n":3.10}')


def test_text_that_deceives_is_shown_as_escapes() -> None:
    body = json.dumps({"args": ["a\u202eb\x00\u200b", "\ud800"], "kwargs": {}}).encode()
    call = call_in(body, "taskiq")
    assert json.loads(call.args) == ["a\u202eb\x00\u200b", "\ud800"]
    assert call.args.isascii()
    assert call.edited(call.args, call.kwargs) == body


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ("[1,]", "{}", "args: line 1, column "),
        ("[1]", "[]", "kwargs: expected {...}"),
        ("{}", "{}", "args: expected [...]"),
        ("[NaN]", "{}", "args: NaN is not JSON"),
        ("[1e999]", "{}", "args: 1e999 is too big"),
        ("[]", '{"a": 1, "a": 2}', "kwargs: the name 'a' is there twice"),
        ("[" * 100_000, "{}", "args: nested too deeply"),
        ("", "{}", "args: line 1"),
    ],
)
def test_wrong_arguments_are_refused(args: str, kwargs: str, why: str) -> None:
    with pytest.raises(BadArguments) as refused:
        call_in(b'{"args": [], "kwargs": {}}', "taskiq").edited(args, kwargs)
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    ("body", "library", "why"),
    [
        (b"\x80\x04pickle", "celery", "usual form of celery"),
        (
            encode({"body": "gAR9", "content-type": "application/x-python-serialize", "properties": {}}),
            "celery",
            "x-python-serialize",
        ),
        (b'{"args": [], "kwargs": {}, "args": [1]}', "taskiq", "'args' is there twice"),
        (b'{"args": {}, "kwargs": []}', "taskiq", "usual form"),
        (b"\x93\x01\x02\x03", "", "usual form of a job queue"),
        (b'{"args": [%b], "kwargs": {}}' % (b"1," * 600_000), "taskiq", "larger than 1 MiB"),
        (b"[" * 100_000, "dramatiq", "usual form"),
    ],
)
def test_what_cannot_be_written_again_exactly_is_refused(body: bytes, library: str, why: str) -> None:
    with pytest.raises(CannotEdit) as refused:
        call_in(body, library)
    assert why in str(refused.value)


@given(
    library=st.sampled_from(["celery", "dramatiq"]),
    body=st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda it: st.lists(it) | st.dictionaries(st.sampled_from(["args", "kwargs", "body", "properties", "x"]), it),
    ).map(lambda it: json.dumps(it).encode()),
)
def test_any_body_is_edited_or_refused(library: str, body: bytes) -> None:
    try:
        call = call_in(body, library)
    except CannotEdit:
        return
    assert call.edited(call.args, call.kwargs) == body
