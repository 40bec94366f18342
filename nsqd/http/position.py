"""A channel's place in its topic's log, and the messages that come next, for looking without changing anything."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel


def next_places(channel: Channel, limit: int) -> list[tuple[int, int]]:
    """Return (sequence, attempts so far) of the messages to be delivered next: requeued ones first, then new ones."""
    places = channel.ledger.retries.next_ones(limit)
    end = channel.feed.high_watermark
    sequence = channel.ledger.cursor
    for start, stop in chain(channel.ledger.skips, [(end, end)]):
        if len(places) >= limit:
            break
        take = range(sequence, min(start, end))
        places += [(it, 0) for it in take[: limit - len(places)]]
        sequence = max(sequence, stop)
    return places
