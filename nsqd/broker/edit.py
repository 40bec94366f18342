"""Edit and run: a message of one channel is replaced by an edited copy, which is a new message for this channel only.

For example, channel c has buried message 7, and channel d has finished it. An operator corrects its body:

    log        ... 7 ...                 ... 7 ... 20           20 says: a copy of 7, for c, replaces it
    channel c  7 is buried               7 is gone, 20 waits
    channel d  7 is finished             passes over 20

**What a crash interrupts is finished or undone.** The log's record is the deciding write. The journal gets an `edit`
just before it, with the sequence that the copy will have, and recovery compares this with the log:

    nothing written                 7 is where it was
    `edit`, and no record           7 is where it was: a `cut` at the log's end undoes the `edit` (journal_replay.py)
    `edit` and the record           the copy waits, and 7 is gone
    the record, and no `edit`       a power cut or damage has lost the `edit`; c decides where its cursor meets the copy

In the last case, 7 may have run meanwhile. If it still waits or is buried, the copy replaces it now. If it is in flight
or finished, the copy is passed over. So exactly one of the two runs to its end. The other channels pass over the copy
because its record says so, however they come to it: by a new channel, a seek, or a journal that was lost.

A client gets its answer after both are synced, whatever `--ack` says. Before that, a power cut may bring 7 back although a
consumer has had the copy, as with everything that isn't synced.

**Where the copy runs.** It waits like a kicked message, with attempts 0, so it comes before new messages. In its group it
comes last, because its sequence is the highest.

A copy is in the log as a message with a delay, at least of 1 ms, although its delay doesn't count: `Edit.delay_ms` does.
So the paths of other messages need no check for copies: they already look whether a batch has a delay.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

if TYPE_CHECKING:
    from nsqd.broker.batch import Receipt
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.channel import Channel

COPY_DELAY_MS: Final = 1  # the least delay of a copy in the log, see above


class MessagePlace(StrEnum):
    """Where a message is in a channel, for someone who wants to edit it."""

    WAITING = "waiting"
    DEFERRED = "deferred"
    BURIED = "buried"
    IN_FLIGHT = "in_flight"
    FINISHED = "finished"  # or it was never the channel's
    REPLACED = "replaced"  # an edited copy has taken its place
    NOT_RELEASED = "not_released"  # the topic is paused, so no channel has it


class Edit:
    """One request. Pass it to `Topic.publish_copy`; when the receipt is settled, `copy` and `refusal` are final."""

    __slots__ = (
        "again",
        "channel",
        "copy",
        "delay_ms",
        "due_ms",
        "former",
        "receipt",
        "refusal",
        "replaces",
        "sequence",
    )

    def __init__(self, channel: Channel, sequence: int, *, again: bool, delay_ms: int) -> None:
        """`again` also accepts a message that is finished, of which a copy runs in addition."""
        self.channel = channel
        self.sequence = sequence
        self.again = again
        self.delay_ms = delay_ms  # 0: the copy runs now
        place = place_of(channel, sequence)
        self.refusal = self._refusal_at(place)  # None: it can be edited
        self.replaces = place in _REPLACEABLE
        self.receipt: Receipt | None = None
        self.former: ChannelChange | None = None  # tells the journal where the message was
        self.copy = -1  # the sequence of the copy, once it is recorded
        self.due_ms = 0  # when it is due, wall clock; 0: now

    def _refusal_at(self, place: MessagePlace) -> MessagePlace | None:
        if place in _REPLACEABLE or (self.again and place in _FINISHED):
            return None
        return place

    def check_again(self, *, is_taken: bool) -> bool:
        """Return whether the message is still where it can be edited, because the turn of the request may be over.

        `is_taken` says whether another edit of this turn has it.
        """
        if is_taken:
            self.refusal = MessagePlace.REPLACED
            return False
        place = place_of(self.channel, self.sequence)
        self.refusal = self._refusal_at(place)
        if self.refusal is None and self.replaces != (place in _REPLACEABLE):  # the copy's record says otherwise
            self.refusal = place
        return self.refusal is None

    def run(self, now: int) -> None:
        """Let the channel have the copy instead of the message, now that the log has it. `now` is in microseconds."""
        channel, replaced = self.channel, self.sequence if self.replaces else -1
        name = channel.name
        edit: Change = ("edit", channel.feed.name, name, self.copy, replaced, self.due_ms)
        due = now + self.delay_ms * 1000 if self.delay_ms else 0
        channel.buried_queue.forget_kicked((self.sequence,))  # the undo of a kick must not bury it again
        channel.ledger.take_copy(self.copy, replaced, due, [edit] if self.former is None else [self.former, edit])
        channel.set_alarm()
        channel.schedule_delivery()


_REPLACEABLE: Final = frozenset((MessagePlace.WAITING, MessagePlace.DEFERRED, MessagePlace.BURIED))
_FINISHED: Final = frozenset((MessagePlace.FINISHED, MessagePlace.REPLACED))


def place_of(channel: Channel, sequence: int) -> MessagePlace:
    """Return where a message of the topic's log is in a channel."""
    ledger = channel.ledger
    wanted = BitMap64((sequence,))
    if sequence in ledger.buried:
        return MessagePlace.BURIED
    if ledger.in_flight.among(wanted):
        return MessagePlace.IN_FLIGHT
    if sequence in ledger.deferred:
        return MessagePlace.DEFERRED
    if sequence in ledger.retries:  # also a copy in a paused topic
        return MessagePlace.WAITING
    edited = ledger.edited
    if sequence >= channel.feed.high_watermark:
        if edited is None or sequence not in edited.copies:
            return MessagePlace.NOT_RELEASED
        if sequence in ledger.held:
            return MessagePlace.WAITING
    elif ledger.waiting_among(wanted):
        return MessagePlace.WAITING
    return MessagePlace.REPLACED if edited is not None and sequence in edited.replaced else MessagePlace.FINISHED
