"""Searching messages: text and conditions, without executing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from nsqadmin.messages.filters import LONGEST, BadFilter, parse_filter


@dataclass
class AMessage:
    size: int = 100
    sequence: int | None = 7
    delay: float = 0.0
    key: str = "order-17"
    headers: Mapping[str, str] = field(default_factory=lambda: {"traceparent": "00-0af7-01", "ce.type": "Order"})


BODY = b'{"id": 12, "state": "Paid", "ok": true, "none": null, "customer": {"country": "DE"}, "items": [{"price": 9.5}], "at": "2026-03-01"}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "paid",
        '"country"',
        "customer.country = DE",
        "customer.country=DE",
        "customer.country != FR",
        "id = 12",
        "id >= 12 and id < 13",
        "items.0.price > 9",
        "state ~ AI",
        "ok = true",
        "none = null",
        "missing != 1",
        'at >= "2026-02-28" AND at < 2026-04-01',
        "header.traceparent = 00-0af7-01",
        "header.Traceparent ~ 0AF7 and id = 12",
        "header.ce.type = Order",
        "header.missing != 1",
        "@size > 50",
        "@sequence = 7",
        "ORDER-17",
        "@key = order-17",
        "@key ~ ORDER and id = 12",
    ],
)
def test_what_is_found(text: str) -> None:
    assert parse_filter(text).matches(BODY, AMessage())


@pytest.mark.parametrize(
    "text",
    [
        "unpaid",
        "customer.country = FR",
        "customer = DE",
        "id > twelve",
        "state > 5 and id = 12 and ok = false",
        "missing = 1",
        "ok > 0",
        "items.7.price > 0",
        "items.x.price > 0",
        "items.².price > 0",
        "@size > 500",
        "@delay > 0",
    ],
)
def test_filters_that_do_not_match(text: str) -> None:
    assert not parse_filter(text).matches(BODY, AMessage())


def test_a_body_that_is_no_json_has_no_fields() -> None:
    assert not parse_filter("id = 1").matches(b"id = 1", AMessage())
    assert not parse_filter("id = 1").matches(b"[" * 100_000, AMessage())


def test_what_looks_like_code_is_text() -> None:
    assert parse_filter("__import__('os')").text == b"__import__('os')"


@pytest.mark.parametrize(
    "text", ["id = 1 or id = 2", "id = 1 and", "@mood = good", "x" * (LONGEST + 1), "id = 1 id = 2"]
)
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(BadFilter):
        parse_filter(text)


def test_headers_are_searched_whatever_the_body_is() -> None:
    assert parse_filter("header.traceparent ~ 0af7").matches(b"no JSON", AMessage())
    assert not parse_filter("header.traceparent = x").matches(b'{"header": {"traceparent": "x"}}', AMessage())
    assert not parse_filter("header.missing = x").matches(BODY, AMessage())
    assert parse_filter("header.traceparent ~ 0af7").terms == ()


def test_numbers_are_compared_with_all_their_digits() -> None:
    body = b'{"id": 9007199254740993, "price": 0.1, "n": 5}'
    for text in ("id = 9007199254740993", "id > 9007199254740992", "price = 0.1", "n = 5.0", "n = +5", "n < 5.5"):
        assert parse_filter(text).matches(body, AMessage()), text
    for text in ("id = 9007199254740992", "id > 9007199254740993", "n = 5_0", "n = 0x5"):
        assert not parse_filter(text).matches(body, AMessage()), text


def test_what_a_message_cannot_match_is_known_without_its_body() -> None:
    wanted = parse_filter("header.ce.type = Payment and id = 12")
    assert not wanted.may_match(AMessage())
    assert parse_filter("header.ce.type = Order and id = 99").may_match(AMessage())
    assert wanted.paths == {("id",)}
    assert parse_filter("").is_empty
    assert not wanted.is_empty
