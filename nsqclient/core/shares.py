"""How the topics of one consumer share its `max_in_flight`, by weight.

Each topic has a `Flow`, which shares out the topic's places among its nsqds. How many places a topic gets is decided
here:

    uses up its places     its part by weight, and its part of what others leave over
    uses fewer             some more than it uses, and one for each nsqd, so that its next message comes at once
    has no nsqd            none

For example, with `max_in_flight` 9, weights 8 and 1 and one nsqd, the topics have 8 and 1 places while both have
messages waiting. If the first one is empty, they have 1 and 8. When its next message arrives, it is entitled to 8 again
at once, and gets them as messages of the other topic are answered.

The guarantee of flow.py holds for all topics together: a place goes to another topic once the nsqds of the first one
know the lower RDY, and its messages beyond that are answered.

Parts are rarely whole numbers, and the places that are left over go round: each ROUND, to the topics that have received
least for their weight. For example, two equal topics and three places have 2 and 1, then 1 and 2.

If a part is less than one place, for example with `max_in_flight` 1, topics take turns with those places: whenever a
message arrives, the next turn is again for the topic that has received least. A topic that sends nothing loses its turn
after QUIET, and then waits for TURN.

A topic that doesn't use its places has no right to make up for it later, or it would have all turns for as long as it
was idle. So it counts as having received as much as the least served topic that has use for more (`_forgo`).

Backoff is the consumer's, not a topic's, because a failing handler says nothing about a topic: all topics are held, and
one of them is tested. It has the only place meanwhile, whatever its part or turn: if an idle topic kept the place, the
test message would never come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import gt, lt
from typing import TYPE_CHECKING, Final, cast

from nsqclient.core.errors import ConfigError
from nsqclient.core.flow import LOOK

if TYPE_CHECKING:
    from nsqclient.core.flow import Flow

ROUND: Final = 1.0  # seconds between two looks at how much each topic uses
QUIET: Final = 0.1  # seconds without a message after which a turn ends
TURN: Final = 1.0  # seconds until a topic that sent nothing has another turn
_ROUNDING: Final = 1e-9
_LEAST_WEIGHT: Final = 1e-6  # so that sums and quotients are far from infinite
_MOST_WEIGHT: Final = 1e6


class TopicShare:
    """One topic and its use of its places."""

    __slots__ = (
        "_allow",
        "flow",
        "has_used_up",
        "has_used_up_lately",
        "is_idle",
        "last_message",
        "most_before",
        "most_in_flight",
        "places",
        "rests_until",
        "served",
        "served_before",
        "turn_began",
        "weight",
    )

    def __init__(self, flow: Flow, weight: float, allow: Callable[[int, float], None]) -> None:
        self.flow = flow
        self.weight = weight
        self._allow = allow  # sets the flow's `max_in_flight`
        self.places = 0
        self.most_in_flight = 0  # in this round
        self.most_before = 0  # in the round before
        self.has_used_up = False  # its places, in this round
        self.has_used_up_lately = False  # in this round or the one before
        self.last_message = -inf
        # For places that are left over, and turns
        self.served = 0.0  # messages received, by weight
        self.served_before = 0.0  # at the end of the last round
        self.is_idle = False  # it has sent nothing since it became quiet
        self.turn_began = -inf
        self.rests_until = -inf

    @property
    def reserved(self) -> int:
        """How many places it may take up, even if it gets no more."""
        return max(self.places, self.flow.committed)

    @property
    def demand(self) -> float:
        """How many places it can use: a power of two above its recent use, so that RDY doesn't change all the time."""
        if self.has_used_up_lately:
            return inf
        most = max(self.most_in_flight, self.most_before)
        return max(1 << most.bit_length(), len(self.flow.seats))

    @property
    def wants_more(self) -> bool:
        """True if it uses up its places, or waits for a turn."""
        return len(self.flow.seats) > 0 and not self.is_idle and (self.has_used_up_lately or not self.places)

    def allow(self, places: int, now: float) -> None:
        if places and not self.places:
            self.turn_began = now
        self.places = places
        self._allow(places, now)

    def end_round(self) -> None:
        """Begin another round of looking at its use."""
        in_flight = self.flow.in_flight
        self.most_before, self.most_in_flight = self.most_in_flight, in_flight
        # If it is still at its limit, it has used that up, even if no message came in this round.
        self.has_used_up_lately = self.has_used_up or (self.places > 0 and _has_used_up(self.flow, in_flight))
        self.has_used_up = False
        self.served_before = self.served

    def is_quiet(self, now: float) -> bool:
        """Return True if it has places and sends nothing."""
        since = max(self.last_message, self.turn_began)
        return self.places > 0 and not self.flow.in_flight and now - since > QUIET


class Shares:
    """The places of all topics. The owner calls `tick` at `next_tick`."""

    def __init__(self, requested: int | None, now: float) -> None:
        self.requested = requested  # None: one for each connection
        self.topics: list[TopicShare] = []
        self._is_owed = False  # a topic gets more as soon as another one's places are free
        self._has_turns = False
        self._is_held = False  # during backoff
        self._tested: TopicShare | None = None  # during backoff, the topic with the test message
        self._next_look = now + LOOK
        self._next_round = now + ROUND

    def add(self, flow: Flow, weight: float, allow: Callable[[int, float], None]) -> TopicShare:
        """Add a topic. `allow` sets its flow's `max_in_flight`."""
        self.topics.append(TopicShare(flow, weight, allow))
        return self.topics[-1]

    @property
    def max_in_flight(self) -> int:
        return self.allowed_by(self.requested)

    def allowed_by(self, requested: int | None) -> int:
        """Return `requested`, or one for each connection if it is None."""
        if requested is not None:
            return requested
        return max(sum(len(topic.flow.seats) for topic in self.topics), 1)

    # Events

    def set_max_in_flight(self, requested: int | None, now: float) -> None:
        self.requested = requested
        self.rebalance(now)

    def arrived(self, topic: TopicShare, count: int, now: float) -> None:
        """Record messages of a topic."""
        if topic.is_idle:
            self._forgo(topic)
            topic.is_idle = False
            topic.rests_until = now
        topic.last_message = now
        topic.served += count / topic.weight
        in_flight = topic.flow.in_flight
        topic.most_in_flight = max(topic.most_in_flight, in_flight)
        is_news = False
        if _has_used_up(topic.flow, in_flight):
            is_news = not topic.has_used_up_lately
            topic.has_used_up = topic.has_used_up_lately = True
        if is_news or self._has_turns:
            self.rebalance(now)

    def freed(self, now: float) -> None:
        """Record that answers or a lower RDY have left the process."""
        if self._is_owed:
            self.rebalance(now)

    # Backoff

    def hold(self, now: float) -> None:
        """Set every RDY to 0."""
        self._is_held, self._tested = True, None
        for topic in self.topics:
            topic.flow.hold(now)
        self.rebalance(now)

    def test_one(self, now: float) -> bool:
        """Give one connection of one topic RDY 1. Return False if none may have it."""
        if sum(topic.flow.committed for topic in self.topics) >= self.max_in_flight:
            return False
        candidates = [topic for topic in self.topics if topic.flow.seats]
        if not candidates:
            return False
        tested = min(candidates, key=lambda topic: (topic is self._tested, topic.turn_began))
        self._tested = tested
        self.rebalance(now)
        tested.turn_began = now
        return tested.flow.test_one(now)

    def release(self, now: float) -> None:
        """Give every topic its places again."""
        self._is_held, self._tested = False, None
        for topic in self.topics:
            topic.flow.release(now)
        self.rebalance(now)

    # Time

    @property
    def next_tick(self) -> float:
        return self._next_look

    def tick(self, now: float) -> None:
        """Look at each topic's use of its places, if it is time."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK
        if now >= self._next_round:
            self._next_round = now + ROUND
            for topic in self.topics:
                topic.end_round()
        if self._is_held:
            self._test_another(now)
            return
        for topic in self.topics:
            if topic.is_quiet(now):
                topic.has_used_up = topic.has_used_up_lately = False
                topic.is_idle = True
                topic.rests_until = now + TURN
            # A topic that waits for a turn doesn't forgo it: it may have messages by now.
            if not topic.flow.seats or (topic.places and not topic.wants_more):
                self._forgo(topic)
        self.rebalance(now)

    def _test_another(self, now: float) -> None:
        """Test another topic if the tested one has no message."""
        tested = self._tested
        if tested is not None and tested.is_quiet(now):
            tested.flow.hold(now)
            self.test_one(now)

    def _forgo(self, topic: TopicShare) -> None:
        """Count what a topic could have had if it had had messages."""
        others = [it.served for it in self.topics if it is not topic and it.wants_more]
        # If none has use for more, each has had all it wanted.
        enough = min(others) if others else max(it.served for it in self.topics)
        topic.served = max(topic.served, enough)

    # The places

    def rebalance(self, now: float) -> None:
        """Lower the places of topics above their part, then raise others as far as `max_in_flight` allows."""
        wanted = self._wanted(now)
        for topic, places in zip(self.topics, wanted, strict=True):
            if places < topic.places:
                topic.allow(places, now)
        free = self.max_in_flight - sum(topic.reserved for topic in self.topics)
        self._is_owed = False
        # The least served one first, and none after it until it has its places. Otherwise a place that goes to and fro
        # between two others, whose messages still use it, would never be free for a third.
        for topic, places in sorted(zip(self.topics, wanted, strict=True), key=lambda it: it[0].served):
            if places > topic.places:
                given = min(places, topic.reserved + max(free, 0))
                if given > topic.places:
                    free -= max(given - topic.reserved, 0)
                    topic.allow(given, now)
                if given < places:
                    self._is_owed = True
                    break

    def _wanted(self, now: float) -> list[int]:
        if self._is_held:
            return [1 if topic is self._tested and self.max_in_flight else 0 for topic in self.topics]
        active = [topic for topic in self.topics if topic.flow.seats]
        if self._are_content(active):
            self._has_turns = False
            return [topic.places if topic.flow.seats else 0 for topic in self.topics]
        parts = parts_by_weight(
            self.max_in_flight, [topic.weight for topic in active], [topic.demand for topic in active]
        )
        places = {id(topic): int(part + _ROUNDING) for topic, part in zip(active, parts, strict=True)}
        left = self.max_in_flight - sum(places.values()) if active else 0
        rests = [(part - places[id(topic)], topic) for topic, part in zip(active, parts, strict=True)]
        self._has_turns = any(not places[id(topic)] and rest > _ROUNDING for rest, topic in rests)
        candidates = [topic for rest, topic in rests if rest > _ROUNDING]
        if self._has_turns:
            chosen = self._turns(candidates, left, places, now)
        else:
            chosen = sorted(candidates, key=lambda topic: topic.served_before)[:left]
        for topic in chosen:
            places[id(topic)] += 1
        return [places.get(id(topic), 0) for topic in self.topics]

    def _are_content(self, active: Sequence[TopicShare]) -> bool:
        """Return True if all places are given, and no topic has use for more."""
        given = sum(topic.places for topic in active)
        return given == self.max_in_flight and all(topic.places >= topic.demand for topic in active)

    def _turns(
        self, candidates: Sequence[TopicShare], count: int, whole: dict[int, int], now: float
    ) -> Iterable[TopicShare]:
        """Return the topics that have a turn: ready ones first, then the least served, then those that have one now."""
        return sorted(
            candidates,
            key=lambda topic: (
                max(topic.rests_until, now),
                topic.served,
                topic.places <= whole[id(topic)],
            ),
        )[:count]


def parts_by_weight(most: int, weights: Sequence[float], demands: Sequence[float]) -> list[float]:
    """Share `most` by weight. Who demands less than its part leaves the rest to the others.

    If there is enough for all demands, no topic gives up anything for others that don't need it.
    """
    differs = gt if sum(demands) <= most else lt
    parts = [0.0] * len(weights)
    left = float(most)
    by_weight = set(range(len(weights)))
    while by_weight:
        unit = left / sum(weights[at] for at in by_weight)
        by_demand = {at for at in by_weight if differs(demands[at], weights[at] * unit)}
        if not by_demand:
            break
        for at in by_demand:
            parts[at] = demands[at]
        left -= sum(demands[at] for at in by_demand)
        by_weight -= by_demand
    for at in by_weight:
        parts[at] = weights[at] * unit
    return parts


def checked_weights(weights: object, topics: Sequence[str]) -> Sequence[float]:
    """Return a weight for each topic: 1 if there are none. Raise ConfigError."""
    if weights is None:
        return [1.0] * len(topics)
    if (
        isinstance(weights, str | bytes)
        or not isinstance(weights, Sequence)
        or len(weights) != len(topics)
        or not all(_is_weight(weight) for weight in weights)
    ):
        numbers = f"a number from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}"
        text = f"invalid weights ! {weights!r}, expected {numbers} for each of {', '.join(topics)}"
        raise ConfigError("weights", weights, text)
    return cast("Sequence[float]", weights)


def _is_weight(weight: object) -> bool:
    if not isinstance(weight, int | float) or isinstance(weight, bool):
        return False
    return _LEAST_WEIGHT <= weight <= _MOST_WEIGHT


def _has_used_up(flow: Flow, in_flight: int) -> bool:
    """Return True if a topic, or one of its nsqds, can send no more until messages are answered."""
    return in_flight >= flow.max_in_flight or any(seat.rdy and seat.in_flight() >= seat.rdy for seat in flow.seats)
