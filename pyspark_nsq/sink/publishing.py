"""`df.write.format("nsq")` and `df.writeStream.format("nsq")`: each task publishes its rows with `POST /mpub`.

At least once: a part without an answer is sent again, to another nsqd if there is one. Exactly once: each part has a
key, which is the same whenever its task is repeated; the part goes to the same nsqd each time, which remembers the key.
With keys: the same for each single row, whose key may come from a column; the key chooses the nsqd, so that a repeated
key in another task or query reaches the nsqd that remembers it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote
from zlib import crc32

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_nsq.cluster import nodes_to_publish_to
from pyspark_nsq.errors import NsqError, Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.options import SinkOptions
from pyspark_nsq.sink.packing import DEFER, HEADERS, Limits, Part, key_of, parts
from pyspark_nsq.worker import freeze_imports

log = logging.getLogger(__name__)

_PAUSES: Final = (0.05, 0.2, 0.5, 1.0, 2.0)  # seconds between tries; the last one repeats
_FOR_NOW: Final = (429, 503)  # statuses of an nsqd that accepts nothing now: a policy limit is reached; it drains
_PATIENCE: Final = 60.0  # seconds of tries for one request before the task fails
_DEFAULT_MESSAGE: Final = 1 << 20  # nsqd's default of --max-msg-size, for an nsqd that doesn't report its own
_DEFAULT_BODY: Final = 5 << 20  # the same for --max-body-size


@dataclass
class Published(WriterCommitMessage):
    messages: int


class NsqWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, write_id: str) -> None:
        self._options = options
        self._write_id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _publish(iterator, self._options, self._write_id)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return _publish(iterator, self._options, f"{query}/{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: everything was published when the tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: published messages stay published."""


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    return context


def _publish(batches: Iterator[pa.RecordBatch], options: SinkOptions, write_id: str) -> Published:
    freeze_imports()
    context = _task()
    publisher = _Publisher(options, write_id, context.partitionId(), context.attemptNumber())
    count = 0
    try:
        for batch in batches:
            if batch.num_rows:
                count += publisher.publish(batch)
        if not count and not context.partitionId():
            publisher.prepare()  # a stream begins with an empty batch, which then shows wrong settings at once
    finally:
        publisher.close()
    return Published(count)


class _Publisher:
    """Publishes the rows of one task."""

    def __init__(self, options: SinkOptions, write_id: str, partition: int, attempt: int) -> None:
        self._options = options
        self._http = Http(options.access)
        self._task = f"{write_id}/{partition}"
        self._partition = partition
        self._is_bound = options.exactly_once or options.has_keys  # repeats go to the same nsqd
        self._turn = partition if self._is_bound else partition + attempt  # which of the addresses to use
        self._part = 0  # number of the next part
        self._addresses: list[str] = []
        self._limits: Limits | None = None

    def publish(self, rows: pa.RecordBatch) -> int:
        if self._limits is None:
            self._limits = self.prepare(needs_defer=DEFER in rows.schema.names)
        for part in parts(rows, topic=self._options.topic, limits=self._limits, has_keys=self._options.has_keys):
            self._send(part)
        return int(rows.num_rows)

    def prepare(self, *, needs_defer: bool = False) -> Limits:
        """Find the nsqds and return their limits. Raises when nothing could be published."""
        self._addresses = nodes_to_publish_to(self._options.where, self._http)
        if not self._addresses:
            raise NsqError(f"no nsqd is registered at {', '.join(self._options.where.lookupd)}")
        if self._options.has_keys:
            self._addresses.sort()  # a key must choose the same one whatever the order of the list
            for turn in range(len(self._addresses)):
                self._turn = turn
                self._check_remembers("keys")
        elif self._options.exactly_once:
            self._check_remembers("exactlyOnce")
        return self._ask_limits(needs_defer=needs_defer)

    def close(self) -> None:
        self._http.close()

    # Capabilities of this nsqd

    def _check_remembers(self, option: str) -> None:
        if not self._setting("idempotence_window"):
            raise NsqError(
                f"{option}: {self._address} does not remember keys: this needs our nsqd with --idempotence-window"
            )

    def _ask_limits(self, *, needs_defer: bool) -> Limits:
        options = self._options
        if needs_defer and self._setting("max_defer_timeout") is None:
            raise NsqError(f"{self._address} cannot defer messages that MPUB publishes: {DEFER} needs our nsqd")
        longest = self._setting("max_msg_size") or _DEFAULT_MESSAGE
        most = self._setting("max_body_size") or _DEFAULT_BODY
        return Limits(options.most_messages, min(options.most_bytes, most), min(longest, most - 8))

    def _setting(self, name: str) -> int | None:
        """Return an option of the current nsqd, or of the next that answers; None if unknown."""
        began, failures = time.monotonic(), 0
        while True:
            try:
                return int(self._http.json(self._address, f"/config/{name}"))
            except Refused as refused:
                if self._is_bound and refused.status in (401, 403):
                    raise
                return None  # NSQ's own nsqd, for example, accepts messages all the same
            except Unreachable as failure:
                failures = self._wait(failure, failures, began)

    # Sending

    @property
    def _address(self) -> str:
        return self._addresses[self._turn % len(self._addresses)]

    def _send(self, part: Part) -> None:
        # An nsqd that knows no headers doesn't know /hmpub either, so it won't take them for parts of bodies.
        path = "/hmpub?" if part.has_headers else "/mpub?binary=true&"
        target = f"{path}topic={quote(part.topic)}"
        if part.defer_ms:
            target += f"&defer={part.defer_ms}"
        if self._is_bound:
            key = part.key or key_of(self._task, self._part, part.body)
            target += f"&key={quote(key, safe='')}"
            if self._options.has_keys:
                self._turn = crc32(key.encode())
        self._part += 1
        began, failures = time.monotonic(), 0
        while True:
            try:
                self._http.post(self._address, target, part.body)
                return
            except Refused as refused:
                if part.has_headers and refused.status == 404:
                    raise NsqError(
                        f"{self._address} knows no headers: the column {HEADERS} needs our nsqd"
                    ) from refused
                if refused.status not in _FOR_NOW:
                    raise NsqError(f"topic {part.topic}: {refused}") from refused
                failures = self._wait(refused, failures, began)
            except Unreachable as failure:
                failures = self._wait(failure, failures, began)

    def _wait(self, failure: NsqError, failures: int, began: float) -> int:
        """Choose the next nsqd, unless each part has to go to the same one, and pause when all of them were tried.

        Returns the number of failures so far. Raises when that has gone on for too long.
        """
        self.close()
        if time.monotonic() - began > _PATIENCE:
            raise NsqError(f"nothing could be published for {_PATIENCE:.0f} s: {failure}") from failure
        if not self._is_bound:
            self._turn += 1
        if self._is_bound or failures + 1 >= len(self._addresses):
            time.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            self._look_again()
        return failures + 1

    def _look_again(self) -> None:
        """Ask nsqlookupd for the nsqds again. An empty or failed answer changes nothing."""
        if not self._is_bound and self._options.where.lookupd:
            try:
                self._addresses = nodes_to_publish_to(self._options.where, self._http) or self._addresses
            except NsqError as failure:
                log.warning("the nsqds of before are kept: %s", failure)
