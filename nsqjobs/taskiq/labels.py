"""The labels of a task that the broker reads. taskiq sends a label as text, and a task that is kicked again has the value."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

QUEUE: Final = "queue_name"  # as with taskiq-redis and taskiq-aio-pika
DELAY: Final = "delay"  # seconds; as with taskiq-aio-pika, and what SmartRetryMiddleware sets
RETRIES: Final = "_retries"  # set by taskiq's retry middlewares

Labels = Mapping[str, Any]


def queue_of(labels: Labels, default: str) -> str:
    """Return the name of the queue for the task."""
    return str(labels.get(QUEUE) or default)


def delay_of(labels: Labels) -> float:
    """Return the seconds by which the task is to be delayed. Raise ValueError for a label that is no such number."""
    said = labels.get(DELAY)
    if said is None:
        return 0.0
    try:
        delay = float(said)
    except (TypeError, ValueError):
        raise ValueError(f"the label delay is {said!r}, expected seconds") from None
    if not isfinite(delay):
        raise ValueError(f"the label delay is {said!r}, expected seconds")
    return delay


def retries_of(labels: Labels) -> int:
    """Return how often the task was tried again, as far as the labels tell."""
    said = str(labels.get(RETRIES, ""))
    return int(said) if said.isdecimal() else 0
