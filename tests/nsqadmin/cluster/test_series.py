"""The history of numbers, in memory."""

from __future__ import annotations

from array import array
from math import nan

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.model import CLUSTER_SERIES, Metric, Span, channel_series
from nsqadmin.cluster.series import SeriesStore, row_of

KEY = channel_series("t", "c")
START = 1_700_000_040.0  # at the beginning of a minute


def filled(*depths: float, step: float = 5.0, most_coarse: int = 10, key: str = KEY) -> SeriesStore:
    store = SeriesStore(most_coarse=most_coarse)
    for number, depth in enumerate(depths):
        store.put([(key, row_of(depth=depth))], now=START + number * step)
    return store


def test_values_come_back_as_they_were_put() -> None:
    series = filled(1, 2, 3).series(KEY, Span.MINUTES)
    assert series is not None
    assert (series.end, series.step) == (START + 10, 5.0)
    assert series.values["depth"] == (1.0, 2.0, 3.0)
    assert "bytes" not in series.values


def test_what_was_always_zero_has_no_ring_and_is_zero_all_the_same() -> None:
    store = filled(0, 0, 0)
    assert len(store) == 0
    series = store.series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["depth"] == (0.0, 0.0, 0.0)


def test_when_it_wakes_up_its_zeros_are_remembered() -> None:
    series = filled(0, 0, 7).series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["depth"] == (0.0, 0.0, 7.0)


def test_what_was_not_there_is_unknown() -> None:
    store = filled(1, 2)
    store.put([], now=START + 10)
    store.put([(KEY, row_of(depth=4))], now=START + 15)
    series = store.series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["depth"] == (1.0, 2.0, None, 4.0)


def test_it_goes_round() -> None:
    series = filled(*range(1, 301)).series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["depth"] == tuple(float(it) for it in range(157, 301))


def test_recent_values_of_one_metric() -> None:
    store = filled(1, 2, 3, 4)
    assert store.recent(KEY, Metric.DEPTH, 10) == [2.0, 3.0, 4.0]
    assert store.recent("channel:t/other", Metric.DEPTH, 10) == []


def test_a_minute_becomes_its_mean_and_ten_of_them_too() -> None:
    store = filled(*[float(number // 12) for number in range(12 * 25 + 1)])
    hours = store.series(KEY, Span.HOURS)
    days = store.series(KEY, Span.DAYS)
    assert hours is not None
    assert days is not None
    # Nothing changed in the first minute, so history begins with the second one.
    assert hours.values["depth"] == tuple(float(it) for it in range(1, 25))
    assert hours.step == 60.0
    assert days.step == 600.0
    assert all(it is not None for it in days.values["depth"])


@pytest.mark.parametrize("seconds", [61.0, 90.0, 150.0])
def test_samples_further_apart_than_a_minute_leave_no_gaps_in_hours(seconds: float) -> None:
    hours = filled(*[5.0] * 60, step=seconds).series(KEY, Span.HOURS)
    assert hours is not None
    assert set(hours.values["depth"][2:]) == {5.0}  # from the second sample on


def test_a_pause_of_nsqadmin_is_a_gap_all_the_same() -> None:
    store = filled(*[5.0] * 13)
    store.put([(KEY, row_of(depth=5.0))], now=START + 600)
    store.put([(KEY, row_of(depth=5.0))], now=START + 660)
    hours = store.series(KEY, Span.HOURS)
    assert hours is not None
    assert hours.values["depth"].count(None) == 8


@pytest.mark.parametrize("minutes", [2, 5, 30])
def test_samples_further_apart_than_a_minute_still_make_days(minutes: int) -> None:
    store = filled(*[5.0] * (24 * 60 // minutes), step=60.0 * minutes)
    days = store.series(KEY, Span.DAYS)
    assert days is not None
    assert 5.0 in days.values["depth"]


@pytest.mark.parametrize("back", [600, 3600, 86_400])
def test_after_the_clock_was_set_back_no_row_is_at_another_time(back: int) -> None:
    store = SeriesStore(most_coarse=10)
    for minute in range(400):
        store.put([(KEY, row_of(depth=minute + 1))], now=START + minute * 60)
    for minute in range(400, 410):
        store.put([(KEY, row_of(depth=1_000))], now=START + minute * 60 - back)
    series = store.series(KEY, Span.HOURS)
    assert series is not None
    values = series.values["depth"]
    first = (series.end - START) / 60 - len(values)
    known = {round(first + at): value for at, value in enumerate(values) if value is not None}
    assert 1_000 in known.values()
    assert all(value in (minute + 1, 1_000) for minute, value in known.items())


def test_only_so_many_have_hours_and_days_but_the_cluster_always() -> None:
    store = SeriesStore(most_coarse=2)
    for number in range(13):
        rows = [(channel_series("t", str(name)), row_of(depth=1)) for name in range(5)]
        store.put([*rows, (CLUSTER_SERIES, row_of(depth=0))], now=START + 5 * number)
    have_hours = [store.series(channel_series("t", str(name)), Span.HOURS) is not None for name in range(5)]
    assert have_hours == [True, True, False, False, False]
    assert store.series(CLUSTER_SERIES, Span.HOURS) is not None


def test_who_is_lively_takes_the_place_of_who_was_still_for_an_hour() -> None:
    store = SeriesStore(most_coarse=1)
    for minute in range(70):
        rows = [("topic:old", row_of(depth=1 if minute < 2 else 0)), ("topic:new", row_of(depth=minute > 2))]
        store.put(rows, now=START + 60 * minute)
    assert store.series("topic:old", Span.HOURS) is None
    assert store.series("topic:new", Span.HOURS) is not None


def test_what_is_gone_for_long_is_forgotten_and_rings_of_zeros_too() -> None:
    store = filled(1, 2)
    for number in range(300):
        store.put([("topic:t", row_of(depth=1 if number == 0 else 0))], now=START + 10 + 5 * number)
    assert store.series(KEY, Span.MINUTES) is None
    assert len(store) == 0


def test_it_survives_a_restart() -> None:
    before = filled(*[5.0] * 200)
    after = SeriesStore(most_coarse=10)
    after.load(before.dump())
    assert after.series(KEY, Span.HOURS) == before.series(KEY, Span.HOURS)


def test_unknown_rates_are_unknown() -> None:
    store = SeriesStore(most_coarse=0)
    store.put([(KEY, row_of(depth=3, incoming=None))], now=START)
    store.put([(KEY, row_of(depth=3, incoming=2.0))], now=START + 5)
    series = store.series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["incoming"] == (None, 2.0)


LAST_KNOWN = {Metric.DEPTH: 40.0}


def test_a_silent_node_makes_no_gap_and_its_part_is_known_as_last_known() -> None:
    store = filled(100, 100)
    store.put([(KEY, row_of(depth=100, incoming=5.0, is_partial=True, last_known=LAST_KNOWN))], now=START + 10)
    store.put([(KEY, row_of(depth=130))], now=START + 15)
    series = store.series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["depth"] == (100.0, 100.0, 100.0, 130.0)
    assert series.last_known == {"depth": (0.0, 0.0, 40.0, 0.0)}
    assert series.partial == (False, False, True, False)
    assert store.recent(KEY, Metric.DEPTH, 10) == [100.0, 100.0, 130.0]


def test_without_silent_nodes_no_series_has_a_last_known_part() -> None:
    series = filled(1, 2).series(KEY, Span.MINUTES)
    assert series is not None
    assert (series.last_known, series.partial) == ({}, ())


samples = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.booleans()), min_size=2, max_size=80)


@given(samples, st.sampled_from([5.0, 20.0, 61.0]))
def test_the_band_and_the_known_part_are_the_sum_at_each_resolution(
    depths: list[tuple[int, int, bool]], step: float
) -> None:
    """The known part is what the answering nodes have, so it is neither negative nor more than the sum."""
    store = SeriesStore(most_coarse=1)
    for number, (known, old, is_partial) in enumerate(depths):
        parts = {Metric.DEPTH: float(old)} if is_partial else None
        row = row_of(depth=known + (old if is_partial else 0), is_partial=is_partial, last_known=parts)
        store.put([(KEY, row)], now=START + number * step)
    for span in Span:
        series = store.series(KEY, span)
        if series is None:
            continue
        total = series.values["depth"]
        band = series.last_known.get("depth", (0.0,) * len(total))
        assert all(part <= value * 1.0001 for value, part in zip(total, band, strict=True) if value is not None)
        if span is Span.MINUTES:
            there = [(float(known), float(old)) for known, old, is_partial in depths for old in [old * is_partial]]
            split = [(value - part, part) for value, part in zip(total, band, strict=True) if value is not None]
            assert split == there[-len(split) :]


def test_a_minute_has_the_mean_of_its_last_known_parts() -> None:
    store = SeriesStore(most_coarse=10)
    for number in range(12 * 4):
        minute, second = divmod(number, 12)
        is_partial = minute == 1 or (minute == 2 and second < 3)
        row = row_of(depth=100.0, is_partial=is_partial, last_known=LAST_KNOWN if is_partial else None)
        store.put([(KEY, row)], now=START + 5 * number)
    series = store.series(KEY, Span.HOURS)
    assert series is not None
    assert series.values["depth"] == (100.0, 100.0, 100.0)
    assert series.last_known == {"depth": (0.0, 40.0, 10.0)}
    assert series.partial == (False, True, True)


def test_last_known_parts_survive_a_restart_and_take_no_room_when_they_are_gone() -> None:
    before = SeriesStore(most_coarse=10)
    for number in range(60):
        row = row_of(depth=100.0, is_partial=number < 30, last_known=LAST_KNOWN if number < 30 else None)
        before.put([(KEY, row)], now=START + 5 * number)
    after = SeriesStore(most_coarse=10)
    after.load(before.dump())
    assert after.series(KEY, Span.HOURS) == before.series(KEY, Span.HOURS)
    hours, _ = before.dump()["coarse"][KEY]
    assert len(hours[4]) == 4 * 4 * 360
    for number in range(60, 60 + 12 * 60 * 24 * 8, 120):  # eight days in steps of ten minutes
        before.put([(KEY, row_of(depth=100.0))], now=START + 5 * number)
    hours, days = before.dump()["coarse"][KEY]
    assert (hours[4], days[4]) == (b"", b"")


def test_only_one_metric_can_be_read() -> None:
    series = filled(1, 2).series(KEY, Span.MINUTES, (Metric.DEPTH,))
    assert series is not None
    assert series.values == {"depth": (1.0, 2.0)}


@pytest.mark.parametrize("format", [1, 2])
@pytest.mark.parametrize(("key", "metrics"), [("topic:t", 4), (KEY, 9), ("node:n1:4151", 10), (CLUSTER_SERIES, 13)])
def test_a_file_of_an_earlier_release_is_read(format: int, key: str, metrics: int) -> None:
    """Its rows have eleven metrics whatever their key, and in format 2 a mark of partial ones."""
    width, minute = 10 + format, int(START) // 60
    rows = array("f", [0.0] * width * 360)
    at = minute % 360 * width
    rows[at : at + 11] = array("f", range(11))
    store = SeriesStore(most_coarse=10)
    days = (1008, minute // 10, minute // 10 - 1, bytes(4 * width * 1008))
    store.load({"format": format, "coarse": {key: ((360, minute, minute, rows.tobytes()), days)}})
    series = store.series(key, Span.HOURS)
    assert series is not None
    assert len(series.values) == metrics
    assert (series.values["depth"], series.values["incoming"]) == ((0.0,), (5.0,))
    if key == CLUSTER_SERIES:
        assert (series.values["findings"], series.values["problems"]) == ((10.0,), (None,))


def test_a_file_with_rows_is_read() -> None:
    """The third format has the metrics of the key, and a mark of partial rows."""
    width, minute = 5, int(START) // 60
    rows = array("f", [nan] * width * 360)
    for number, row in enumerate(([7.0, 0.0, 2.0, 0.0, 0.0], [nan] * 5, [8.0, 0.0, 0.0, 0.0, 1.0])):
        at = (minute + number) % 360 * width
        rows[at : at + width] = array("f", row)
    days = (1008, minute // 10, minute // 10 - 1, bytes(4 * width * 1008), b"")
    store = SeriesStore(most_coarse=10)
    store.load({"format": 3, "coarse": {"topic:t": ((360, minute, minute + 2, rows.tobytes(), b""), days)}})
    series = store.series("topic:t", Span.HOURS)
    assert series is not None
    assert series.values == {
        "depth": (7.0, None, 8.0),
        "backend_depth": (0.0, None, 0.0),
        "incoming": (2.0, None, 0.0),
        "bytes": (0.0, None, 0.0),
    }
    assert series.partial == (False, False, True)


def test_a_metric_that_is_zero_takes_no_room() -> None:
    steady = filled(*[5.0] * 130)
    hours, days = steady.dump()["coarse"][KEY]
    assert [sum(map(bool, columns)) for columns in (hours[3], days[3])] == [1, 1]
    for number in range(130, 130 + 7 * 144 + 2 * 144):  # ten minutes apart, for more than a week
        steady.put([(KEY, row_of(finished=1.0))], now=START + 5 * 130 + 600 * (number - 130))
    hours, days = steady.dump()["coarse"][KEY]
    for columns in (hours[3], days[3]):
        assert sum(map(bool, columns[:-1])) == 1, "the depth has become zero, but takes room"


VALUES = st.sampled_from([0.0, 0.0, 0.0, 1.0, 4.0, None])
SAMPLES = st.none() | st.tuples(VALUES, VALUES, st.booleans())


@given(st.lists(SAMPLES, min_size=1, max_size=200), st.booleans())
def test_every_value_is_the_one_that_was_put(
    samples: list[tuple[float | None, float | None, bool] | None], last: bool
) -> None:
    """Also where a metric gets its room late, beside unknown samples, and after the ring has gone round."""
    store = SeriesStore(most_coarse=10)
    samples = [(1.0, 1.0, False), *samples, *([(0.0, 2.0, False)] if last else [])]
    for number, sample in enumerate(samples):
        rows = []
        if sample is not None:
            rows = [(KEY, row_of(depth=sample[0], finished=sample[1], is_partial=sample[2]))]
        store.put(rows, now=START + 60 * number)
    kept = samples[-144:]
    series = store.series(KEY, Span.MINUTES)
    assert series is not None
    assert series.values["depth"] == tuple(None if it is None else it[0] for it in kept)
    assert series.values["finished"] == tuple(None if it is None else it[1] for it in kept)
    assert series.values["requeued"] == tuple(None if it is None else 0.0 for it in kept)
    again = SeriesStore(most_coarse=10)
    again.load(msgpack.unpackb(msgpack.packb(store.dump())))
    for span in (Span.HOURS, Span.DAYS):
        assert again.series(KEY, span) == store.series(KEY, span)
