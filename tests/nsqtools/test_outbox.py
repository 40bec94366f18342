"""What is published of a row, and what is known of it after a try."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from nsqclient import ConnectError, OutcomeUnknown, PublishRejected, PublishUnsent, Unsupported
from nsqtools.outbox import OutboxRow, PublishOutcome, RelayCounts, Unpublishable, is_trouble, repeat_within, verdict_of
from nsqtools.outbox_sql import POSTGRES, SQLITE, Statements
from nsqtools.outbox_tables import is_database


def row(**columns: Any) -> OutboxRow:
    known = {"id": 1, "topic": "t", "body": b"x", "headers": None, "key": "k", "deliver_at": None, "delay": None}
    return OutboxRow(**{**known, **columns})


def test_a_row_as_it_is_published() -> None:
    headers = json.dumps({"a": "b"})
    it = row(body="ä", headers=headers, deliver_at="2026-01-01", delay=1.5).publication("")
    assert (it.topic, it.body, it.key, it.headers, it.delay) == ("t", "ä".encode(), "k", {"a": "b"}, 1.5)


def test_the_topic_of_rows_that_name_none() -> None:
    assert row(topic=None).publication("default").topic == "default"
    assert row(topic="").publication("default").topic == "default"
    assert row().publication("default").topic == "t"


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x"), "x"])
def test_bodies_of_several_types(body: object) -> None:
    assert row(body=body).publication("").body == b"x"


@pytest.mark.parametrize("headers", [None, "", "null", "{}"])
def test_no_headers(headers: object) -> None:
    assert row(headers=headers).publication("").headers == {}


def test_what_is_due_has_no_delay() -> None:
    assert row(deliver_at="2026-01-01", delay=-3.0).publication("").delay is None


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"topic": None}, "no topic"),
        ({"topic": "a b"}, "invalid topic name"),
        ({"body": b""}, "empty body"),
        ({"body": None}, "NoneType"),
        ({"body": 7}, "type int"),
        ({"headers": "{"}, "not JSON"),
        ({"headers": "[1]"}, "not a JSON object"),
        ({"headers": '{"a": 1}'}, "JSON object of strings"),
        ({"headers": '{"A": "b"}'}, "invalid header name"),
        ({"headers": json.dumps({"a": "x" * 5000})}, "more than"),
        ({"key": "a b"}, "invalid key"),
        ({"key": "k" * 65}, "invalid key"),
        ({"key": b"k"}, "invalid key"),
        ({"key": UUID(int=1)}, "invalid key"),
        ({"topic": b"t"}, "invalid topic name"),
        ({"deliver_at": "tomorrow"}, "not a time"),
    ],
)
def test_a_row_that_no_nsqd_would_accept(columns: dict[str, object], words: str) -> None:
    with pytest.raises(Unpublishable, match=words):
        row(**columns).publication("")


@pytest.mark.parametrize(
    ("error", "first", "repeated"),
    [
        (None, PublishOutcome.SENT, PublishOutcome.SENT),
        (PublishRejected("E_PUB_FAILED", "full"), PublishOutcome.NOT_STORED, PublishOutcome.NOT_STORED),
        (PublishRejected("E_DPUB_FAILED", "full"), PublishOutcome.NOT_STORED, PublishOutcome.NOT_STORED),
        (PublishRejected("E_BAD_MESSAGE", "too big"), PublishOutcome.REFUSED, PublishOutcome.REFUSED_LATER),
        (PublishUnsent("lost"), PublishOutcome.NOT_STORED, PublishOutcome.IN_DOUBT),
        (ConnectError("refused"), PublishOutcome.NOT_STORED, PublishOutcome.IN_DOUBT),
        (Unsupported("no keys"), PublishOutcome.NOT_STORED, PublishOutcome.IN_DOUBT),
        (OutcomeUnknown("lost", "k"), PublishOutcome.IN_DOUBT, PublishOutcome.IN_DOUBT),
        (RuntimeError("a bug"), PublishOutcome.IN_DOUBT, PublishOutcome.IN_DOUBT),
    ],
)
def test_a_failed_repeat_says_nothing_about_the_first_try(
    error: Exception | None, first: PublishOutcome, repeated: PublishOutcome
) -> None:
    assert verdict_of(error, is_repeat=False) is first
    assert verdict_of(error, is_repeat=True) is repeated


def test_a_refused_row_is_no_trouble_of_the_node() -> None:
    assert not is_trouble(None)
    assert not is_trouble(PublishRejected("E_BAD_TOPIC", ""))
    assert is_trouble(PublishRejected("E_PUB_FAILED", ""))
    assert is_trouble(ConnectError(""))


def test_a_repeat_begins_well_before_the_key_is_forgotten() -> None:
    assert repeat_within(600) == 540
    assert repeat_within(10) == 8


def test_the_line_names_only_what_has_happened() -> None:
    counts = RelayCounts(sent=30)
    assert counts.line(1.0, 10) == "30 rows sent  20/s"
    counts.repeated, counts.unknown = 2, 1
    assert counts.line(2.0, 10) == "30 rows sent  10/s  2 repeated  1 unknown"


@pytest.mark.parametrize("dialect", [POSTGRES, SQLITE], ids=["postgres", "sqlite"])
def test_a_table_may_be_in_a_schema(dialect: Any) -> None:
    statements = Statements("app.outbox", dialect)
    assert '"app"."outbox"' in statements.claim
    assert "outbox_to_send ON" in statements.schema


@pytest.mark.parametrize("name", ["", "a b", "a;b", 'a"b', "a.b.c", "1a"])
def test_a_name_that_would_need_quotes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="invalid table name"):
        Statements(name, SQLITE)


def test_databases() -> None:
    assert all(map(is_database, ["postgresql://x", "postgres://x", "postgresql+psycopg://x", "sqlite:///x"]))
    assert not any(map(is_database, ["", "x", "mysql://x"]))
