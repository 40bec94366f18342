"""Reports a query's committed sequences to each nsqd, so that people who look at a topic see its readers.

The reports are only for people, so they never delay a batch and never make one fail. A daemon thread posts the newest
sequences: at most once a second, and at least once a minute, because nsqd takes a query for gone that is silent for
longer.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

from pyspark_nsq.errors import NsqError, Refused
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane
from pyspark_nsq.options import Reader

log = logging.getLogger(__name__)

HEARTBEAT: Final = 45.0  # seconds; nsqd expects its readers to report at least each minute
_PAUSE: Final = 1.0  # seconds between two rounds
_CHECK_EVERY: Final = 5.0  # seconds between checks for due reports
_RETRY_AFTER: Final = 30.0  # seconds until we try a failed node again
PATIENCE: Final = 2.0  # seconds for one answer
# The topic or its log has just been deleted, or the log has become shorter. The query is about to find out, too, so
# with these answers we don't stop reporting to the node.
_TEMPORARY: Final = frozenset(("TOPIC_NOT_FOUND", "ANOTHER_LOG", "BEYOND_END"))


class Schedule:
    """Decides which lanes to report, and when. It does no I/O, and takes the time as an argument."""

    def __init__(self) -> None:
        self._reported: dict[Lane, tuple[int, float]] = {}  # last sequence accepted by the node, and when
        self._not_before: dict[str, float] = {}  # by node
        self._refused: set[str] = set()  # nodes that know no readers, or refuse this one

    def due(self, lanes: Mapping[Lane, int], now: float) -> Iterator[Lane]:
        """Yield the lanes with a new sequence, or whose last report was a heartbeat ago.

        The caller may record the outcome for one lane before it takes the next: a node that has just failed is skipped.
        """
        for lane, sequence in lanes.items():
            reported, at = self._reported.get(lane, (None, now))
            is_news = reported != sequence or now - at >= HEARTBEAT
            if is_news and lane.node not in self._refused and now >= self._not_before.get(lane.node, now):
                yield lane

    def record_report(self, lane: Lane, sequence: int, now: float) -> None:
        self._reported[lane] = sequence, now

    def record_failure(self, lane: Lane, now: float) -> None:
        self._not_before[lane.node] = now + _RETRY_AFTER

    def record_refusal(self, lane: Lane) -> None:
        self._refused.add(lane.node)


class Announcer:
    def __init__(self, reader: Reader, http: Http, addresses: Callable[[], Mapping[Lane, str]]) -> None:
        """`addresses()` returns where each lane is now. The thread starts at the first call of `committed`."""
        self._about = {"name": reader.name, "into": reader.into, "format": reader.format, "host": socket.gethostname()}
        self._http = http
        self._addresses = addresses
        self._schedule = Schedule()
        self._changed = threading.Condition()
        self._lanes: Mapping[Lane, int] = {}
        self._tried: Mapping[Lane, int] = self._lanes  # lanes of the last round
        self._hurries = False  # `settle` is waiting: the next round skips the pause
        self._closed = False
        self._thread: threading.Thread | None = None

    def committed(self, lanes: Mapping[Lane, int]) -> None:
        """Record that everything before these sequences is committed; the thread reports it."""
        with self._changed:
            if lanes == self._lanes:
                return
            self._lanes = lanes
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True, name="nsq announcer")
            self._thread.start()

    def settle(self, seconds: float) -> None:
        """Wait until everything is reported, for at most this many seconds: the process may end after this."""
        with self._changed:
            self._hurries = self._tried is not self._lanes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._tried is self._lanes, timeout=seconds)

    def close(self) -> None:
        """Stop reporting, including heartbeats."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # In the thread

    def _follow(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._tried is not self._lanes, timeout=_CHECK_EVERY)
                if self._closed:
                    return
                lanes = self._lanes
            try:
                self._report(lanes)
            except Exception:  # it would end the thread unseen, and with it all reports
                log.exception("cannot report how far the query has come")
            with self._changed:
                self._tried = lanes
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._hurries, timeout=_PAUSE)
                self._hurries = False

    def _report(self, lanes: Mapping[Lane, int]) -> None:
        addresses = self._addresses()
        reachable = {lane: sequence for lane, sequence in lanes.items() if lane in addresses}
        for lane in self._schedule.due(reachable, time.monotonic()):
            try:
                self._post(addresses[lane], lane, reachable[lane])
            except Refused as refused:
                self._handle_refusal(lane, refused)
            except NsqError as error:
                log.debug("%s", error)
                self._schedule.record_failure(lane, time.monotonic())
            else:
                self._schedule.record_report(lane, reachable[lane], time.monotonic())

    def _post(self, address: str, lane: Lane, sequence: int) -> None:
        body = json.dumps({**self._about, "log": lane.log, "sequence": sequence}).encode()
        target = f"/topic/reader?topic={quote(lane.topic)}"
        with self._http.request("POST", address, target, timeout=PATIENCE, body=body) as response:
            response.read()

    def _handle_refusal(self, lane: Lane, refused: Refused) -> None:
        if refused.code in _TEMPORARY or refused.status >= 500:
            self._schedule.record_failure(lane, time.monotonic())
            return
        self._schedule.record_refusal(lane)
        log.warning("node %s takes no reports of how far this query has come: %s", lane.node, refused)
