"""Delays longer than nsqd accepts.

An nsqd defers a publish for up to `--max-defer-timeout` (by default the limit of a requeue: an hour), refuses a longer
delay and names its limit. Then we publish the job with that limit and a header about it, and its header `job-eta` has
the real due time: a worker that gets the job earlier gives it back for the rest of the time, and the attempt doesn't
count. So no worker holds a job that isn't due. For example, a job that is due next week passes through a worker once an
hour, or never if nsqd runs with a longer `--max-defer-timeout`.

A job with its full delay is never given back: if it arrives early, an operator wants that (`/message/due`), or the
worker's clock is slow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from nsqclient import Unsupported
from nsqjobs.headers import eta_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqclient import PublishRejected

SHORTENED: Final = "job-delay-shortened"  # the header of a job that may arrive early

_limit: Final = re.compile(r"DPUB timeout \d+ out of range 0-(\d+)", re.ASCII).search


class Requeueable(Protocol):
    """A message of nsqclient, on any loop."""

    @property
    def headers(self) -> Mapping[str, bytes]: ...
    def requeue(self, delay: float, *, backoff: bool, count: bool) -> bool: ...


class DelayLimit:
    """The maximum delay that a producer's nsqds accept, learned from their refusals.

    while True:
        try:
            return producer.publish(topic, body, delay=limit.shorten(delay), headers=limit.marked(headers, delay))
        except PublishRejected as error:
            if not limit.learn(error, delay):
                raise
    """

    def __init__(self) -> None:
        self.seconds = float("inf")

    def shorten(self, delay: float) -> float | None:
        """Return the delay to publish with; None if it is already over."""
        return min(delay, self.seconds) if delay > 0 else None

    def marked(self, headers: Mapping[str, bytes], delay: float) -> Mapping[str, bytes]:
        """Return the headers to publish with. They say if the delay was shortened."""
        return {**headers, SHORTENED: b"1"} if delay > self.seconds else headers

    def learn(self, error: PublishRejected, delay: float) -> bool:
        """Return True if a shorter delay may help, because nsqd named a limit below the delay that we tried."""
        found = _limit(error.text)
        if found is None or (limit := int(found[1]) / 1000) >= min(delay, self.seconds):
            return False
        self.seconds = limit
        return True


def time_left(headers: Mapping[str, bytes], now: float) -> float:
    """Return the seconds until a delivered job is due; 0 if it is due or had its full delay."""
    eta = eta_of(headers) if SHORTENED in headers else None
    return max(0.0, eta - now) if eta is not None else 0.0


def give_back_early(message: Requeueable, now: float) -> bool:
    """Give back a message that isn't due yet, for the rest of its delay. Return True if it was given back.

    A message with unreadable headers counts as due, and so does one from an nsqd that would count the attempt.
    """
    try:
        left = time_left(message.headers, now)
        if left > 0:
            message.requeue(left, backoff=False, count=False)
        return left > 0
    except (ValueError, Unsupported):
        return False
