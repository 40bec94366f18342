"""Which parts of a body are hidden."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqadmin.messages.masking import BadMask, parse_masks

BODY = b'{"customer":{"email":"a@b.c","id":1},"items":[{"card":"4111111111111111"},{"card":"5"}]}'


def masked(*rules: str, body: bytes = BODY) -> Any:
    hidden = parse_masks(rules).masked(body)
    return None if hidden is None else json.loads(hidden)


def test_without_rules_nothing_is_shown() -> None:
    assert parse_masks(()).masked(BODY) is None


def test_fields_are_hidden_also_in_lists() -> None:
    document = masked("$.customer.email", "$.items.*.card", "$.nothing.here")
    assert document == {"customer": {"email": "***", "id": 1}, "items": [{"card": "***"}, {"card": "***"}]}


def test_a_whole_part_is_hidden() -> None:
    assert masked("$.customer")["customer"] == "***"


def test_expressions_hide_anywhere() -> None:
    assert masked(r"\d{16}")["items"][0]["card"] == "***"
    assert parse_masks([r"\d{4}"]).masked(b"pin 1234") == b"pin ***"


def test_with_paths_only_what_is_no_json_is_not_shown() -> None:
    assert parse_masks(["$.a"]).masked(b"a=secret") is None
    assert parse_masks(["x"]).masked(b"\xff\xfe") is None


def test_what_is_not_touched_keeps_its_spelling() -> None:
    assert parse_masks(["$.other"]).masked(b'{"a" : 1}') == b'{"a" : 1}'


def test_a_name_that_is_there_twice_hides_nothing_from_the_rules() -> None:
    assert parse_masks(["$.a.b"]).masked(b'{"a": {"b": "secret"}, "a": {}}') == b'{"a": {}}'
    assert parse_masks(["$.a"]).masked(b'{"a": "secret", "a": 1}') == b'{"a": "***"}'


def test_half_a_character_stays_as_it_is() -> None:
    assert parse_masks(["$.a"]).masked(rb'{"a": 1, "b": "\ud800"}') == rb'{"a": "***", "b": "\ud800"}'


@pytest.mark.parametrize("rule", ["$.a..b", "(", "$."])
def test_bad_rules_are_refused(rule: str) -> None:
    with pytest.raises(BadMask):
        parse_masks([rule])
