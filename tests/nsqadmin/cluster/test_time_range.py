"""The time that charts show: arguments of URLs, resolutions, parts of series, and round times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin import numbers
from nsqadmin.cluster.model import Series, Span
from nsqadmin.cluster.time_range import LENGTHS, LONGEST, SHORTEST, TimeRange, Window, cut, parse, spans_for, ticks

NOON = 1_700_049_600.0  # 2023-11-15 12:00:00 UTC
times = st.floats(1e6, 4e9)


odd = st.text("0123456789-:TWZz+. \0é", max_size=30) | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}Z?")


@given(odd, odd, odd)
def test_nothing_in_a_url_is_too_odd(span: str, begin: str, end: str) -> None:
    assert parse(span, begin, end).window(NOON).length > 0


moments = st.datetimes().map(lambda it: it.isoformat()) | st.sampled_from(
    ["0001-01-01T00:00+23:59", "9999-12-31T23:59:59-23:59", "2023-11-15", "nan", "1e9", " 2023-11-15T12:00Z "]
)


@given(moments, moments)
def test_a_range_is_neither_backwards_nor_endless(begin: str, end: str) -> None:
    window = parse("", begin, end).window(NOON)
    assert SHORTEST * 0.99 <= window.length <= LONGEST + 1
    assert len(ticks(window)) <= 6


@given(times, st.floats(10, LONGEST))
def test_a_range_comes_back_from_its_url(begin: float, length: float) -> None:
    asked = parse("", numbers.moment(begin), numbers.moment(begin + length))
    assert asked.begin == pytest.approx(int(begin), abs=1)
    assert parse("6h", numbers.moment(asked.begin), numbers.moment(asked.end)) == asked


def test_words_of_ranges_and_what_is_no_range() -> None:
    assert parse("6h", "", "") == TimeRange("6h")
    assert parse("1y", "", "") == parse("6", "2023-11-15T12:00:00Z", "") == parse("", "x", "y") == TimeRange("12m")
    assert TimeRange("24h").window(NOON) == Window(NOON - 86_400, NOON, True)


def test_times_without_a_zone_are_utc_and_the_order_does_not_matter() -> None:
    wanted = TimeRange("", NOON, NOON + 900)
    assert parse("", "2023-11-15T12:00", "2023-11-15T12:15") == wanted
    assert parse("", "2023-11-15T13:15:00+01:00", "2023-11-15T12:00:00Z") == wanted


@pytest.mark.parametrize(
    ("word", "span"),
    [("12m", Span.MINUTES), ("1h", Span.HOURS), ("6h", Span.HOURS), ("24h", Span.DAYS), ("7d", Span.DAYS)],
)
def test_the_finest_series_that_reaches_back_is_taken(word: str, span: Span) -> None:
    assert spans_for(TimeRange(word).window(NOON), now=NOON, interval=5.0)[0] is span
    window = Window(NOON - LENGTHS[word], NOON - LENGTHS[word] + 60, False)  # the same for its first minute alone
    assert spans_for(window, now=NOON, interval=5.0)[0] is span


def series(*values: float | None, end: float = NOON, step: float = 60.0) -> Series:
    parts = tuple(0.0 if value is None else value / 2 for value in values)
    partial = tuple(part > 0 for part in parts)
    return Series(end=end, step=step, values={"depth": values}, last_known={"depth": parts}, partial=partial)


def test_a_part_of_a_series_keeps_its_times() -> None:
    part = cut(series(1.0, None, 3.0, 4.0, 5.0), Window(NOON - 180, NOON - 60, False))
    assert part is not None
    assert (part.end, part.values["depth"]) == (NOON - 60, (None, 3.0, 4.0))
    assert (part.last_known["depth"], part.partial) == ((0.0, 1.5, 2.0), (False, True, True))
    assert cut(series(1.0, 2.0), Window(NOON - 7200, NOON - 3600, False)) is None
    assert cut(series(), Window(NOON - 60, NOON, True)) is None


@given(times, st.floats(10, LONGEST))
def test_ticks_are_round_in_the_window_and_not_too_many(begin: float, length: float) -> None:
    window = Window(begin, begin + length, False)
    found = ticks(window)
    assert len(found) <= 6
    assert all(0 <= tick.place <= 1 for tick in found)
    assert [tick.place for tick in found] == sorted(tick.place for tick in found)
    assert not any(character in tick.text for tick in found for character in "−-.")


@pytest.mark.parametrize(
    ("begin", "length", "texts"),
    [
        (NOON + 30, 720, ["12:05", "12:10"]),
        (NOON, 3600, ["12:00", "12:15", "12:30", "12:45", "13:00"]),
        (NOON, 40, ["12:00:00", "12:00:10", "12:00:20", "12:00:30", "12:00:40"]),
        (NOON, 86_400, ["12:00", "18:00", "16 Nov", "06:00", "12:00"]),
        (NOON, 604_800, ["16 Nov", "18 Nov", "20 Nov", "22 Nov"]),
    ],
)
def test_ticks_read_like_a_clock(begin: float, length: float, texts: list[str]) -> None:
    assert [tick.text for tick in ticks(Window(begin, begin + length, True))] == texts
