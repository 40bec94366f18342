"""Tells each nsqd how far a query has committed its lanes, so that people who look at a topic see what lands where.

It is for people alone, so it never delays a batch and never makes one fail: a daemon thread posts what is newest, at most
once a second, and at least once a minute, by which nsqd tells a query that has nothing to do from one that is gone.
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

HEARTBEAT: Final = 45.0  # seconds; nsqd's readers are expected to report at least each minute
_PAUSE: Final = 1.0  # seconds between two rounds
_GLANCE: Final = 5.0  # seconds between two looks for what is due
_AGAIN: Final = 30.0  # seconds until a node that has failed is asked again
PATIENCE: Final = 2.0  # seconds for one answer
# A topic or log that has just gone, or a log that has become shorter, is news that the query is about to hear, too.
_PASSING: Final = frozenset(("TOPIC_NOT_FOUND", "ANOTHER_LOG", "BEYOND_END"))


class Schedule:
    """Which lanes are to be told when. Nothing is asked here, and times are handed in."""

    def __init__(self) -> None:
        self._told: dict[Lane, tuple[int, float]] = {}  # the sequence, and when
        self._not_before: dict[str, float] = {}  # by node
        self._refused: set[str] = set()  # nodes that know no readers, or do not want to hear of this one

    def due(self, lanes: Mapping[Lane, int], now: float) -> Iterator[Lane]:
        """Yield lanes whose progress their node does not know, or knows for long; what happens in between counts."""
        for lane, sequence in lanes.items():
            told, at = self._told.get(lane, (None, now))
            is_news = told != sequence or now - at >= HEARTBEAT
            if is_news and lane.node not in self._refused and now >= self._not_before.get(lane.node, now):
                yield lane

    def told(self, lane: Lane, sequence: int, now: float) -> None:
        self._told[lane] = sequence, now

    def failed(self, lane: Lane, now: float) -> None:
        self._not_before[lane.node] = now + _AGAIN

    def refused(self, lane: Lane) -> None:
        self._refused.add(lane.node)


class Announcer:
    def __init__(self, reader: Reader, http: Http, addresses: Callable[[], Mapping[Lane, str]]) -> None:
        """`addresses()` tells where the lanes are that are there now. Nothing begins before the first `committed`."""
        self._about = {"name": reader.name, "into": reader.into, "format": reader.format, "host": socket.gethostname()}
        self._http = http
        self._addresses = addresses
        self._schedule = Schedule()
        self._changed = threading.Condition()
        self._lanes: Mapping[Lane, int] = {}
        self._tried: Mapping[Lane, int] = self._lanes  # what the last round was about
        self._hurries = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def committed(self, lanes: Mapping[Lane, int]) -> None:
        """Everything before these sequences is committed."""
        with self._changed:
            if lanes == self._lanes:
                return
            self._lanes = lanes
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True, name="nsq announcer")
            self._thread.start()

    def settle(self, seconds: float) -> None:
        """Wait until everything is told, for so long at most: the process may end after this."""
        with self._changed:
            self._hurries = self._tried is not self._lanes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._tried is self._lanes, timeout=seconds)

    def close(self) -> None:
        """Stop reporting, signs of life included."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # In the thread

    def _follow(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._tried is not self._lanes, timeout=_GLANCE)
                if self._closed:
                    return
                lanes = self._lanes
            try:
                self._tell(lanes)
            except Exception:  # nobody would see what ends a thread, and nobody would be told any more
                log.exception("cannot tell how far the query has come")
            with self._changed:
                self._tried = lanes
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._hurries, timeout=_PAUSE)
                self._hurries = False

    def _tell(self, lanes: Mapping[Lane, int]) -> None:
        addresses = self._addresses()
        there = {lane: sequence for lane, sequence in lanes.items() if lane in addresses}
        for lane in self._schedule.due(there, time.monotonic()):
            try:
                self._post(addresses[lane], lane, there[lane])
            except Refused as refused:
                self._note_refusal(lane, refused)
            except NsqError as error:
                log.debug("%s", error)
                self._schedule.failed(lane, time.monotonic())
            else:
                self._schedule.told(lane, there[lane], time.monotonic())

    def _post(self, address: str, lane: Lane, sequence: int) -> None:
        body = json.dumps({**self._about, "log": lane.log, "sequence": sequence}).encode()
        target = f"/topic/reader?topic={quote(lane.topic)}"
        with self._http.request("POST", address, target, timeout=PATIENCE, body=body) as response:
            response.read()

    def _note_refusal(self, lane: Lane, refused: Refused) -> None:
        if refused.code in _PASSING or refused.status >= 500:
            self._schedule.failed(lane, time.monotonic())
            return
        self._schedule.refused(lane)
        log.warning("node %s is not told how far this query has come: %s", lane.node, refused)
