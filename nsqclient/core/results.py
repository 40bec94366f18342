"""The results of a producer's `cancel` and `reschedule`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """An nsqd that didn't answer, or refused."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    in_flight: int = 0  # a consumer has it: unchanged
    buried: int = 0  # it is buried: unchanged
    done: int = 0  # it was already finished or cancelled
    unknown: int = 0  # the topic is paused, so one channel alone can't decide yet: unchanged
    failures: tuple[NodeFailure, ...] = ()  # the result of these nsqds is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelResult(_Result):
    """Channels of all nsqds, counted by the state in which `cancel` found the message. All 0: no nsqd knows the key."""

    cancelled: int = 0  # it was waiting or deferred, and will never be delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class RescheduleResult(_Result):
    """Channels of all nsqds, counted by the state in which `reschedule` found the message.

    All 0: no nsqd knows the key.
    """

    moved: int = 0  # it was waiting or deferred, and is due at the new time
