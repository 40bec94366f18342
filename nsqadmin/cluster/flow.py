"""The flow of a channel's messages on one node: how its depth changes, what leaves it unread, and whether it stands still.

All of it comes from counters in answers that are some seconds apart, so we keep what earlier answers said. The trend is
the measured change of the depth over about a minute (`pace.py`). It isn't "in minus finished", because that says
"growing" of a channel that drops as much as it gets.

Operators also move messages: a kick, a seek backwards or a replay puts thousands into the queue at once, which is no
growth by traffic. More messages can't arrive in a channel than its topic has got, so the rest was put back:

    put back = (growth of depth, in flight and deferred) - (what arrived by the topic)

The trend leaves out what was put back. We only notice it from `_MANY` messages on, and more where more arrive, because
nsqd counts a message that just moves twice, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nsqadmin.cluster.pace import Pace, pace_after
from nsqadmin.cluster.policy_counts import Reading, Readings, counted_lately

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode, Counts

_MANY: Final = 100  # messages
_MINUTE: Final = 60.0
_BLINK: Final = 15.0  # seconds; a shorter time without messages in flight doesn't end a standstill
# Causes of nsqd's counts; the end of the name is the outcome.
_BURIED: Final = "buried"  # by any rule
_DROPPED: Final = ", dropped"
_EXPIRED: Final = frozenset(("ttl, dropped", "ttl, buried"))
_OVERFLOW_BURIED: Final = "overflow, buried"


class Step(NamedTuple):
    """What happened between two answers."""

    incoming: int  # messages that arrived by the topic, without what an operator put back
    put_back: int
    finished: int
    requeued: int
    timed_out: int
    buried: int  # at least: kicked and discarded ones in the same step hide some
    buried_by_clients: int


class Paced(NamedTuple):
    """Rates over about a minute."""

    net: float  # change of the depth
    failed: float
    dropped: float
    expired: float
    buried: float
    removed: float


class Standstill(NamedTuple):
    """Since when consumers hold messages and finish none."""

    since: float  # on our monotonic clock
    is_older: bool  # it was so when we first looked
    timed_out_before: int  # the counter of timeouts at that time
    has_held_up: bool = False  # others have waited for a minute meanwhile
    idle_since: float | None = None  # since when nothing is in flight


class Flow(NamedTuple):
    pace: Pace
    standstill: Standstill | None  # None: nothing is in flight, or something was just finished
    put_back: int = 0  # messages put back since the first answer
    buried: int = 0  # messages buried since the first answer
    burials: Readings = ()  # readings of that number, for the last five minutes
    buried_lately: int = 0

    def paced(self, at: float, row: ChannelNode) -> Paced | None:
        """Return the rates until now; None right at the start."""
        counts = self._counts(row)
        changes = self.pace.changes(at, counts)
        if changes is None:
            return None
        return Paced(changes[1], *(max(change, 0.0) for change in changes[2:]))

    def _counts(self, row: ChannelNode) -> tuple[int, ...]:
        return _counts_of(row, put_back=self.put_back, buried=self.buried)


def first_flow(at: float, row: ChannelNode) -> Flow:
    standstill = Standstill(at, True, row.timeout_count) if row.in_flight_count else None
    return Flow(pace_after(None, at, _counts_of(row, put_back=0, buried=0)), standstill)


def flow_after(before: Flow, at: float, row: ChannelNode, step: Step | None, *, has_finished: bool) -> Flow:
    """Return the flow with this answer. `step` is None if the channel was created again: its counters have gone down."""
    if step is None:
        return first_flow(at, row)
    put_back, buried = before.put_back + step.put_back, before.buried + step.buried
    burials, lately = before.burials, 0
    if buried:
        counts: Counts = ((_BURIED, buried),)
        earlier = burials or (Reading(before.pace.newer_at, ((_BURIED, 0),)),)
        burials, grown = counted_lately(earlier, Reading(at, counts))
        lately = sum(count for _, count in grown)
    return Flow(
        pace_after(before.pace, at, _counts_of(row, put_back=put_back, buried=buried)),
        _standstill_after(before.standstill, at, row, has_finished=has_finished),
        put_back,
        buried,
        burials,
        lately,
    )


def step_between(before: ChannelNode, now: ChannelNode, arrived: int | None) -> Step | None:
    """Return what happened between two answers; None if the channel was deleted and created again.

    `arrived` is the number of messages that the topic may have handed over meanwhile; None: unknown.
    """
    entered = now.message_count - before.message_count
    requeued, timed_out = now.requeue_count - before.requeue_count, now.timeout_count - before.timeout_count
    if entered < 0 or requeued < 0 or timed_out < 0:
        return None
    arrived = entered if arrived is None else arrived
    many = max(_MANY, arrived // 10)
    incoming = arrived if entered - arrived > many else entered  # after a seek backwards, nsqd counts messages again
    gained = _active(now) - _active(before) - incoming
    # Finished are the messages that came in, aren't there any more, and weren't dropped by a rule; emptying a channel
    # or discarding buried messages looks like finishing. While a message moves, nsqd may count it twice or not at all,
    # so the difference can fall a little below zero.
    dropped = max(dropped_among(now.policy_counts) - dropped_among(before.policy_counts), 0)
    buried = max(now.buried_count - before.buried_count, 0)
    by_rules = max(_count(now.policy_counts, _BURIED) - _count(before.policy_counts, _BURIED), 0)
    return Step(
        incoming=incoming,
        put_back=min(gained, max(now.depth - before.depth, 0)) if gained > many else 0,
        finished=max(entered + _held(before) - _held(now) - dropped, 0),
        requeued=requeued,
        timed_out=timed_out,
        buried=buried,
        buried_by_clients=max(buried - by_rules, 0),
    )


def _standstill_after(
    before: Standstill | None, at: float, row: ChannelNode, *, has_finished: bool
) -> Standstill | None:
    if not row.client_count or (has_finished and not row.in_flight_count):
        return None
    if has_finished:
        return Standstill(at, False, row.timeout_count)
    if before is None:
        return Standstill(at, False, row.timeout_count) if row.in_flight_count else None
    if not row.in_flight_count:
        idle_since = at if before.idle_since is None else before.idle_since
        return before._replace(idle_since=idle_since) if at - idle_since <= _BLINK else None
    has_held_up = before.has_held_up or (bool(row.depth) and at - before.since >= _MINUTE)
    if before.idle_since is None and has_held_up == before.has_held_up:
        return before
    return before._replace(idle_since=None, has_held_up=has_held_up)


def has_finished(before: ChannelNode, now: ChannelNode, step: Step) -> bool:
    """Return True if consumers have finished or buried a message between two answers.

    Emptying or moving a channel looks like finishing, so we believe the consumers' own counters where we know them.
    """
    if step.buried_by_clients:
        return True
    if not step.finished or before.clients is None or now.clients is None:
        return bool(step.finished)
    counts = {(it.remote_address, it.connect_time): it.finish_count for it in before.clients}
    for client in now.clients:
        if client.finish_count > counts.pop((client.remote_address, client.connect_time), 0):
            return True
    return bool(counts)  # one that is gone may have finished it


def is_settled(standstill: Standstill | None, row: ChannelNode) -> bool:
    """Return True if another answer like this one changes nothing."""
    return standstill is None or (standstill.idle_since is None and (standstill.has_held_up or not row.depth))


def _counts_of(row: ChannelNode, *, put_back: int, buried: int) -> tuple[int, ...]:
    """Return the counters of a pace, in the order of `Paced`; the first one only tells when they were reset."""
    dropped, expired, removed = 0, 0, 0
    for cause, count in row.policy_counts:
        if cause in _EXPIRED:
            expired += count
        elif cause.endswith(_DROPPED):
            dropped += count
        if is_removal(cause):
            removed += count
    failed = row.requeue_count + row.timeout_count
    return row.message_count, row.depth - put_back, failed, dropped, expired, buried, removed


# Causes


def is_loss(cause: str) -> bool:
    """Return True if a policy has dropped the messages."""
    return cause.endswith(_DROPPED)


def is_removal(cause: str) -> bool:
    """Return True if a policy has taken the messages out of the queue: without it, they would still wait."""
    return is_loss(cause) or cause in _EXPIRED or cause == _OVERFLOW_BURIED


def dropped_among(counts: Counts) -> int:
    """Return how many messages policies have dropped."""
    return sum(count for cause, count in counts if is_loss(cause))


def _count(counts: Counts, wanted: str) -> int:
    return next((count for cause, count in counts if cause == wanted), 0)


def _active(row: ChannelNode) -> int:
    return row.depth + row.in_flight_count + row.deferred_count


def _held(row: ChannelNode) -> int:
    return _active(row) + row.buried_count
