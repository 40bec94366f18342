"""What clients of a real nsqd know about the messages of one channel that fails, and what must therefore be true.

A message is due, buried or gone. An action that was sent and not confirmed leaves more than one place possible. What is
seen later, a delivery or the list of what is buried, decides. A *life* is the time between a start and a `kill -9`.

- A delivery has to be possible: of a message that was finished, discarded or buried for sure, it is a violation. Only a
  FIN may be forgotten, if it was sent less than half a second before the end of a life (`FIN_WINDOW`).
- Attempts never go down, except by a kick or redelivery. Within a life they go up, unless an attempt did not count.
- What is buried for sure is in the list, and what is in the list may be buried.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from tests.simulation.promise import Violation

FIN_WINDOW: Final = 0.5  # seconds; the journal is written every tenth of a second


class Place(Enum):
    DUE = "due"
    BURIED = "buried"
    GONE = "gone"


@dataclass(slots=True)
class Known:
    """What is known of one message."""

    possible: set[Place] = field(default_factory=lambda: {Place.DUE})
    is_acknowledged: bool = False
    attempts: int = 0  # of its last delivery
    most: int = 0  # attempts that nsqd may have counted by now
    life: int = 0  # in which it was delivered last
    counts_anew: bool = False  # it was kicked or given again, or may have been
    was_free: bool = False  # its last attempt did not count
    finished_at: float = -inf
    version: int = 0  # changes with each delivery
    sequence: int = -1  # -1: never seen in a list


class Listed(NamedTuple):
    """A line of the list of what is buried."""

    number: int
    sequence: int
    attempts: int


class ChannelLedger:
    """One channel. `max_attempts`: of its policy."""

    def __init__(self, name: str, max_attempts: int | None) -> None:
        self.name = name
        self.max_attempts = max_attempts
        self.known: dict[int, Known] = {}
        self.counts: Counter[str] = Counter()
        self._life = 0
        self._kick_is_open = False  # somebody has asked for a kick of everything, and heard no answer
        self._lock = threading.Lock()

    # Publishing

    def sending(self, numbers: Iterable[int]) -> None:
        with self._lock:
            self.known.update((number, Known()) for number in numbers)

    def acknowledged(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self.known[number].is_acknowledged = True

    # Consuming

    def arrived(self, number: int, attempts: int) -> int:
        """Note a delivery. Return its version."""
        with self._lock:
            known = self.known[number]
            if Place.DUE not in known.possible:
                raise self._violation(number, f"came with attempts {attempts}")
            if self.max_attempts is not None and attempts > self.max_attempts:
                raise self._violation(number, f"came with attempts {attempts}")
            least = known.attempts + (known.life == self._life and not known.was_free)
            if attempts < least and not known.counts_anew:
                raise self._violation(number, f"came with attempts {attempts}, {least} are the least")
            self.counts["deliveries"] += 1
            known.possible = {Place.DUE}
            known.attempts = known.most = attempts
            known.life, known.version = self._life, known.version + 1
            known.counts_anew = known.was_free = False
            return known.version

    def finishing(self, number: int) -> None:
        with self._lock:
            known = self.known[number]
            known.possible, known.finished_at = {Place.GONE}, time.monotonic()

    def burying(self, number: int) -> None:
        with self._lock:
            self._may_be_buried(self.known[number])

    def requeueing(self, number: int) -> bool:
        """Note a requeue. Return whether it buries the message."""
        with self._lock:
            known = self.known[number]
            if is_last := self._is_last(known.attempts):
                self._may_be_buried(known)
            return is_last

    def requeueing_free(self, number: int) -> None:
        with self._lock:
            self.known[number].was_free = True

    def keeping(self, number: int) -> None:
        """Note that a message is not answered, so it times out."""
        self.requeueing(number)

    def _is_last(self, attempts: int) -> bool:
        return self.max_attempts is not None and attempts >= self.max_attempts

    def _may_be_buried(self, known: Known) -> None:
        known.possible = {Place.DUE, Place.BURIED}
        if self._kick_is_open:
            known.counts_anew = True

    def buried(self, number: int, version: int) -> None:
        """Note that nsqd has carried out what buries a message."""
        with self._lock:
            known = self.known[number]
            self.counts["buried"] += 1
            if known.version == version and not known.counts_anew:
                known.possible = {Place.BURIED}

    # Operating

    def kicking_all(self) -> None:
        with self._lock:
            self._kick_is_open = True
            for known in self.known.values():
                if Place.BURIED in known.possible:
                    known.possible |= {Place.DUE}
                    known.counts_anew = True

    def kicked_all(self) -> None:
        with self._lock:
            self._kick_is_open = False

    def some(self, place: Place, most: int) -> dict[int, int]:
        """Return up to so many messages that are in this place for sure, since an earlier life if gone.

        They come as numbers with their sequences.
        """
        with self._lock:
            found = {
                number: known.sequence
                for number, known in self.known.items()
                if known.possible == {place} and known.sequence >= 0 and known.life < self._life
            }
            return dict([*found.items()][-most:]) if most else {}

    def taking(self, numbers: Iterable[int], to: Place) -> dict[int, int]:
        """Note that messages, which are in one place for sure, are asked to go to another one. Return their versions."""
        versions = {}
        with self._lock:
            for number in numbers:
                known = self.known[number]
                known.possible.add(to)
                known.counts_anew = to is Place.DUE
                versions[number] = known.version
        return versions

    def taken(self, versions: dict[int, int], frm: Place, what: str, count: int, *, outdated: int) -> None:
        """Note that nsqd has promised it for so many messages. Some may be `outdated`: the log no longer has them."""
        with self._lock:
            if count + outdated != len(versions):
                raise Violation(f"{self.name}: {what} {count} messages of {sorted(versions)}")
            self.counts[what] += count
            for number, version in versions.items() if not outdated else ():
                if self.known[number].version == version:  # otherwise it has come already
                    self.known[number].possible.discard(frm)

    # Between two lives

    def ended(self, killed_at: float) -> None:
        with self._lock:
            self._life += 1
            for known in self.known.values():
                if known.possible == {Place.GONE} and known.finished_at > killed_at - FIN_WINDOW:
                    known.possible.add(Place.DUE)
                if Place.DUE in known.possible:
                    known.most += 1  # it may have been delivered without anybody reading it
                    if self._is_last(known.most):
                        known.possible.add(Place.BURIED)

    def compare(self, listed: list[Listed], *, job_is_under_way: bool, is_drained: bool = False) -> None:
        """Compare with the list of what is buried, while nobody consumes. A job may go on kicking.

        Unless everything has been consumed, a message after its last attempt may still wait: it is buried where it
        would be delivered.
        """
        with self._lock:
            self._kick_is_open = False
            found = {line.number: line for line in listed}
            if len(found) != len(listed):
                raise Violation(f"{self.name}: messages are listed twice")
            for number, known in self.known.items():
                line = found.pop(number, None)
                if line is None:
                    if known.possible == {Place.BURIED}:
                        raise self._violation(number, "is not buried")
                    if is_drained or not (Place.DUE in known.possible and self._is_last(known.most)):
                        known.possible.discard(Place.BURIED)
                    continue
                if Place.BURIED not in known.possible or not known.attempts <= line.attempts <= max(known.most, 1):
                    raise self._violation(number, f"is buried: {line}")
                known.sequence = line.sequence
                if not (job_is_under_way and known.counts_anew):
                    known.possible, known.counts_anew = {Place.BURIED}, False
            if found:
                raise Violation(f"{self.name}: from nowhere {found}")

    def missing(self) -> list[int]:
        """Return, when nothing waits any more, the messages that are neither gone nor buried."""
        return [
            number
            for number, known in self.known.items()
            if known.is_acknowledged and known.possible.isdisjoint({Place.GONE, Place.BURIED})
        ]

    def _violation(self, number: int, what: str) -> Violation:
        return Violation(f"{self.name}: message {number} {what}; in life {self._life} {self.known[number]}")
