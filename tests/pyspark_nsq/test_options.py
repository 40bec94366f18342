"""Options are read and checked before any request is made."""

from __future__ import annotations

import pytest

from pyspark_nsq.errors import BadOption
from pyspark_nsq.lanes import At, Edge, Lane, LaneBounds
from pyspark_nsq.options import Topics, sink_options, source_options, split_address

A, B = Lane("a", "t", "l"), Lane("b", "t", "l")
GOOD = {"nsqd": "127.0.0.1:4151", "topic": "orders"}


def test_defaults() -> None:
    options = source_options(GOOD)
    assert (options.start, options.end, options.lossless) == (Edge.EARLIEST, Edge.LATEST, True)
    assert (options.max_rows, options.max_bytes, options.min_rows) == (2_000_000, 1 << 30, 0)
    assert (options.rows_per_task, options.bytes_per_task) == (None, 128 << 20)


def test_a_limit_of_nothing_is_none() -> None:
    options = source_options({**GOOD, "maxRowsPerTrigger": "0", "maxBytesPerTrigger": "0"})
    assert (options.max_rows, options.max_bytes) == (None, None)


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("90s", 90), ("1.5 m", 90), ("1h", 3600)])
def test_delays(text: str, seconds: float) -> None:
    assert source_options({**GOOD, "maxTriggerDelay": text}).max_delay == seconds


def test_names_count_in_any_case() -> None:
    assert source_options({**GOOD, "MAXROWSPERTRIGGER": "5"}).max_rows == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "t"}, "either lookupd or nsqd is needed"),
        ({**GOOD, "lookupd": "a:1"}, "either lookupd or nsqd is needed"),
        ({"nsqd": "localhost", "topic": "t"}, "'localhost' is not an address"),
        ({"nsqd": "h:4151"}, "topic is needed"),
        ({**GOOD, "topic": "no such name"}, "neither a valid name of a topic nor a pattern"),
        ({**GOOD, "topic": "t#ephemeral"}, "has no history"),
        ({**GOOD, "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({**GOOD, "colour": "red"}, "the source has no option colour; there are: bytesPerTask, caFile"),
        ({**GOOD, "startingOffsets": "{"}, "startingOffsets: expected"),
        ({**GOOD, "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({**GOOD, "startingTimestamp": "yesterday"}, "startingTimestamp: expected a time with its zone"),
        ({**GOOD, "startingTimestamp": "2026-03-01T12:00:00"}, "with its zone"),
        ({**GOOD, "startingOffsetsByTimestamp": '{"a/t/l": 1}', "startingTimestamp": "1"}, "not both"),
        (
            {**GOOD, "startingOffsetsByTimestamp": "1"},
            "startingOffsetsByTimestamp: expected an object of times by lane",
        ),
        ({**GOOD, "startingOffsetsByTimestamp": "{"}, "startingOffsetsByTimestamp: expected JSON"),
        (
            {**GOOD, "endingOffsetsByTimestamp": '{"a/t/l": "x"}'},
            "endingOffsetsByTimestamp: lane a/t/l: expected a time",
        ),
        ({**GOOD, "startingOffsets": '{"a/t/l": "x"}'}, "startingOffsets: lane a/t/l: expected a time"),
        ({**GOOD, "startingOffsetsByTimestampStrategy": "first"}, "expected latest or error, not 'first'"),
        ({**GOOD, "rowsPerTask": "0"}, "rowsPerTask: expected a whole number of at least 1, not '0'"),
        ({**GOOD, "maxTriggerDelay": "soon"}, "maxTriggerDelay: expected a duration like 90s, 15m or 1h, not 'soon'"),
        ({**GOOD, "bytesPerTask": "128MB"}, "bytesPerTask: expected a whole number of at least 1"),
        ({**GOOD, "failOnDataLoss": "maybe"}, "failOnDataLoss: expected true or false, not 'maybe'"),
        ({**GOOD, "keyFile": "k"}, "keyFile needs certFile"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption) as caught:
        source_options(options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({**GOOD, "topic": "a,b"}, "not a valid name"),
        ({**GOOD, "rowsPerTask": "1"}, "the sink has no option rowsPerTask"),
        ({"lookupd": "h:4161", "topic": "t", "exactlyOnce": "true"}, "exactlyOnce needs the option nsqd"),
        ({"lookupd": "h:4161", "topic": "t", "keys": "true"}, "keys needs the option nsqd"),
        ({"nsqd": "h:4151", "topic": "t", "keys": "true", "exactlyOnce": "true"}, "exclude each other"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption) as caught:
        sink_options(options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00+00:00"),
        ("2026-03-01T12:00:00.25+01:00", "2026-03-01T12:00:00.250000+01:00"),
        ("1772366400000", "2026-03-01T12:00:00+00:00"),
    ],
)
def test_times(text: str, time: str) -> None:
    assert source_options({**GOOD, "startingTimestamp": text}).start == At(time)


NOON = "2026-03-01T12:00:00+00:00"


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"startingOffsets": '{"a/t/l": "2026-03-01T12:00:00Z", "b/t/l": 7}'}, {A: At(NOON), B: 7}),
        ({"startingOffsetsByTimestamp": '{"a/t/l": 1772366400000, "b/t/l": "2026-03-01T12:00:00Z"}'}, {A: At(NOON), B: At(NOON)}),
        (
            {"startingOffsetsByTimestamp": '{"a/t/l": 1772366400000}', "startingOffsetsByTimestampStrategy": "error"},
            {A: At(NOON, required=True)},
        ),
    ],
)  # fmt: skip
def test_a_lane_may_begin_at_a_time(options: dict[str, str], bound: dict[Lane, object]) -> None:
    assert source_options({**GOOD, **options}).start == LaneBounds(bound, Edge.EARLIEST)  # type: ignore[arg-type]


def test_a_lane_may_end_at_a_time() -> None:
    options = source_options({**GOOD, "endingOffsetsByTimestamp": '{"a/t/l": 1772366400000}'})
    assert options.end == LaneBounds({A: At(NOON)}, Edge.LATEST)


def test_topics_are_names_and_patterns() -> None:
    topics = source_options({**GOOD, "topic": "orders, click.*"}).topics
    assert (topics.names, topics.patterns) == (("orders",), ("click.*",))
    assert topics.among(["orders", "click.a", "click", "Orders", "click.b#ephemeral"]) == {"orders", "click.a"}
    assert Topics(("*",)).among(["a", "b#ephemeral"]) == {"a"}


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("h:1", ("http", "h", 1)),
        ("https://h.example:4152/", ("https", "h.example", 4152)),
        ("[::1]:4151", ("http", "::1", 4151)),
    ],
)
def test_addresses(address: str, parts: tuple[str, str, int]) -> None:
    assert split_address(address) == parts
