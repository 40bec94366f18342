"""One retry of the failed jobs of a task: which jobs these are, how many may go by now, and how far it is.

nsqd kicks buried messages by their reason, but it doesn't read headers, so it knows no tasks. So nsqadmin itself runs a
retry by task (retries.py): it finds the jobs by their headers and has nodes kick them, a few at a time.

It goes through the list of buried messages once, in the order in which they were published, and never back. So it
retries each job once, however often that fails again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.jobs.tasks import Quantity, Trust
from nsqadmin.messages.reason_groups import is_named_by, most_frequent

if TYPE_CHECKING:
    from nsqadmin.messages.buried import Burial

AT_ONCE: Final = 100  # jobs in one step
_STEP: Final = 0.5  # seconds of its rate that a step may have


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A buried job."""

    node: str
    id: str  # nsqd's id of its message
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReading:
    """The buried jobs of a task in a queue, as far as the list was read."""

    jobs: tuple[FailedJob, ...] = ()
    looked: int = 0  # buried messages that were read, of all tasks
    total: int = 0  # buried messages on the nodes that answer
    after: str = ""  # where the list continues; empty: it was read to the end
    missing: Mapping[str, str] = field(default_factory=dict)  # nodes that weren't read, or not to the end, and why
    silent: frozenset[str] = frozenset()  # those of them of which nothing is known

    def with_reason(self, reason: str) -> tuple[FailedJob, ...]:
        """Return the jobs that failed with exactly this error, or one of this pattern; all of them if it is empty."""
        return tuple(it for it in self.jobs if not reason or is_named_by(it.reason, reason))

    def count(self, reason: str = "") -> Quantity:
        """Return how many jobs there are: by their share, beyond what was read."""
        found = len(self.with_reason(reason))
        if self.missing:
            return Quantity(found, Trust.AT_LEAST) if found else Quantity(None, Trust.UNKNOWN)
        if not self.after:
            return Quantity(found)
        if not found:
            return Quantity(None, Trust.UNKNOWN)  # they may be further on
        return Quantity(round(found * max(self.total, self.looked) / self.looked), Trust.ABOUT)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """The most frequent errors of these jobs, and patterns of several."""
        return most_frequent(Counter(it.reason for it in self.jobs if it.reason), 20)


def failed_in(lines: Sequence[Burial]) -> tuple[FailedJob, ...]:
    return tuple(FailedJob(it.node, it.id, it.reason) for it in lines if it.id)


def in_words(quantity: Quantity, one: str) -> str:
    """Return a number of things, and how much it can be trusted."""
    if quantity.value is None:
        return f"an unknown number of {one}s"
    sign = {Trust.AT_LEAST: "at least ", Trust.ABOUT: "about "}.get(quantity.trust, "")
    return sign + numbers.several(quantity.value, one)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWanted:
    """A user's request."""

    topic: str
    channel: str
    task: str
    reason: str = ""  # only jobs that failed with exactly this error, or one of this pattern
    rate: float = 0.0  # jobs a second over all nodes; 0: as fast as the nodes can
    limit: int = 0  # 0: all


class Retry:
    """A retry that runs or has ended."""

    def __init__(
        self, id: str, wanted: RetryWanted, total: Quantity, *, who: str, started_at: float, token: str = ""
    ) -> None:
        """`token` is of the form that has begun it."""
        self.id: Final = id
        self.token: Final = token
        self.wanted: Final = wanted
        self.total: Final = total
        self.who: Final = who
        self.started_at: Final = started_at
        self.ended_at: float | None = None
        self.asked = 0  # jobs of which a node was asked
        self.done = 0  # jobs that were kicked
        self.gone = 0  # jobs that weren't buried any more
        self.stopped_by = ""
        self.is_noted = False  # its beginning is in the audit log
        self.waits_for_room = False
        self.errors: dict[str, str] = {}  # nodes that have failed, and why; their other jobs stay buried
        self.unread: dict[str, str] = {}  # nodes whose list wasn't read to the end, and why
        self._kicks: dict[str, int] = {}  # by node
        self._due = -inf

    @property
    def is_running(self) -> bool:
        return self.ended_at is None

    @property
    def is_stopped(self) -> bool:
        return bool(self.stopped_by)

    @property
    def result(self) -> str:
        """Return ok, partly or failed."""
        if self.errors:
            return "partly" if self.done else "failed"
        return "partly" if self.unread and self.left else "ok"

    @property
    def left(self) -> float:
        """How many jobs may still be asked for."""
        return self.wanted.limit - self.asked if self.wanted.limit else inf

    @property
    def step(self) -> int:
        """How many jobs go at once."""
        if not self.wanted.rate:
            return AT_ONCE
        return max(1, min(AT_ONCE, int(self.wanted.rate * _STEP)))

    def due(self, count: int, now: float) -> float:
        """Return when the next step may go, on the clock of `now`, and reserve its share of the rate.

        After a pause, such as for a channel without room, the rate isn't made up for.
        """
        due = max(self._due, now)
        self._due = due + count / self.wanted.rate if self.wanted.rate else now
        return due

    def kick_of(self, node: str) -> int:
        """Return the number of the node's kick, which the next step continues; 0: there is none yet."""
        return self._kicks.get(node, 0)

    def kicked(self, node: str, asked: int, done: int, kick: int) -> None:
        self.asked += asked
        self.done += done
        self.gone += asked - done
        if done and kick:
            self._kicks[node] = kick

    def failed(self, node: str, asked: int, why: str) -> None:
        self.asked += asked
        self.errors[node] = why

    @property
    def kicks(self) -> tuple[str, ...]:
        """The kicks that can be undone, each as NUMBER@NODE."""
        return tuple(f"{number}@{node}" for node, number in self._kicks.items())

    @property
    def seconds_left(self) -> float | None:
        """About how long it will still take; None: unknown, or it has no rate."""
        if not (self.wanted.rate and self.total.value):
            return None
        return max(0, self.total.value - self.asked) / self.wanted.rate

    @property
    def outcome(self) -> str:
        """What it has done, in words."""
        text = f"{numbers.several(self.done, 'job')} retried"
        if self.is_running and self.total.value:
            text = f"{self.done:,} of {in_words(self.total, 'job')} retried"
        return text + (f"; {self.gone:,} no longer buried" if self.gone else "")
