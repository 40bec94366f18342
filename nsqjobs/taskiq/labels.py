"""The labels that the broker reads. taskiq sends labels as text, but a task that is kicked again has the values."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from nsqjobs import groups

QUEUE: Final = "queue_name"  # as in taskiq-redis and taskiq-aio-pika
GROUP: Final = groups.GROUP  # as text; the same in all retries
DELAY: Final = "delay"  # seconds; as in taskiq-aio-pika; SmartRetryMiddleware sets it
RETRIES: Final = "_retries"  # set by taskiq's retry middlewares

Labels = Mapping[str, Any]


def queue_of(labels: Labels, default: str) -> str:
    """Return the name of the queue for the task."""
    return str(labels.get(QUEUE) or default)


def delay_of(labels: Labels) -> float:
    """Return the task's delay in seconds. Raise ValueError for an invalid label."""
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


def group_of(labels: Labels) -> str | None:
    """Return the task's group, or None. Raise ValueError for an invalid label."""
    return groups.group_text(labels.get(GROUP))


def retries_of(labels: Labels) -> int:
    """Return the number of retries from the labels."""
    said = str(labels.get(RETRIES, ""))
    return int(said) if said.isdecimal() else 0
