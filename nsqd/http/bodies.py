"""Reads the bodies for lists of messages, from memory or one by one from disk, without blocking other clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.headers import decode_headers
from nsqd.http.history import body_member, headers_member

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.channel import Channel
    from nsqd.http.history import HistoryReads

LONGEST_READ: Final = 10.0  # seconds to wait for one body from disk


class BodyReader:
    def __init__(self, reading: HistoryReads, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._reading = reading
        self._clock = clock

    async def batch(
        self, channel: Channel, sequence: int, is_wanted: Callable[[], bool], *, seconds: float = LONGEST_READ
    ) -> Batch | str:
        """Return the batch with this message, or the reason why there is none. Stops once `is_wanted` returns False."""
        reading, log = self._reading, channel.feed.log
        end = self._clock() + seconds
        while is_wanted() and log.next_readable(sequence) == sequence:
            batch = log.batch_at(sequence)
            if batch is not None:
                return batch
            left = end - self._clock()
            if left <= 0 or reading.stopping or log.end_of_refused(sequence) != sequence:
                return "the disk can't be read now"
            await reading.loads.wait_for_change(channel.feed.name, seconds=left)
        return "the log no longer has it"


def body_members(found: Batch | str, sequence: int) -> dict[str, object]:
    """Return the members `timestamp`, `headers` and `body` of a line, or `unread` with the reason."""
    if isinstance(found, str):
        return {"unread": found}
    headers = found.headers_between(sequence, sequence + 1)
    members = headers_member(decode_headers(headers)) if headers else {}
    return {"timestamp": found.timestamp, **members, **body_member(found.body(sequence))}
