"""The effects of policy rules on messages: counts by cause, and how many of them are recent.

Rare events that matter much, such as a rule dropping a message, are counted over five minutes, with one reading per
minute:

    oldest ── minute ── minute ── minute ── minute ── now      the oldest one goes once it is more than five minutes old
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsqadmin.cluster.sane import check_count, check_numbers, text

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Counts

LATELY: Final = 300.0  # seconds

_MINUTE: Final = 60.0
_MOST_CAUSES: Final = 100


class Reading(NamedTuple):
    at: float
    counts: Counts


Readings = tuple[Reading, ...]


def read_counts(raw: Any) -> Counts:
    """Read a node's counts for a topic or a channel."""
    if not raw:
        return ()
    check_count(len(raw), _MOST_CAUSES, "causes")
    check_numbers(0, *raw.values())
    return tuple(sorted((text(cause), count) for cause, count in raw.items()))


def counted_lately(readings: Readings, now: Reading) -> tuple[Readings, Counts]:
    """Return the readings to keep, and the counts since the oldest reading of the last five minutes.

    `readings` are the previous ones; without any, we don't know when a count happened. New causes may appear. If a
    count has gone down, it was reset.
    """
    if not now.counts:
        return (), ()
    kept = tuple(it for it in readings if now.at - it.at <= LATELY) or readings[-1:]
    if not kept:
        return (now,), ()
    found = dict(now.counts)
    if any(found.get(cause, 0) < count for cause, count in kept[-1].counts):
        kept = (Reading(now.at, ()),)
    before = dict(kept[0].counts)
    grown = tuple((cause, new) for cause, count in now.counts if (new := count - before.get(cause, 0)) > 0)
    return ((*kept, now) if now.at - kept[-1].at >= _MINUTE else kept), grown


def growing(before: Counts, now: Counts) -> tuple[str, ...]:
    """Return the causes that have counted on from one answer to the next. A node that was restarted counts from zero."""
    if now == before:
        return ()
    known = dict(before)
    return tuple(cause for cause, count in now if count != known.get(cause, 0) and count)
