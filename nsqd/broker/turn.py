"""The end of a turn: what was decided in it is recorded, written, delivered and sent, in the order that keeps promises.

0. **Room.** Where the policy bounds what may pile up, the oldest messages are dropped for those that come. What has to
   wait until files of its log are removed is left to a later turn.
1. **Deferrals.** The journal is told which publishes are deferred, before their logs have them. Otherwise a crash after
   the logs were written would deliver them at once.
2. **Journal.** Urgent changes are written, if there are any. A new channel, whose client is about to get its OK, is still
   there after a crash.
3. **Promise.** Clients that wait for these changes learn whether the journal has them.
4. **Seal.** What was published becomes batches in the buffers of the logs: one for the PUBs and small MPUBs of the turn,
   and one for each large MPUB, DPUB and MPUB with a key or headers. Where the journal or the disk fails, publishers are
   refused instead.
5. **Write.** One write for each log. Only then is there an OK.
6. **Hand over.** Channels get what is on disk, and pass it on to consumers that have room.
7. **Journal** again, if delivering has made urgent changes: they are written before the frames of these deliveries leave.
8. **Tell nsqlookupd** of topics that came, went or have other channels. A client that hears of a message must find its
   topic.
9. **Flush.** Answers and messages go to the sockets. That makes room, so all of this may begin again.

Nothing in here waits. nsqd, the models in tests, the simulation of faults and the benchmarks all end their turns here.

Most turns have nothing unusual. So each unusual step has a list or a flag, which is kept by the code that adds to it, and
the turn looks at that before it calls anything: `turn.deferring`, `turn.postponed`, `journal.is_urgent` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker

Announce = Callable[[Collection[str]], None]  # with the names of topics


class Disk(Protocol):
    """What a turn asks of the disk."""

    @property
    def journal_error(self) -> str | None:
        """Why the journal cannot be relied on; None: `write_journal` has really written everything."""

    @property
    def publishing_error(self) -> str | None:
        """Why nothing may be published; None: messages that the logs take may be acknowledged."""

    def write_journal(self) -> bool:
        """Write the journal's buffer if it holds an urgent change. Return False if the disk does not take it now."""

    def write_logs(self) -> None:
        """Write each log that has new messages, once, and settle the receipts of what was written."""


def finish_turn(broker: Broker, disk: Disk, *, announce: Announce, flush: Callable[[], None]) -> None:
    """End a turn.

    `announce` tells nsqlookupd which topics came, went or have other channels. `flush` sends clients their answers and
    messages.
    """
    turn, journal = broker.turn, broker.turn.journal
    while True:
        if turn.dropping or turn.postponed:
            broker.make_room(disk.publishing_error)
        if turn.unsealed or broker.promised is not None:
            if turn.deferring:
                broker.record_deferred()
            if journal.is_urgent:
                journal.is_urgent = not disk.write_journal()
            if broker.promised is not None:
                broker.settle_promised(disk.journal_error)
            broker.seal(disk.publishing_error)
            disk.write_logs()
        broker.release_to_channels()
        # If the disk does not take these changes, the frames leave anyway: consuming goes on. After a crash a message
        # may then come earlier than a REQ has asked for, or with fewer attempts.
        if journal.is_urgent:
            journal.is_urgent = not disk.write_journal()
        # A client that hears of a message must be able to find its topic by nsqlookupd.
        if turn.reshaped:
            reshaped, turn.reshaped = turn.reshaped, {}
            announce(reshaped)
        flush()
        # Sending makes room, and a client that turns out to be dead may have been the last of an ephemeral channel.
        if not turn.to_deliver and not turn.unsealed and not turn.reshaped:
            break
    if turn.overflowing:
        broker.drop_overflow()
    turn.ranges_dropped = 0
    if not turn.reclaimer.is_empty:
        turn.reclaimer.free_some()
