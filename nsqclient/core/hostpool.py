"""Strategies for choosing the nsqd to publish to.

`pick` returns the number of an nsqd, `ByKey.pick_for` the number for a key (or a group, or a topic); `succeeded` and
`failed` report the result.
Times are in seconds and passed in. At first the numbers are 0, 1, ... to the size of the pool; when nsqds come and go,
`choose_among` sets others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Final, Literal, Protocol

_FIRST_DELAY: Final = 30.0
_LONGEST_DELAY: Final = 900.0

_FIRST_EPSILON: Final = 0.3
_LEAST_EPSILON: Final = 0.01
_EPSILON_DECAY: Final = 0.9
_BUCKETS: Final = 120
_BUCKET: Final = 2.5  # seconds: five minutes in all


@dataclass(frozen=True, slots=True)
class Quorum:
    """Every message goes to all nsqds, and `count` of them have to accept it."""

    count: int


Strategy = (
    Literal[
        "round_robin",
        "hostpool",
        "epsilon_greedy",
        "first",
        "fewest_in_flight",
        "near",
        "by_key",
        "by_group",
        "by_topic",
        "all",
    ]
    | Quorum
)


def quorum(count: int) -> Quorum:
    """Return a strategy for `open_producer`: a message is published once `count` of the nsqds have accepted it."""
    if count < 1:
        raise ValueError(f"a quorum of {count}")
    return Quorum(count)


class Pool(Protocol):
    """Chooses among numbered nsqds."""

    def pick(self, now: float) -> int: ...
    def succeeded(self, number: int, seconds: float, now: float) -> None: ...
    def failed(self, number: int, now: float) -> None: ...

    def choose_among(self, numbers: Sequence[int]) -> None:
        """Pick only from these (at least one) from now on. The results of the others are kept."""

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the results of these nsqds."""


def pool_of(
    strategy: Strategy,
    size: int,
    random: Random,
    *,
    load: Callable[[int], int] = lambda number: 0,
    distance: Callable[[int], int] = lambda number: 0,
    name: Callable[[int], str] = str,
) -> Pool:
    """Return the pool of a strategy.

    `load` returns an nsqd's publishes in flight, `distance` how far away it is, and `name` its address.
    """
    match strategy:
        case "round_robin":
            return RoundRobin(size)
        case "first":
            return HostPool(size, is_ordered=True)
        case "epsilon_greedy":
            return EpsilonGreedy(size, random)
        case "fewest_in_flight":
            return Least(size, load)
        case "near":
            return Least(size, distance)
        case "by_key" | "by_group" | "by_topic":
            return ByKey(size, name)
        case "hostpool" | "all" | Quorum():
            return HostPool(size)
    raise ValueError(f"no such strategy: {strategy!r}")


class RoundRobin:
    """Picks each in turn, and ignores results."""

    def __init__(self, size: int) -> None:
        self._members: Sequence[int] = range(size)
        self._last = 0

    def pick(self, now: float) -> int:
        self._last = (self._last + 1) % len(self._members)
        return self._members[self._last]

    def choose_among(self, numbers: Sequence[int]) -> None:
        self._members = numbers

    def succeeded(self, number: int, seconds: float, now: float) -> None:
        """Do nothing: results do not matter."""

    def failed(self, number: int, now: float) -> None:
        """Do nothing: results do not matter."""

    def forget(self, numbers: Iterable[int]) -> None:
        """Do nothing: results do not matter."""


class _Host:
    __slots__ = ("delay", "is_dead", "next_try")

    def __init__(self) -> None:
        self.is_dead = False
        self.delay = _FIRST_DELAY
        self.next_try = 0.0

    def may_be_tried(self, now: float) -> bool:
        return not self.is_dead or self.next_try <= now

    def begin_try(self, now: float) -> None:
        """Double the time that a dead host is left out if it fails again. `succeeded` resets it."""
        if self.is_dead:
            self.delay = min(self.delay * 2, _LONGEST_DELAY)
            self.next_try = now + self.delay


class HostPool:
    """Picks each in turn, and skips failed ones. If all have failed, all are tried again.

    A failed one is left out for 30 s, 60 s, ... up to 15 minutes. `ordered` always picks the first available one.
    """

    def __init__(self, size: int, *, is_ordered: bool = False) -> None:
        self._hosts: defaultdict[int, _Host] = defaultdict(_Host)
        self._members: Sequence[int] = range(size)
        self._is_ordered = is_ordered
        self._at = 0

    def pick(self, now: float) -> int:
        members = self._members
        size = len(members)
        for step in range(size):
            at = step if self._is_ordered else (self._at + step) % size
            host = self._hosts[members[at]]
            if host.may_be_tried(now):
                host.begin_try(now)
                self._at = at + 1
                return members[at]
        self._revive()
        self._at = 1
        return members[0]

    def choose_among(self, numbers: Sequence[int]) -> None:
        self._members = numbers

    def usable(self, now: float) -> Sequence[int]:
        """Return the numbers of the available ones."""
        return [number for number in self._members if self._hosts[number].may_be_tried(now)]

    def succeeded(self, number: int, seconds: float, now: float) -> None:
        self._hosts[number].is_dead = False

    def failed(self, number: int, now: float) -> None:
        host = self._hosts[number]
        if not host.is_dead:
            host.is_dead = True
            host.delay = _FIRST_DELAY
            host.next_try = now + host.delay

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._hosts.pop(number, None)

    def _revive(self) -> None:
        for number in self._members:
            self._hosts[number].is_dead = False


class Least(HostPool):
    """Picks the one with the smallest `measure`, and takes turns among equals.

    Failed ones are left out, as in HostPool.
    """

    def __init__(self, size: int, measure: Callable[[int], int]) -> None:
        super().__init__(size)
        self._measure = measure

    def pick(self, now: float) -> int:
        usable = self.usable(now)
        if not usable:
            self._revive()
            usable = self._members
        measured = [(self._measure(number), number) for number in usable]
        least = min(measured)[0]
        equal = [number for measure, number in measured if measure == least]
        self._at += 1
        number = equal[self._at % len(equal)]
        self._hosts[number].begin_try(now)
        return number


class ByKey(HostPool):
    """Picks the same nsqd for the same key, with keys spread evenly. Without a key it works like HostPool.

    The key is a publish's key, its group or its topic, depending on the strategy. The order of the nsqds doesn't
    matter, nor which process picks; see `weight_of`. For example, a publisher that was killed and restarted repeats at
    the nsqd that may already have the message, and that one recognizes it. If an nsqd is left out because it has
    failed, its keys go to the next ones, and all other keys stay where they are.
    """

    def __init__(self, size: int, name: Callable[[int], str]) -> None:
        super().__init__(size)
        self._name = name

    def pick_for(self, key: bytes, now: float, avoid: Sequence[int] = ()) -> int:
        """Return the number for the key, if possible none of those to `avoid`."""
        usable = self.usable(now)
        if not usable:
            self._revive()
            usable = self._members
        wanted = [number for number in usable if number not in avoid]
        number = max(wanted or usable, key=lambda number: weight_of(self._name(number), key))
        self._hosts[number].begin_try(now)
        return number


def weight_of(name: str, key: bytes) -> tuple[bytes, str]:
    """Return the weight of an nsqd for a key. The nsqd with the highest weight gets the key (rendezvous hashing).

    docs/reference/client-options.md describes it for clients in other languages, so it must never change: programs of
    different versions would send the messages of a group to different nsqds.
    """
    return blake2b(key + b"\n" + name.encode(), digest_size=8).digest(), name


class _Speed:
    """One nsqd's response times in the last five minutes."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._sums = [0.0] * _BUCKETS
        self._bucket = 0  # the number of the current bucket, counted from time 0

    def add(self, seconds: float, now: float) -> None:
        self._advance(now)
        at = self._bucket % _BUCKETS
        self._counts[at] += 1
        self._sums[at] += seconds

    def average(self, now: float) -> float:
        """Return the average, weighted towards newer times; 0 without any."""
        self._advance(now)
        total, last = 0.0, 0.0
        for weight in range(1, _BUCKETS + 1):
            at = (self._bucket + weight) % _BUCKETS  # the oldest first
            if self._counts[at]:
                last = self._sums[at] / self._counts[at]
            total += weight / _BUCKETS * last
        return total

    def _advance(self, now: float) -> None:
        bucket = int(now // _BUCKET)
        for number in range(max(self._bucket + 1, bucket - _BUCKETS + 1), bucket + 1):
            self._counts[number % _BUCKETS] = 0
            self._sums[number % _BUCKETS] = 0.0
        self._bucket = max(self._bucket, bucket)


class EpsilonGreedy:
    """Picks mostly fast ones. Now and then it picks like HostPool, to learn."""

    def __init__(self, size: int, random: Random) -> None:
        self._pool = HostPool(size)
        self._speeds: defaultdict[int, _Speed] = defaultdict(_Speed)
        self._random: Callable[[], float] = random.random
        self._epsilon = _FIRST_EPSILON

    def pick(self, now: float) -> int:
        if self._random() < self._epsilon:
            self._epsilon = max(_LEAST_EPSILON, self._epsilon * _EPSILON_DECAY)
            return self._pool.pick(now)
        averages = {number: self._speeds[number].average(now) for number in self._pool.usable(now)}
        scores = {number: 1 / average for number, average in averages.items() if average > 0}
        drawn = self._random() * sum(scores.values())
        for number, score in scores.items():
            drawn -= score
            if drawn <= 0:
                return number
        return self._pool.pick(now)

    def succeeded(self, number: int, seconds: float, now: float) -> None:
        self._pool.succeeded(number, seconds, now)
        self._speeds[number].add(seconds, now)

    def failed(self, number: int, now: float) -> None:
        self._pool.failed(number, now)

    def choose_among(self, numbers: Sequence[int]) -> None:
        self._pool.choose_among(numbers)

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._speeds.pop(number, None)
            self._pool.forget((number,))
