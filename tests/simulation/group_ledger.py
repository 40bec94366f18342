"""What clients of a real nsqd know about the groups of one channel, and what must therefore be true.

A message is known by its group and its number there. Each group has one publisher, so numbers are in the order of the
log. A *life* is the time between a start and a `kill -9`.

Clients see less than nsqd: a message arrives some time after its delivery, and an answer is carried out some time after
it was sent. So what has arrived and was not answered is surely in flight, if it can't have timed out; and nsqd has surely
carried out the answers to all that it delivered later. From that follows, for each arrival:

- Of its group, only so many messages are in flight (`limit`), if nothing times out in this channel.
- With an order, each earlier message of its group was finished or buried, or comes again after a kill because its FIN was
  forgotten. Within a life, no message comes after a later one, except a kicked one.
- If a group goes back to a finished message after a kill, it goes on in order from there: the later ones come again.
- A FIN may be forgotten only if it was sent just before the kill.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from tests.simulation.promise import Violation

TIMES_OUT: Final = None  # instead of a limit: messages may time out, so that clients can't know what is in flight

# Seconds before a kill whose FINs may be forgotten. The journal is written every tenth of a second, and a message comes
# again at once if it had timed out before its FIN, but not on a busy machine.
FORGETS: Final = 3.0

Name = tuple[str, int]  # group and number


@dataclass(slots=True)
class _Known:
    life: int  # in which it was published
    is_acknowledged: bool = False
    is_done: bool = False  # finished or buried, as far as its consumer knows
    is_buried: bool = False
    may_be_kicked: bool = False
    seen_in: int = -1  # the life in which it arrived last
    attempts: int = 0  # in that life
    done_at: float = -inf
    gone_at: float = inf  # by this time, nsqd has certainly carried out its last FIN or BURY


class GroupLedger:
    """`limit` of messages in flight for each group; `is_ordered`: each group has an order."""

    def __init__(self, name: str, *, limit: int | None, is_ordered: bool) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._limit = limit
        self._is_ordered = is_ordered
        self._life = 0
        self._known: dict[str, list[_Known]] = defaultdict(list)
        self._done_to: Counter[str] = Counter()  # all numbers of a group before this one are done, or were never stored
        self._last: dict[str, int] = {}  # the number that has arrived last in this life
        self._open: dict[str, set[int]] = defaultdict(set)  # arrived and not answered
        self._killed_at = -inf
        self._forgets_since = -inf  # a FIN that was sent later may be forgotten
        self._buried: list[_Known] = []  # since the last kick
        self._kick_is_open = False
        self._lock = threading.Lock()

    # Publishing

    def sending(self, groups: Iterable[str]) -> list[Name]:
        """Return the name of a new message of each of these groups, which are about to be published in this order."""
        with self._lock:
            names = []
            for group in groups:
                names.append((group, len(self._known[group])))
                self._known[group].append(_Known(self._life))
            return names

    def acknowledged(self, names: Iterable[Name]) -> None:
        with self._lock:
            for group, number in names:
                self._known[group][number].is_acknowledged = True

    # Consuming

    def arrived(self, name: Name, attempts: int) -> None:
        group, number = name
        with self._lock:
            known = self._known[group][number]
            if known.seen_in == self._life and attempts <= known.attempts:
                return  # it had timed out, and has come to another consumer meanwhile
            self.counts["deliveries"] += 1
            self._check_that_it_may_come(name, known)
            if self._is_ordered:
                self._check_order(name, known)
            known.seen_in, known.attempts = self._life, attempts
            known.is_done = known.is_buried = known.may_be_kicked = False
            self._done_to[group] = min(self._done_to[group], number)
            self._open[group].add(number)
            if self._limit is not TIMES_OUT and len(self._open[group]) > self._limit:
                raise Violation(f"{self.name}: {self._open[group]} of group {group} are in flight, {self._limit} may")

    def _check_that_it_may_come(self, name: Name, known: _Known) -> None:
        if (
            known.is_done
            and not known.may_be_kicked
            and known.seen_in < self._life
            and known.gone_at < self._forgets_since
        ):
            what = "buried" if known.is_buried else "finished"
            early = self._killed_at - known.gone_at
            raise Violation(f"{self.name}: message {name} came again, though {what} {early:.3f} s before the kill")
        if known.is_done and known.seen_in < self._life:
            self.counts["again"] += 1

    def _check_order(self, name: Name, known: _Known) -> None:
        group, number = name
        everything, last = self._known[group], self._last.get(group, -1)
        is_again = known.seen_in == self._life and known.is_done  # unless its FIN came too late
        if number != last and not known.may_be_kicked and (is_again or number < last):
            raise Violation(f"{self.name}: message {name} came after {last}")
        if known.is_done and not known.is_buried and known.seen_in < self._life:
            for later in everything[number + 1 :]:  # the group has gone back
                later.is_done = later.is_done and (later.is_buried or later.done_at < known.done_at)
        at = self._done_to[group]
        while at < number and self._is_passed(everything[at], known):
            at += 1
        self._done_to[group] = at
        if at < number:
            raise Violation(f"{self.name}: message {name} came, and {at} is not finished: {everything[at]}")
        self._last[group] = number

    def _is_passed(self, earlier: _Known, later: _Known) -> bool:
        """Return whether a message is done, or was perhaps never stored. If a later one of its life was, it was too."""
        is_stored = earlier.is_acknowledged or earlier.seen_in >= 0 or earlier.life == later.life
        return earlier.is_done or not is_stored

    def finishing(self, name: Name) -> None:
        """Note that a FIN is about to be sent."""
        self._answering(name, is_done=True)

    def burying(self, name: Name) -> None:
        with self._lock:
            known = self._known[name[0]][name[1]]
            known.is_buried = True
            self._buried.append(known)
            if self._kick_is_open:
                self._may_be_kicked()
        self._answering(name, is_done=True)
        self.counts["buried"] += 1

    def requeueing(self, name: Name) -> None:
        self._answering(name, is_done=False)
        self.counts["requeued"] += 1

    def _answering(self, name: Name, *, is_done: bool) -> None:
        group, number = name
        with self._lock:
            known = self._known[group][number]
            known.is_done, known.done_at, known.gone_at = is_done, time.monotonic(), inf
            self._open[group].discard(number)

    def are_gone(self, names: Iterable[Name]) -> None:
        """Note that nsqd has certainly finished or buried these messages by now."""
        with self._lock:
            for group, number in names:
                self._known[group][number].gone_at = time.monotonic()

    # Operating

    def kicking_all(self) -> None:
        """Note that somebody is about to kick everything that is buried."""
        with self._lock:
            self._may_be_kicked()
            self._kick_is_open = True
        self.counts["kicks"] += 1

    def _may_be_kicked(self) -> None:
        for known in self._buried:
            if known.is_buried:  # and has not arrived since
                known.may_be_kicked, known.attempts = True, 0
        self._buried.clear()

    def kicked_all(self) -> None:
        """Note that nsqd has answered: what is buried from now on stays so."""
        with self._lock:
            self._kick_is_open = False

    # Lives

    def ended(self, killed_at: float) -> None:
        """Note that nsqd was killed. All its connections have ended, and all that they had was read."""
        with self._lock:
            self._killed_at = killed_at
            self._forgets_since = killed_at - FORGETS
            self._kick_is_open = False
            self._life += 1
            self._last.clear()
            self._open.clear()

    def left(self) -> list[Name]:
        """Return what was acknowledged, and is not done."""
        with self._lock:
            return [
                (group, number)
                for group, everything in self._known.items()
                for number, known in enumerate(everything)
                if known.is_acknowledged and not (known.is_done and known.seen_in >= 0)
            ]
