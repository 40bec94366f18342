"""Keeps the heads of all lanes at hand, in the driver: Spark asks for them every few milliseconds.

A thread for each topic at each nsqd asks for its log and waits there until it moves; one more looks for new ones.
They are daemon threads: Spark kills the process that they are in, and never calls `stop`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from pyspark_nsq.cluster import Cluster, Nothing, Place
from pyspark_nsq.errors import NsqError, Refused, Unreachable
from pyspark_nsq.lanes import Head, Lane, Offsets
from pyspark_nsq.missing import Seen, presence, told

log = logging.getLogger(__name__)

_WAIT: Final = 30.0  # seconds that a node holds an answer back
_SHORTEST: Final = 0.01  # between two questions about one log, however fast it moves
_AGAIN: Final = 1.0  # after a failure
_PATIENCE: Final = 60  # of these, until a place that nobody names any more is given up
# Looks at the whole cluster until a lane counts as gone whose node has left its address. Where it may just not be registered
# at nsqlookupd yet, it is given more time.
_LOOKS: Final = 3
_LOOKS_BY_LOOKUPD: Final = 30


@dataclass(slots=True)
class _Displaced:
    """A lane at whose address another node answers. Nodes that are started again can swap addresses."""

    how: str  # that was seen
    looks: int = 0  # that have not found it elsewhere


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
        self._silent: dict[str, str] = {}  # addresses that do not answer, and why
        self._expected: set[Place] = set()  # where lanes may be, as the last discovery has it
        self._watched: set[Place] = set()  # those and some that are gone: a thread each
        self._down: dict[Place, str] = {}  # of which the last question had no answer, or an error; and why

    def start(self, *, tolerant: bool) -> bool:
        """Asks everybody once, so that `heads` is complete, and goes on in threads. Says whether all have answered.

        Raises when a node does not answer; `tolerant`, that is only logged. Raises in any case what waiting does not mend.
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
            log.warning("nodes are left out for now: %s", told(found.missing))
        self._cluster.check_kept(self._heads.values())
        self._watch_all(places)
        threading.Thread(target=self._discover_for_ever, daemon=True, name="nsq discovery").start()
        return not left_out

    def heads(self) -> dict[Lane, Head]:
        with self._lock:
            return {head.lane: head for head in self._heads.values()}

    def down(self) -> set[Lane]:
        """Lanes that cannot be asked just now: those of nodes that do not answer or refuse to, which `missing` names."""
        with self._lock:
            return {
                head.lane for place, head in self._heads.items() if place in self._down or place.address in self._silent
            }

    def close(self) -> None:
        """Nobody asks any more. Threads that wait for an answer end with it."""
        self._closed.set()

    def missing(self, offsets: Offsets) -> dict[str, str]:
        """Who is known and does not answer, and why."""
        return dict(presence(self._seen(), offsets).missing)

    def _seen(self) -> Seen:
        with self._lock:
            lanes: dict[str, list[Lane]] = defaultdict(list)
            for place, head in self._heads.items():
                lanes[place.address].append(head.lane)
            cluster = self._cluster
            # A node that refuses one topic and answers for another is silent about the first.
            silent = {place.address: why for place, why in self._down.items()} | self._silent
            return Seen(registered=cluster.registered, departed=cluster.departed, silent=silent, lanes=lanes)

    def vanished(self) -> dict[Lane, str]:
        """Lanes that are gone, and how that was seen."""
        with self._lock:
            displaced = {lane: one.how for lane, one in self._displaced.items() if one.looks >= self._enough_looks}
            return displaced | self._vanished

    def refresh(self) -> None:
        """Asks everybody now. Raises when one does not answer."""
        for place in self._cluster.places():
            self._note(place, self._cluster.head(place))

    def _note(self, place: Place, found: Head | Nothing) -> None:
        with self._lock:
            known = self._heads.pop(place, None)
            if known is not None and (isinstance(found, Nothing) or found.lane != known.lane):
                self._note_loss(place, known.lane, found)
            if isinstance(found, Head):
                self._vanished.pop(found.lane, None)
                self._displaced.pop(found.lane, None)
                # An answer that waited may be older than that to a question which did not.
                if known is not None and known.lane == found.lane and found.next < known.next:
                    found = known
                for other in [other for other, head in self._heads.items() if head.lane == found.lane]:
                    before = self._heads.pop(other)  # where it was
                    if before.next > found.next:
                        found = replace(before, address=found.address, first=found.first)
                self._heads[place] = found

    def _note_loss(self, place: Place, lane: Lane, found: Head | Nothing) -> None:
        if isinstance(found, Nothing):
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
        down: list[Unreachable] = []  # whoever waits for one of these says so
        places = self._cluster.places(left_out=down)
        self._watch_all(places)
        with self._lock:
            wanted = {lane: one for lane, one in self._displaced.items() if one.looks < self._enough_looks}
            is_somebody_away = any(it.address in self._silent for it in self._cluster.departed)
        if wanted and not down and not is_somebody_away:
            self._look_for(wanted, places)

    def _visit_departed(self) -> None:
        """Ask those who are not registered any more: they may only be draining, or cut off from nsqlookupd."""
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
        """Asks everybody. When one does not answer, it does not count."""
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
        while not self._closed.is_set() and (misses < _PATIENCE or self._is_expected(place)):
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
            time.sleep(_AGAIN if misses else _SHORTEST)

    def _set_down(self, place: Place, why: str) -> bool:
        """Note why a place cannot be asked; nothing: it can. Return whether that is news."""
        with self._lock:
            was_down = self._down.pop(place, "")
            if why:
                self._down[place] = why
            return bool(was_down) is not bool(why)

    def _is_expected(self, place: Place) -> bool:
        """Whether a lane may be there. Where none is, its thread ends: topics and addresses come and go for months."""
        with self._lock:
            if place not in self._expected:
                self._watched.discard(place)
                # Nobody asks it any more. Of a lane that was there, the head is kept, and `missing` goes on naming the node.
                if place not in self._heads:
                    self._down.pop(place, None)
            return place in self._expected

    def _wait_for_news(self, place: Place) -> Head | Nothing:
        known = self._heads.get(place)
        try:
            return self._cluster.head(place, known=known, wait=_WAIT if known is not None else 0)
        except Refused as refused:
            if refused.status != 409:
                raise
            return self._cluster.head(place)
