"""`ranges=true`: a stream yields a row for each range that a task would read, instead of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pyspark_nsq.data_source import DefaultSource
from pyspark_nsq.errors import BadOption
from pyspark_nsq.lanes import Lane, Range
from pyspark_nsq.options import source_options
from pyspark_nsq.source.ranges import COLUMNS, Part, as_rows, parts_of
from pyspark_nsq.source.stream_source import NsqStreamReader
from tests.support.process import Nsqd
from tests.support.spark import address, lane_of, numbered, publish


@contextmanager
def streaming(nsqd: Nsqd, **more: str) -> Iterator[NsqStreamReader]:
    options = {"nsqd": address(nsqd), "topic": "orders", "ranges": "true", "startingOffsets": "earliest", **more}
    stream = NsqStreamReader(source_options(options), COLUMNS)
    try:
        stream.prepareForTriggerAvailableNow()
        yield stream
    finally:
        stream.stop()


def test_a_row_for_each_range_and_none_of_its_messages(nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(100))
    lane = lane_of(nsqd, "orders")
    with streaming(nsqd, rowsPerTask="60") as stream:
        begin = stream.initialOffset()
        end = stream.latestOffset(begin, stream.getDefaultReadLimit())
        rows = [row for task in stream.partitions(begin, end) for it in stream.read(task) for row in it.to_pylist()]
    place = {"lane": lane, "address": address(nsqd)}
    assert rows == [
        {**place, "begin": 0, "end": 50, "opens": True},
        {**place, "begin": 50, "end": 100, "opens": False},
    ]


def test_a_lane_that_begins_without_a_message_has_an_empty_range(nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(100))
    nsqd.post("/topic/create?topic=quiet")
    with streaming(nsqd, topic="orders,quiet") as stream:
        begin = stream.initialOffset()
        end = stream.latestOffset(begin, stream.getDefaultReadLimit())
        rows = [row for task in stream.partitions(begin, end) for it in stream.read(task) for row in it.to_pylist()]
        assert stream.partitions(end, end) == []
    found = [(Lane.parse(it["lane"]).topic, it["begin"], it["end"], it["opens"]) for it in rows]
    assert sorted(found) == [("orders", 0, 100, True), ("quiet", 0, 0, True)]


def test_a_sink_gets_the_ranges_back() -> None:
    lane = Lane("node", "orders", "log")
    ranges = [Range(lane, "127.0.0.1:4151", 3, 9), Range(lane, "", 9, None)]
    rows = as_rows(ranges, frozenset([(lane, 3)]))
    assert [*parts_of(rows)] == [Part(ranges[0], opens=True), Part(ranges[1], opens=False)]


def test_a_batch_query_has_no_ranges() -> None:
    source = DefaultSource({"nsqd": "127.0.0.1:4151", "topic": "orders", "ranges": "true"})
    with pytest.raises(BadOption, match="ranges=true works for streams only"):
        source.reader(source.schema())  # type: ignore[arg-type]  # the refusal comes first
