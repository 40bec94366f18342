"""Reads ranges of a log as Arrow batches, in a Spark task.

We wait for a broken connection, a restarting node, or a node with too many readers, for a limited time after the last
progress. No row is yielded twice: the next request begins after the last yielded or collected row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import pyarrow as pa

from nsqcommon.wire.history import MSGPACK, BadHistory, End, Event, Gap, HistoryReader
from nsqcommon.wire.history import StoredBatch as Batch
from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import DataLoss, NsqError, Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Range, unreadable
from pyspark_nsq.options import SourceOptions, Topics
from pyspark_nsq.source.rows import GAP_COLUMN, RowBuilder, find_offsets
from pyspark_nsq.worker import freeze_imports

log = logging.getLogger(__name__)

REMOVED: Final = "removed"
VANISHED: Final = "vanished"
_READ_SIZE: Final = 1 << 20
_PAUSES: Final = (0.05, 0.2, 0.5, 1.0, 2.0)  # seconds between tries; the last one repeats
PATIENCE: Final = 60.0  # seconds without progress before an error; a restarted node is back within that
_PATIENCE_IN_LINE: Final = 600.0  # the same while the node has as many readers as it allows: our turn will come


class _Incomplete(Unreachable):
    """The answer broke off."""


def read_ranges(ranges: tuple[Range, ...], options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    reader = RangeReader(options, schema)
    for range_ in ranges:
        yield from reader.rows(range_)


class RangeReader:
    """Reads the ranges of one task. Several ranges of a node that doesn't return cost the task only one wait."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        freeze_imports()
        self._options = options
        self._schema = schema
        self._http = Http(options.access)
        self._given_up: set[str] = set()

    def rows(self, range_: Range) -> Iterator[pa.RecordBatch]:
        return _RangeReading(range_, self._options, self._http, self._schema, self._given_up).rows()


class _RangeReading:
    """Reads one range. `given_up` has the nodes that this task has already waited for in vain."""

    def __init__(
        self, range_: Range, options: SourceOptions, http: Http, schema: pa.Schema, given_up: set[str]
    ) -> None:
        self._given_up = given_up
        self._range = range_
        self._options = options
        self._http = http
        self._builder = RowBuilder(range_.lane, schema)
        self._tells_gaps = GAP_COLUMN in schema.names
        self._address = range_.address
        self._position = range_.begin
        self._progress_at = time.monotonic()
        self._failures = 0  # since the last progress

    def rows(self) -> Iterator[pa.RecordBatch]:
        end = self._range.end
        if end is None or not self._range.address:
            yield from self._lost(end, VANISHED)
            return
        while self._position < end:
            try:
                for event in self._events(end):
                    yield from self._rows_of(event)
            except Refused as refused:
                yield from self._refused(refused, end)
            except Unreachable as failure:
                self._pause(failure, PATIENCE, moved=self._look_elsewhere())
            except BadHistory as bad:
                raise NsqError(
                    f"{self._address} sends something of lane {self._range.lane} that cannot be read here: {bad}"
                ) from bad
        yield from self._collected()

    def _events(self, end: int) -> Iterator[Event]:
        lane = self._range.lane
        target = f"/topic/read?topic={quote(lane.topic)}&log={lane.log}&from={self._position}&to={end}"
        reader = HistoryReader(find_offsets)
        with self._http.request("GET", self._address, target, accept=MSGPACK) as response:
            while data := response.read1(_READ_SIZE):
                reader.receive(data)
                while (event := reader.next_event()) is not None:
                    yield event
        if not reader.complete:
            raise _Incomplete(f"{self._address} broke off in the middle of lane {lane}")

    def _rows_of(self, event: Event) -> Iterator[pa.RecordBatch]:
        match event:
            case Batch() if event.is_copy:  # of an event that the topic has already, for one of its channels
                yield from self._collected()  # the builder's rows are consecutive
                self._went_on(event.end)
            case Batch():
                self._builder.add(event)
                self._went_on(event.end)
                if self._builder.is_full:
                    yield self._builder.take()
                    self._progress_at = time.monotonic()  # the time that Spark took for the rows isn't the node's fault
            case Gap():
                yield from self._damaged(event)
            case End(following) if following <= self._position and following < (self._range.end or 0):
                raise _Incomplete(f"{self._address} sends nothing of lane {self._range.lane}; is it stopping?")
            case _:
                pass

    def _went_on(self, position: int) -> None:
        self._position = position
        self._progress_at = time.monotonic()
        self._failures = 0

    def _collected(self) -> Iterator[pa.RecordBatch]:
        if self._builder.rows:
            yield self._builder.take()

    # Unreadable messages

    def _damaged(self, gap: Gap) -> Iterator[pa.RecordBatch]:
        lane = self._range.lane
        if not self._options.skip_corrupt:
            raise DataLoss(
                f"lane {lane}: messages [{gap.first}, {gap.end}) are {gap.reason} at {self._address}; "
                "skipCorrupt=true leaves them out"
            )
        yield from self._lost(gap.end, gap.reason)

    def _lost(self, end: int | None, reason: str) -> Iterator[pa.RecordBatch]:
        """Skip to `end`, with a line in the log and, if the option `gapRows` is on, a row that stands for the gap."""
        yield from self._collected()
        first = self._position
        count = "all that was left" if end is None else f"{end - first} messages, [{first}, {end})"
        log.warning("lane %s: %s: %s", self._range.lane, reason, count)
        if self._tells_gaps:
            yield self._builder.gap(first, end, reason)
        if end is not None:
            self._went_on(end)

    def _refused(self, refused: Refused, end: int) -> Iterator[pa.RecordBatch]:
        lane, options = self._range.lane, self._options
        if refused.status == 503:
            self._pause(refused, _PATIENCE_IN_LINE if refused.code == "TOO_MANY_READERS" else PATIENCE)
        elif refused.status == 410 and isinstance(first := refused.details.get("first"), int):
            if options.lossless:
                raise DataLoss(
                    f"lane {lane}: messages [{self._position}, {min(first, end)}) were removed by retention before they "
                    "were read; failOnDataLoss=false goes on after them"
                ) from refused
            yield from self._lost(min(first, end), REMOVED)
        elif refused.status in (404, 409) and refused.details.get("node") != lane.node:
            yield from self._displaced(refused, end)
        elif refused.status in (404, 409):
            if options.lossless:
                raise DataLoss(
                    unreadable(lane, self._position, "its topic was deleted or has another log now")
                ) from refused
            yield from self._lost(end, VANISHED)
        else:
            raise refused

    def _displaced(self, refused: Refused, end: int) -> Iterator[pa.RecordBatch]:
        """Handle an answer of another node at this address.

        The lane may have moved to another address, or may appear at one soon, so we look for it and wait. If that is in
        vain, this raises or, without `lossless`, gives up the node.
        """
        node = self._range.lane.node
        moved = self._look_elsewhere()
        if not (moved or self._options.lossless) and (node in self._given_up or self._has_waited(PATIENCE)):
            self._given_up.add(node)
            yield from self._lost(end, VANISHED)
        else:
            self._pause(refused, PATIENCE, moved=moved)

    def _look_elsewhere(self) -> bool:
        """Look for the lane at all other addresses, and read from there. Return True if it was found."""
        lane = self._range.lane
        cluster = Cluster(replace(self._options, topics=Topics((lane.topic,))), self._http)
        try:
            places = cluster.places(left_out=[])
        except NsqError:
            return False
        for place in places:
            if place.address != self._address:
                try:
                    head = cluster.head(place)
                except NsqError:
                    continue
                if isinstance(head, Head) and head.lane == lane and head.address != self._address:
                    log.warning("lane %s is at %s now, and was at %s", lane, head.address, self._address)
                    self._address = head.address
                    return True
        return False

    def _has_waited(self, patience: float) -> bool:
        return time.monotonic() - self._progress_at > patience

    def _pause(self, failure: NsqError, patience: float, *, moved: bool = False) -> None:
        # A lane that was just found elsewhere gets more time, but not forever: it might move to and fro.
        if self._has_waited(2 * patience if moved else patience):
            raise NsqError(
                f"lane {self._range.lane}: nothing has come from {self._address} for {patience:.0f} s "
                f"at sequence {self._position}: {failure}"
            ) from failure
        time.sleep(_PAUSES[min(self._failures, len(_PAUSES) - 1)])
        self._failures += 1
