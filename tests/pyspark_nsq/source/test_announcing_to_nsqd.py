"""A stream reports its progress to a real nsqd."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pyarrow as pa

from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane
from pyspark_nsq.options import Access, Reader, source_options
from pyspark_nsq.source.announcing import Announcer
from pyspark_nsq.source.stream_source import NsqStreamReader
from tests.support.process import Nsqd, eventually
from tests.support.spark import address, numbered, publish

A, B, OTHER = Lane("n1", "t", "a"), Lane("n1", "u", "b"), Lane("n2", "t", "c")


def readers(nsqd: Nsqd, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nsqd.http("GET", f"/topic/log?topic={topic}&readers=true").json["readers"]
    return found


def test_a_stream_reports_what_is_committed_and_no_more(nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(100))
    options = {
        "nsqd": address(nsqd),
        "topic": "orders",
        "readerName": "archive",
        "readerInto": "/t",
        "readerFormat": "csv",
    }
    stream = NsqStreamReader(source_options(options), pa.schema([("sequence", pa.int64())]))
    stream.prepareForTriggerAvailableNow()
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    (found,) = eventually(lambda: readers(nsqd, "orders"), timeout=30)
    assert (found["sequence"], found["behind"]) == (0, 100), "planned is not committed"
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    (found,) = readers(nsqd, "orders")
    assert (found["sequence"], found["behind"]) == (100, 0), "a stream that ends has told it"
    assert (found["name"], found["into"], found["format"]) == ("archive", "/t", "csv")
    assert found["host"]
    assert announcers()
    stream.stop()
    eventually(lambda: not announcers())  # otherwise reports would say for ever that the stream is alive


def announcers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "nsq announcer"]


def test_a_stream_without_a_name_reports_nothing(nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(10))
    options = source_options({"nsqd": address(nsqd), "topic": "orders"})
    stream = NsqStreamReader(options, pa.schema([("sequence", pa.int64())]))
    stream.prepareForTriggerAvailableNow()
    stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert readers(nsqd, "orders") == []


def test_what_is_reported_is_json_that_nsqd_takes(nsqd: Nsqd) -> None:
    publish(nsqd, "t", numbered(3))
    found = nsqd.http("GET", "/topic/log?topic=t").json
    lane = Lane(found["node"], "t", found["log"])
    reader = Reader('a "quoted" name', "s3://lake/ü", "")
    with closing(Announcer(reader, Http(Access()), lambda: {lane: address(nsqd)})) as telling:
        telling.committed({lane: 2})
        telling.settle(30)
    (found,) = readers(nsqd, "t")
    assert (found["name"], found["into"], found["behind"]) == ('a "quoted" name', "s3://lake/ü", 1)
