"""Delays that are longer than nsqd accepts.

An nsqd defers a publish for up to `--max-defer-timeout` (by default that of a requeue: an hour) and refuses a longer
delay, naming its limit. The job is then published with that limit and a header that says so, and its header `job-eta`
tells when it is really due: a worker that gets it earlier gives it back for the rest of the time without counting the
attempt. So no worker holds a job that is not due, and a job that is due next week passes through a worker once an hour,
or never if nsqd runs with a longer `--max-defer-timeout`.

A job whose delay was not shortened is never given back: when it comes before its time, an operator wants it to
(`/message/due`), or the clock of the worker is behind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from nsqclient import Unsupported
from nsqjobs.headers import eta_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqclient import PublishRejected

SHORTENED: Final = "job-delay-shortened"  # the header of a job that may come before its time

_limit: Final = re.compile(r"DPUB timeout \d+ out of range 0-(\d+)", re.ASCII).search


class Requeueable(Protocol):
    """A message of nsqclient's, on whatever loop."""

    @property
    def headers(self) -> Mapping[str, bytes]: ...
    def requeue(self, delay: float, *, backoff: bool, count: bool) -> bool: ...


class DelayLimit:
    """The longest delay that the nsqds of a producer accept, as learned from what they refused.

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
        """Return the delay to publish with: None for one that is over already."""
        return min(delay, self.seconds) if delay > 0 else None

    def marked(self, headers: Mapping[str, bytes], delay: float) -> Mapping[str, bytes]:
        """Return the headers to publish with, which tell whether the delay is shortened."""
        return {**headers, SHORTENED: b"1"} if delay > self.seconds else headers

    def learn(self, error: PublishRejected, delay: float) -> bool:
        """Return whether a shorter delay may help: whether nsqd has named a limit below the one that was tried."""
        found = _limit(error.text)
        if found is None or (limit := int(found[1]) / 1000) >= min(delay, self.seconds):
            return False
        self.seconds = limit
        return True


def time_left(headers: Mapping[str, bytes], now: float) -> float:
    """Return the seconds until a job that was delivered is due: 0 for one that is due or whose delay was not shortened."""
    eta = eta_of(headers) if SHORTENED in headers else None
    return max(0.0, eta - now) if eta is not None else 0.0


def give_back_early(message: Requeueable, now: float) -> bool:
    """Give back a message that is not due yet, for the rest of its delay. Return whether it was given back.

    A message whose headers nobody can read is due, and so is one of an nsqd that would count the attempt.
    """
    try:
        left = time_left(message.headers, now)
        if left > 0:
            message.requeue(left, backoff=False, count=False)
        return left > 0
    except (ValueError, Unsupported):
        return False
