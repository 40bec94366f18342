"""The end of a turn: what was decided in it is recorded, written, delivered and sent, in the one order that keeps promises.

1. **Deferrals.** The journal is told which publishes are deferred, before their logs have them. Otherwise a crash after the
   logs were written would deliver them at once.
2. **Journal.** Urgent changes are written. A client that was told of a new channel finds it after a crash, too.
3. **Promise.** Whoever waits for these changes learns whether the journal has them.
4. **Seal.** What was published becomes one batch for each topic, or is refused where the journal or the disk fails.
5. **Write.** One write for each log. Only then is there an OK.
6. **Hand over.** Channels get what is on disk, and pass it on to consumers that have room.
7. **Journal** again: what follows from delivering, before the frames that tell of it leave.
8. **Tell nsqlookupd** of topics that came, went or have other channels: whoever hears of a message finds its topic.
9. **Flush.** Answers and messages go to the sockets. That makes room, so it may all begin again.

Nothing in here waits. nsqd, the models in tests, the simulation of faults and the benchmarks all end their turns here.
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
        """Why the journal cannot be relied on; None: what `write_journal` has written is written."""

    @property
    def publishing_error(self) -> str | None:
        """Why nothing may be published; None: what the logs take may be acknowledged."""

    def write_journal(self) -> object:
        """Write the journal's buffer if something urgent is in it."""

    def write_logs(self) -> None:
        """Write once for each log that got something, and settle the receipts of what was written."""


def finish_turn(broker: Broker, disk: Disk, *, announce: Announce, flush: Callable[[], None]) -> None:
    """End a turn. `announce` tells nsqlookupd of topics that came, went or have other channels, and `flush` sends what clients are to get."""
    while True:
        if broker.unsealed or broker.promised is not None:
            if broker.deferring:
                broker.record_deferred()
            disk.write_journal()
            broker.keep_promise(disk.journal_error)
            broker.seal(disk.publishing_error)
            disk.write_logs()
        broker.hand_over()
        # If the disk does not take this, frames leave anyway: consuming goes on, and after a crash a message may come
        # earlier, or with fewer attempts, than a REQ has asked for.
        disk.write_journal()
        # A client that hears of a message must be able to find its topic by nsqlookupd.
        if broker.reshaped:
            reshaped, broker.reshaped = broker.reshaped, {}
            announce(reshaped)
        flush()
        # Sending makes room, and a client found dead may have been the last of an ephemeral channel.
        if not broker.to_deliver and not broker.unsealed and not broker.reshaped:
            break
    if broker.overflowing:
        broker.drop_overflow()
