"""The channel's side of a subscription, and how near the client is."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nsqcommon.wire.frames import Piece
    from nsqd.broker.stats_records import ClientSnapshot

# A consumer that doesn't read gets no more than about this. Otherwise RDY 2,500 with large messages would take
# gigabytes of memory.
MOST_UNSENT_BYTES: Final = 1 << 20


class Locality(IntEnum):
    """How near a consumer is to this node."""

    ELSEWHERE = 0
    SAME_REGION = 1
    SAME_ZONE = 2


class Touches(NamedTuple):
    """How often a consumer has asked for more time for a message, and when it last did."""

    times: int
    last_at: int  # wall clock, nanoseconds; 0: never


NO_TOUCHES: Final = Touches(0, 0)


class Consumer:
    """A client's subscription, as its channel sees it: how many messages it may have, and how to send them.

    `send` takes the pieces of message frames. `close` ends the connection without an error frame when the
    channel is deleted. The client's side is `ClientSubscription` in nsqd/client/subscription.py, which limits RDY.

    `send_views`, if given, takes the pieces of large messages as views of their batch. A view keeps the whole batch in
    memory, so send or copy it within the turn.
    """

    def __init__(
        self,
        *,
        send: Callable[[list[bytes]], None],
        close: Callable[[], None],
        describe: Callable[[], ClientSnapshot],
        msg_timeout: float,
        sample_rate: int = 0,
        locality: Locality = Locality.ELSEWHERE,
        takes_headers: bool = False,
        send_views: Callable[[list[Piece]], None] | None = None,
    ) -> None:
        self.send = send
        self.send_views = send_views
        self.close = close
        self.describe = describe
        self.msg_timeout = msg_timeout  # seconds, for new deliveries
        self.sample_rate = sample_rate
        self.locality = locality
        self.takes_headers = takes_headers
        self.has_joined = False  # True from `Channel.join` until it leaves or the channel is deleted
        self.number = 0  # in its channel, in the order of joining
        self.ready_count = 0
        self.in_flight = 0
        self.unsent_bytes = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        # One attribute for both numbers: with those of a stream over HTTP, it is the thirtieth. With more, CPython reads
        # each of them more slowly.
        self.touches = NO_TOUCHES

    @property
    def room(self) -> int:
        """The number of messages that the consumer may get now."""
        if self.unsent_bytes > MOST_UNSENT_BYTES:
            return 0
        return self.ready_count - self.in_flight
