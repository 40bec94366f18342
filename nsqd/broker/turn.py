"""The end of a turn: records, writes, delivers and sends its results, in an order that keeps our promises.

0. **Room.** If a limit requires it, we drop the oldest messages to make room for new ones. Publishes that must wait for
   the removal of files, or for a copy that is far behind, are left to a later turn.
1. **Deferrals.** The journal gets this turn's deferred publishes before the logs do. Otherwise, after a crash in
   between, they would be delivered immediately.
2. **Journal.** Urgent changes are written. For example, a client is about to get the OK for its new channel, so the
   channel must survive a crash.
3. **Promise.** Clients that wait for these changes get their answer.
4. **Seal.** Publishes become batches in the buffers of the logs: one for the PUBs and small MPUBs of the turn, and one
   for each large MPUB, DPUB and MPUB with a key or headers. If the journal or the disk has failed, they fail instead.
5. **Write.** Each log is written once. No publisher gets its OK before that.
6. **Release.** Channels get the written messages, and deliver them to consumers with room.
7. **Journal** again, because deliveries may be urgent changes, which must be written before we send the frames.
8. **Announce.** nsqlookupd gets the topics that were created or deleted, or whose channels have changed. A client that
   learns of a message must be able to find its topic.
9. **Flush.** Answers and messages go to the sockets. This makes room for more deliveries, so we may start over.

Nothing in here waits. nsqd, the models in tests, the simulation of faults and the benchmarks all end their turns here.

Few turns need all of the steps. So each rare step has a list or a flag, such as `turn.deferring`, `turn.postponed` or
`journal.is_urgent`, which we check before we call anything. The code that makes the step necessary sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker

Announce = Callable[[Collection[str]], None]  # with the names of topics


class Disk(Protocol):
    """The store as the end of a turn sees it."""

    @property
    def journal_error(self) -> str | None:
        """Why the journal may lack changes, or None if `write_journal` has written all of them."""

    @property
    def publishing_error(self) -> str | None:
        """The error for all publishes, or None if publishing is possible."""

    def write_journal(self) -> bool:
        """Write the journal's buffer if it has an urgent change. Return False if the disk can't take it now."""

    def write_logs(self) -> None:
        """Write each log that has new messages, once, and settle the receipts of the written ones."""


def finish_turn(broker: Broker, disk: Disk, *, announce: Announce, flush: Callable[[], None]) -> None:
    """End a turn.

    `announce` informs nsqlookupd of topics that were created or deleted, or whose channels have changed. `flush` sends
    clients their answers and messages.
    """
    turn, journal = broker.turn, broker.turn.journal
    while True:
        if turn.dropping or turn.postponed or broker.is_copy_behind:
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
        # If the disk can't take these changes, we send the frames anyway, so that consumers can go on. After a crash, a
        # message may then be delivered earlier than a REQ has requested, or with fewer attempts.
        if journal.is_urgent:
            journal.is_urgent = not disk.write_journal()
        # Before the flush, because a client that learns of a message must find its topic on nsqlookupd.
        if turn.reshaped:
            reshaped, turn.reshaped = turn.reshaped, {}
            announce(reshaped)
        flush()
        # Sending makes room for more. It may also find a dead connection, whose ephemeral channel is then deleted.
        if not turn.to_deliver and not turn.unsealed and not turn.reshaped:
            break
    if turn.overflowing:
        broker.drop_overflow()
    turn.spent = None
    if not turn.reclaimer.is_empty:
        turn.reclaimer.free_some()
