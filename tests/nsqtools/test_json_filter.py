"""Which messages nsq_to_nsq forwards, and which of their fields."""

from __future__ import annotations

import pytest

from nsqtools.json_filter import Dropped, JsonFilter


def test_without_a_filter_nothing_is_read() -> None:
    assert JsonFilter().apply(b"\xff not JSON") == b"\xff not JSON"


@pytest.mark.parametrize(
    "body", [b"x", b'{"a":1} x', b"[1]", b'"x"', b"3", b"", b"\xff", b"NaN", '{"a":1}'.encode("utf-16"), b"[" * 100_000]
)
def test_what_is_no_object_is_dropped(body: bytes) -> None:
    assert JsonFilter(field="a").apply(body) is Dropped.NOT_JSON
    assert JsonFilter(whitelist=["a"]).apply(body) is Dropped.NOT_JSON


@pytest.mark.parametrize(
    ("value", "body", "passes"),
    [
        ("", b'{"a":null}', True),
        ("", b'{"b":1}', Dropped.OTHER),
        ("x", b'{"b":1}', Dropped.NO_FIELD),
        ("x", b"null", Dropped.NO_FIELD),
        ("x", b'{"a":"x"}', True),
        ("x", b'{"a":"y"}', Dropped.OTHER),
        ("1", b'{"a":"1"}', True),
        ("1.0", b'{"a":"1"}', Dropped.OTHER),
        ("1", b'{"a":1}', True),
        ("1e0", b'{"a":1.0}', True),
        ("x", b'{"a":1}', Dropped.OTHER),
        ("true", b'{"a":true}', Dropped.OTHER),
        ("null", b'{"a":null}', Dropped.OTHER),
        ("[]", b'{"a":[]}', Dropped.OTHER),
        ("{}", b'{"a":{}}', Dropped.OTHER),
        ("x", b'{"b":{"a":"x"}}', Dropped.NO_FIELD),
    ],
)
def test_a_required_field(value: str, body: bytes, passes: bool | Dropped) -> None:
    assert JsonFilter("a", value).apply(body) == (body if passes is True else passes)


def test_what_passes_is_the_same_byte_for_byte() -> None:
    body = b' { "a" : 1.50, "b":"\\u00e9" } '
    assert JsonFilter("a", "1.5").apply(body) == body


@pytest.mark.parametrize(
    ("body", "forwarded"),
    [
        (b'{"c":3, "b":2, "a":1}', b'{"a":1,"b":2}'),
        (b'{"c":3}', b"{}"),
        (b"null", b"{}"),
        (b'{"a":9007199254740993}', b'{"a":9007199254740993}'),
        (b'{"a":1e21,"b":1.50}', b'{"a":1e21,"b":1.50}'),
        (b'{"a":{"z":1,"y":[true,null,-0.0]}}', b'{"a":{"y":[true,null,-0.0],"z":1}}'),
        (b'{"a":"<&>\\u00e9\\n\\""}', b'{"a":"\\u003c\\u0026\\u003e\xc3\xa9\\n\\""}'),
        (b'{"a":"\\ud800x"}', b'{"a":"\xef\xbf\xbdx"}'),
        (b'{"a":"\xff"}', b'{"a":"\xef\xbf\xbd"}'),
    ],
)
def test_listed_fields_only(body: bytes, forwarded: bytes) -> None:
    assert JsonFilter(whitelist=["b", "a", "a"]).apply(body) == forwarded
