from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.durations import parse_long_duration, whole_milliseconds
from nsqcommon.options import (
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    format_duration,
    parse_duration,
    seconds,
)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("300ms", 300 * MILLISECOND),
        ("1.5h", 90 * MINUTE),
        ("1m30s500ms", 90 * SECOND + 500 * MILLISECOND),
        ("0", 0),
        ("-0", 0),
        ("+5s", 5 * SECOND),
        ("-1.5s", -1500 * MILLISECOND),
        (".5s", 500 * MILLISECOND),
        ("1.s", SECOND),
        ("2us", 2 * MICROSECOND),
        ("2µs", 2 * MICROSECOND),
        ("2\u03bcs", 2 * MICROSECOND),
        ("7ns", 7),
        ("0.1ns", 0),
        ("1h1h", 2 * HOUR),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, duration: int) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "5", "-", "s", ".s", "1x", "1s2", "1 s", " 1s", "1d", "١s", "9999999h", "1e3s", "--1s"]
)
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^parse error$"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "5", "d", "1.5d", "-1d", "1d-1h", "1h1d", "1d1", "999999999d", "1w"])
def test_other_long_durations_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a duration such as 500ms, 90s, 1h30m or 7d$"):
        parse_long_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5µs"),
        (25 * MILLISECOND, "25ms"),
        (2 * SECOND, "2s"),
        (MINUTE, "1m0s"),
        (HOUR, "1h0m0s"),
        (HOUR + 2 * MINUTE + 3 * SECOND + 4 * MILLISECOND, "1h2m3.004s"),
        (-SECOND, "-1s"),
    ],
)
def test_durations_are_printed_as_go_prints_them(duration: int, text: str) -> None:
    assert format_duration(duration) == text


@given(st.integers(-(2**62), 2**62))
def test_what_is_printed_can_be_read_back(duration: int) -> None:
    assert parse_duration(format_duration(duration)) == duration


def test_seconds_are_what_waits_take() -> None:
    assert seconds(250 * MILLISECOND) == 0.25


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (0.0, 0),
        (0.5, 500),
        (2.003, 2003),
        (1.001, 1001),
        (4.035, 4035),
        (0.0004, 1),
        (1.0001, 1001),
        (3600.0, 3_600_000),
    ],
)
def test_a_delay_in_milliseconds_is_never_shorter_than_in_seconds(delay: float, milliseconds: int) -> None:
    assert whole_milliseconds(delay) == milliseconds
