"""Keeps the heads of all lanes up to date beside the driver, because Spark asks for them every few milliseconds.

For each topic at each nsqd, a thread polls the head of its log; nsqd holds the answer back until the log changes. One
more thread looks for new topics and nodes. They are daemon threads, because Spark kills their process and never calls
`stop`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from pyspark_nsq.cluster import Cluster, NoLog, Place
from pyspark_nsq.errors import NsqError, Refused, Unreachable
from pyspark_nsq.lanes import Head, Lane, Offsets
from pyspark_nsq.missing import Seen, in_one_line, presence

log = logging.getLogger(__name__)

_WAIT: Final = 30.0  # seconds that a node holds an answer back
_SHORTEST: Final = 0.01  # seconds between two requests for one log, however fast it grows
_RETRY_AFTER: Final = 1.0  # seconds between two tries after a failure
_TRIES: Final = 60  # failed tries before we give up a place that discovery no longer lists
# How many looks at the whole cluster must miss a lane before it counts as gone, after another node has taken its node's
# address. With nsqlookupd there are more, because the node may just not be registered yet.
_LOOKS: Final = 3
_LOOKS_BY_LOOKUPD: Final = 30


@dataclass(slots=True)
class _Displaced:
    """A lane at whose address another node answers now. Restarted nodes can swap addresses."""

    how: str  # the evidence, as text
    looks: int = 0  # number of looks at the whole cluster that missed it


class Watch:
    def __init__(self, cluster: Cluster, discovery_seconds: float) -> None:
        self._cluster = cluster
        self._discovery_seconds = discovery_seconds
        self._enough_looks = _LOOKS if cluster.knows_all_nodes else _LOOKS_BY_LOOKUPD
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._heads: dict[Place, Head] = {}
        self._vanished: dict[Lane, str] = {}
        self._displaced: dict[Lane, _Displaced] = {}
        self._silent: dict[str, str] = {}  # addresses that don't answer, and why
        self._expected: set[Place] = set()  # where lanes may be, by the last discovery
        self._watched: set[Place] = set()  # places with a thread: the expected ones, and some that are gone
        self._down: dict[Place, str] = {}  # places whose last request had no answer, or an error; and why

    def start(self, *, tolerant: bool) -> bool:
        """Query all nodes once, so that `heads` is complete, then watch them in threads. Return True if all answered.

        Raises Unreachable when a node doesn't answer; if `tolerant`, that is only logged. Always raises errors that
        waiting doesn't cure, and errors for missing requirements of the options.
        """
        left_out: list[Unreachable] = []
        places = self._cluster.places(left_out=left_out if tolerant else None)
        for place in places:
            try:
                self._note(place, self._cluster.head(place))
            except Unreachable as error:
                if not tolerant:
                    raise
                left_out.append(error)
        for failure in left_out:
            self._note_silence(failure.address, failure)
        self._visit_departed()
        found = presence(self._seen(), Offsets({}))
        self._cluster.check_nodes(found)
        if found.missing:
            log.warning("nodes are left out for now: %s", in_one_line(found.missing))
        self._cluster.check_kept(self._heads.values())
        self._watch_all(places)
        threading.Thread(target=self._discover_for_ever, daemon=True, name="nsq discovery").start()
        return not left_out

    def heads(self) -> dict[Lane, Head]:
        with self._lock:
            return {head.lane: head for head in self._heads.values()}

    def down(self) -> set[Lane]:
        """Return the lanes that can't be read now, because their nodes don't answer; `missing` names these."""
        with self._lock:
            return {
                head.lane for place, head in self._heads.items() if place in self._down or place.address in self._silent
            }

    def close(self) -> None:
        """Stop watching. A thread that waits for an answer ends when the answer comes."""
        self._closed.set()

    def missing(self, offsets: Offsets) -> dict[str, str]:
        """Return the known nodes that don't answer, and why, for a query at these offsets."""
        return dict(presence(self._seen(), offsets).missing)

    def _seen(self) -> Seen:
        with self._lock:
            lanes: dict[str, list[Lane]] = defaultdict(list)
            for place, head in self._heads.items():
                lanes[place.address].append(head.lane)
            cluster = self._cluster
            # A node that refuses to answer for one topic counts as silent, even if it answers for another.
            silent = {place.address: why for place, why in self._down.items()} | self._silent
            return Seen(registered=cluster.registered, departed=cluster.departed, silent=silent, lanes=lanes)

    def vanished(self) -> dict[Lane, str]:
        """Return the lanes that are gone, and the evidence."""
        with self._lock:
            displaced = {lane: one.how for lane, one in self._displaced.items() if one.looks >= self._enough_looks}
            return displaced | self._vanished

    def refresh(self) -> None:
        """Query all nodes now. Raises when one doesn't answer."""
        for place in self._cluster.places():
            self._note(place, self._cluster.head(place))

    def _note(self, place: Place, found: Head | NoLog) -> None:
        with self._lock:
            known = self._heads.pop(place, None)
            if known is not None and (isinstance(found, NoLog) or found.lane != known.lane):
                self._note_loss(place, known.lane, found)
            if isinstance(found, Head):
                self._vanished.pop(found.lane, None)
                self._displaced.pop(found.lane, None)
                # Two requests may overlap. The answer to the one that didn't wait may be newer than this one.
                if known is not None and known.lane == found.lane and found.next < known.next:
                    found = known
                for other in [other for other, head in self._heads.items() if head.lane == found.lane]:
                    before = self._heads.pop(other)  # the lane has moved here from there
                    if before.next > found.next:
                        found = replace(before, address=found.address, first=found.first)
                self._heads[place] = found

    def _note_loss(self, place: Place, lane: Lane, found: Head | NoLog) -> None:
        if isinstance(found, NoLog):
            node, how = found.node, f"{place.address} has no topic {place.topic} any more"
        else:
            node, how = found.lane.node, f"at {place.address} there is {found.lane} now"
        if node == lane.node:
            self._vanished[lane] = how
        else:
            log.warning("lane %s is looked for at other addresses: %s", lane, how)
            self._displaced[lane] = _Displaced(how)

    # In threads

    def _discover_for_ever(self) -> None:
        while not self._closed.wait(self._discovery_seconds):
            try:
                self._discover()
                self._visit_departed()
            except NsqError as error:
                log.warning("no news of topics and nodes: %s", error)

    def _discover(self) -> None:
        down: list[Unreachable] = []  # not reported here: the threads that follow these nodes do that
        places = self._cluster.places(left_out=down)
        self._watch_all(places)
        with self._lock:
            wanted = {lane: one for lane, one in self._displaced.items() if one.looks < self._enough_looks}
            is_somebody_away = any(it.address in self._silent for it in self._cluster.departed)
        if wanted and not down and not is_somebody_away:
            self._look_for(wanted, places)

    def _visit_departed(self) -> None:
        """Query nodes that aren't registered any more: they may be draining, or only cut off from nsqlookupd."""
        for departed, found in self._cluster.visit(self._cluster.departed):
            if isinstance(found, NsqError):
                self._note_silence(departed.address, found)
                continue
            self._note_answer(departed.address)
            for place, head in found:
                self._set_down(place, "")
                self._note(place, head)
            self._follow_all({place for place, head in found if isinstance(head, Head)})

    def _note_silence(self, address: str, error: NsqError) -> None:
        with self._lock:
            self._silent[address] = str(error)

    def _note_answer(self, address: str) -> None:
        with self._lock:
            self._silent.pop(address, None)

    def _look_for(self, wanted: dict[Lane, _Displaced], places: list[Place]) -> None:
        """Ask all nodes for these displaced lanes, and count the look, unless a node doesn't answer."""
        failures = []
        for place in places:
            try:
                self._note(place, self._cluster.head(place))
            except NsqError as error:
                failures.append(error)
        if failures:
            log.warning("lanes are looked for, and not all nodes can say whether they have them: %s", failures[0])
            return
        with self._lock:
            for lane, one in wanted.items():
                if self._displaced.get(lane) is one:
                    one.looks += 1

    def _watch_all(self, places: list[Place]) -> None:
        with self._lock:
            self._expected = set(places)
        self._follow_all(set(places))

    def _follow_all(self, places: set[Place]) -> None:
        with self._lock:
            new = places - self._watched
            self._watched |= new
        for place in new:
            threading.Thread(target=self._follow, args=(place,), daemon=True, name=f"{place}").start()

    def _follow(self, place: Place) -> None:
        misses = 0
        while not self._closed.is_set() and (misses < _TRIES or self._is_expected(place)):
            try:
                found = self._wait_for_news(place)
            except NsqError as error:
                if self._set_down(place, str(error)):
                    log.warning("%s is waited for: %s", place, error)
                misses += 1
                if isinstance(error, Unreachable):
                    self._note_silence(place.address, error)
            else:
                self._note(place, found)
                self._note_answer(place.address)
                if self._set_down(place, ""):
                    log.warning("%s is back", place)
                misses = 0 if isinstance(found, Head) else misses + 1
            time.sleep(_RETRY_AFTER if misses else _SHORTEST)

    def _set_down(self, place: Place, why: str) -> bool:
        """Record why a place can't be queried, or with an empty text that it can. Return True if that is news."""
        with self._lock:
            was_down = self._down.pop(place, "")
            if why:
                self._down[place] = why
            return bool(was_down) is not bool(why)

    def _is_expected(self, place: Place) -> bool:
        """Return True if a lane may be at this place. If not, forget the place, because its thread ends.

        Topics and addresses come and go for months, so threads of former ones must not pile up.
        """
        with self._lock:
            if place not in self._expected:
                self._watched.discard(place)
                # If there was a lane here, its head is kept, and `missing` continues to name the node.
                if place not in self._heads:
                    self._down.pop(place, None)
            return place in self._expected

    def _wait_for_news(self, place: Place) -> Head | NoLog:
        known = self._heads.get(place)
        try:
            return self._cluster.head(place, known=known, wait=_WAIT if known is not None else 0)
        except Refused as refused:
            if refused.status != 409:
                raise
            return self._cluster.head(place)
