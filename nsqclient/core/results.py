"""What `cancel` and `reschedule` of a producer return."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """An nsqd that gave no answer, or refused."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    in_flight: int = 0  # a consumer has it: nothing was changed
    buried: int = 0  # it is buried: nothing was changed
    done: int = 0  # it was finished, or taken back, before
    unknown: int = 0  # the topic is paused, so that one channel alone has no say yet: nothing was changed
    failures: tuple[NodeFailure, ...] = ()  # what these nsqds have is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelResult(_Result):
    """The channels of all nsqds, counted by the state in which `cancel` found the message. All 0: no nsqd knows the key."""

    cancelled: int = 0  # it waited or was deferred, and will never be delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class RescheduleResult(_Result):
    """The channels of all nsqds, counted by the state in which `reschedule` found the message.

    All 0: no nsqd knows the key.
    """

    moved: int = 0  # it waited or was deferred, and is due at the new time
