"""Values of any parser as JSON: the forms of Protobuf's JSON, within bounds."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcommon.bodies.as_json import TooMuch, as_json
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x00\xff", "AP8="),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (2**63, 2**63),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "2026-03-01T12:00:00Z"),
        (datetime(2026, 3, 1, 12, microsecond=5000), "2026-03-01T12:00:00.005000"),
        (datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))), "2026-03-01T12:00:00+02:00"),
        (date(2026, 3, 1), "2026-03-01"),
        (time(12, 30), "12:30:00"),
        (timedelta(seconds=1.5), "1.5s"),
        (Decimal("12.30"), 12.3),
        (Decimal("3E+2"), 300),
        (Decimal("12345678901234567.89"), "12345678901234567.89"),
        (Decimal("1E+500"), "1E+500"),
        (Decimal("NaN"), "NaN"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (msgspec.msgpack.Ext(5, b"\x01"), {"ext": 5, "data": "AQ=="}),
        ({1: "a", False: "b", None: "c", b"\x01": "d"}, {"1": "a", "false": "b", "null": "c", "AQ==": "d"}),
        ((1, [2, {"a": None}]), [1, [2, {"a": None}]]),
    ],
)
def test_each_value_has_a_form_in_json(value: object, shown: object) -> None:
    found = as_json(value, most=100)
    assert found == shown
    assert json.loads(json.dumps(found, allow_nan=False)) == shown


def test_bytes_can_be_hidden() -> None:
    assert as_json({"a": b"4929", "b": [b""]}, most=9, hidden_bytes="***") == {"a": "***", "b": ["***"]}
    hidden = as_json({b"email": "ada", (b"email",): ["ada"], 1: "x"}, most=9, hidden_bytes="***")
    assert "ada" not in str(hidden)
    assert hidden["1"] == "x"


def test_values_are_counted_and_levels_too() -> None:
    assert as_json([[1], [2]], most=4) == [[1], [2]]
    with pytest.raises(TooMuch, match="has more than 3 values"):
        as_json([[1], [2]], most=3)
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TooMuch, match="is nested deeper than 100 levels"):
        as_json(deep, most=1000)
    with pytest.raises(TooMuch, match="has a number of more than 4,096 bits"):
        as_json(1 << 5000, most=9)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.decimals() | st.datetimes() | st.timedeltas(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(value=VALUES)
@settings(max_examples=examples(40), deadline=None)
def test_any_value_becomes_json_or_is_too_much(value: object) -> None:
    try:
        found = as_json(value, most=50)
    except TooMuch:
        return
    json.dumps(found, allow_nan=False)
