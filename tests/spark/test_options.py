"""Options are read and checked before anything is asked over the network."""

from __future__ import annotations

import pytest

from pyspark_nsq.errors import BadOption
from pyspark_nsq.lanes import At, Edge
from pyspark_nsq.options import Topics, sink_options, source_options, split_address

GOOD = {"nsqd": "127.0.0.1:4151", "topic": "orders"}


def test_defaults() -> None:
    options = source_options(GOOD)
    assert (options.start, options.end, options.lossless, options.max_rows) == (Edge.EARLIEST, Edge.LATEST, True, None)


def test_names_count_in_any_case() -> None:
    assert source_options({**GOOD, "MAXROWSPERTRIGGER": "5"}).max_rows == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "t"}, "either lookupd or nsqd is needed"),
        ({**GOOD, "lookupd": "a:1"}, "either lookupd or nsqd is needed"),
        ({"nsqd": "localhost", "topic": "t"}, "'localhost' is no address"),
        ({"nsqd": "h:4151"}, "topic is needed"),
        ({**GOOD, "topic": "no such name"}, "neither a valid name of a topic nor a pattern"),
        ({**GOOD, "topic": "t#ephemeral"}, "has no history"),
        ({**GOOD, "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({**GOOD, "colour": "red"}, "the source has no option colour; there are: caFile"),
        ({**GOOD, "startingOffsets": "{"}, "startingOffsets: expected"),
        ({**GOOD, "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({**GOOD, "startingTimestamp": "yesterday"}, "startingTimestamp: expected a time with its zone"),
        ({**GOOD, "startingTimestamp": "2026-03-01T12:00:00"}, "with its zone"),
        ({**GOOD, "rowsPerTask": "0"}, "rowsPerTask: expected a whole number of at least 1, not '0'"),
        ({**GOOD, "failOnDataLoss": "maybe"}, "failOnDataLoss: expected true or false, not 'maybe'"),
        ({**GOOD, "keyFile": "k"}, "no certFile"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption) as caught:
        source_options(options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({**GOOD, "topic": "a,b"}, "no valid name"),
        ({**GOOD, "rowsPerTask": "1"}, "the sink has no option rowsPerTask"),
        ({"lookupd": "h:4161", "topic": "t", "exactlyOnce": "true"}, "exactlyOnce: needs `nsqd`"),
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
