"""A consumer of several topics without its waiting: a `Consumption` for each topic, with one queue.

Messages of all topics are handed out in the order of their arrival. How many of each may be in flight is decided in
shares.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING, Protocol

from nsqclient.core.consumption import Consumption, Together
from nsqclient.core.errors import ConfigError
from nsqclient.core.shares import Shares
from nsqclient.core.stats import ConsumerStats

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.consumption import ConsumerConnection
    from nsqclient.core.delivery import Delivery


class MakeConsumption(Protocol):
    """Makes the consumption of the topic with this number, with nothing in flight until it is allowed to."""

    def __call__(self, number: int, *, together: Together) -> Consumption: ...


class SeveralTopics:
    """The decisions of one consumer over all of its topics. It looks like a `Consumption`."""

    def __init__(
        self,
        weights: Sequence[float],
        config: Config,
        make: MakeConsumption,
        *,
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._clock = clock
        self._requested = config.max_in_flight  # kept while paused, for `resume`
        self._is_paused = False
        self.shares = Shares(config.max_in_flight, clock())
        together = Together(config, random, shares=self.shares)
        self.queue = together.queue
        self.dead_letters = together.dead_letters
        self.backoff = together.backoff
        self.parts: Sequence[Consumption] = [make(number, together=together) for number in range(len(weights))]
        for part, weight in zip(self.parts, weights, strict=True):
            part.share_by(weight)
        self._failure: BaseException | None = None

    @property
    def failure(self) -> BaseException | None:
        """Why the consumer can't go on: our tasks have failed, or some topic can never have a message."""
        return self._failure or next((part.failure for part in self.parts if part.failure is not None), None)

    @failure.setter
    def failure(self, error: BaseException | None) -> None:
        self._failure = error

    @property
    def is_stopping(self) -> bool:
        return self.parts[0].is_stopping

    @property
    def connections(self) -> Sequence[ConsumerConnection]:
        return [connection for part in self.parts for connection in part.connections]

    # Messages

    def take(self) -> Delivery | None:
        """Return the next message for a handler, or None if there is none now."""
        return self.parts[0].take()

    def give_up(self, message: Delivery, reason: str) -> None:
        """Make a dead letter of a message, bury it, or finish it; see `Consumption.give_up`."""
        self._part_of(message).give_up(message, reason)

    def finish_dead_letter(self, message: Delivery) -> bool:
        """Finish a message that we gave up on."""
        return self._part_of(message).finish_dead_letter(message)

    def _part_of(self, message: Delivery) -> Consumption:
        return next(part for part in self.parts if part.topic == message.topic)

    # Time

    @property
    def needs_tick(self) -> bool:
        """True if `next_tick` may be earlier than when it was last asked for."""
        return self._failure is not None or any(part.needs_tick for part in self.parts)

    def next_tick(self) -> float:
        """Return when `tick` has to be called."""
        next_look = inf if self.is_stopping else self.shares.next_tick
        return min(next_look, *(part.next_tick() for part in self.parts))

    def tick(self, now: float) -> None:
        """End a backoff pause and redistribute places and RDY, if it is time."""
        for part in self.parts:
            part.tick(now)
        if not self.is_stopping:
            self.shares.tick(now)

    # Flow control and stop

    @property
    def max_in_flight(self) -> int:
        return self.shares.allowed_by(self._requested)

    def set_max_in_flight(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"max_in_flight of {count}")
        self._requested = count
        if not self._is_paused:
            self.shares.set_max_in_flight(count, self._clock())

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.shares.set_max_in_flight(0, self._clock())

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.shares.set_max_in_flight(self._requested, self._clock())

    def stop(self) -> None:
        """Receive no new messages. Requeue those still in the queue; the others may still be answered."""
        if not self.is_stopping:
            for part in self.parts:
                part.unsubscribe()
            self.parts[0].return_queue()

    def abandon(self) -> None:
        """Stop, and requeue all unanswered messages."""
        self.stop()
        for part in self.parts:
            part.abandon()

    # Figures

    def is_starved(self) -> bool:
        """Return True if no message is waiting here and every topic in use sends no more until you answer messages."""
        in_use = [part for part in self.parts if part.flow.in_flight]
        return bool(in_use) and all(part.is_starved() for part in in_use)

    def stats(self) -> ConsumerStats:
        """Return the sums over all topics."""
        all_stats = [part.stats() for part in self.parts]
        return ConsumerStats(
            received=sum(it.received for it in all_stats),
            finished=sum(it.finished for it in all_stats),
            requeued=sum(it.requeued for it in all_stats),
            buried=sum(it.buried for it in all_stats),
            given_up=sum(it.given_up for it in all_stats),
            late_responses=sum(it.late_responses for it in all_stats),
            backoff_level=all_stats[0].backoff_level,
            backing_off_for=all_stats[0].backing_off_for,
            starved=self.is_starved(),
            connections=tuple(connection for it in all_stats for connection in it.connections),
            oldest_queued_age=all_stats[0].oldest_queued_age,
        )


def checked_topics(topics: object) -> Sequence[str]:
    """Return a consumer's topics. Raise ConfigError if there is none, or the same one twice."""
    if isinstance(topics, str):
        return (topics,)
    if (
        not isinstance(topics, Sequence)
        or not topics
        or not all(isinstance(topic, str) for topic in topics)
        or len(set(topics)) < len(topics)
    ):
        text = f"invalid topics ! {topics!r}, expected the name of one topic, or a list of different ones"
        raise ConfigError("topic", topics, text)
    return tuple(topics)
