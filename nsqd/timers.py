"""Periodic jobs. Each is a task that sleeps until there is work, so an idle broker needs almost no CPU time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from nsqcommon.memory import return_unused
from nsqcommon.turn import Turn as AnyTurn
from nsqcommon.turn import in_turn

if TYPE_CHECKING:
    from nsqcommon.wakeup import Wakeup
    from nsqd.broker.broker import Broker
    from nsqd.broker.idle import Expired
    from nsqd.broker.leases import Leases
    from nsqd.broker.store import Names
    from nsqd.turn import Turn

_PROGRESS_INTERVAL: Final = 0.05  # seconds; we promise that FINs are in the journal within 100 ms
_POSTPONED_INTERVAL: Final = 0.1  # seconds
_FREEING_INTERVAL: Final = 0.002  # seconds
_TOPICS_AT_ONCE: Final = 100  # takes a fraction of a millisecond
_PLACE_INTERVAL: Final = 0.5  # seconds
_SWEEP_INTERVAL: Final = 1.0  # seconds
_MEMORY_INTERVAL: Final = 30.0  # seconds
_MANY_SESSIONS: Final = 100  # TLS sessions: some megabytes


T = TypeVar("T")


class ProgressStore(Protocol):
    def write_journal(self, *, force: bool = False) -> bool: ...

    def names_changed(self, names: Names) -> None: ...


class Sessions(Protocol):
    @property
    def sessions_gone(self) -> int: ...


async def expire_messages(broker: Broker, turn: Turn) -> None:
    """Handle timeouts and deferred messages exactly when they are due."""
    while True:
        turn.alarm_came_closer.clear()
        turn.timers_sleep_until = broker.turn.alarms.next
        with trio.move_on_after(max(0.0, broker.turn.alarms.next - turn.take_time())):
            await turn.alarm_came_closer.wait()
        with in_turn(turn):
            broker.expire()


async def save_progress(broker: Broker, turn: Turn, store: ProgressStore) -> None:
    """Save progress, and the names of topics and channels, up to twenty times a second while there are changes.

    We also collect young garbage each time, because the interpreter might wait too long. It counts new objects, but
    subtracts all freed ones, even old ones. As long as the counts balance, it never collects, and the next collection
    has to examine all objects created in the meantime.
    """
    while True:
        turn.progress_made.clear()
        if not (broker.turn.journal.unsaved or broker.turn.to_release or broker.turn.shape_unsaved):
            await turn.progress_made.wait()
        await trio.sleep(_PROGRESS_INTERVAL)
        record_progress(broker, store)
        store.write_journal(force=True)
        gc.collect(1)


def record_progress(broker: Broker, store: ProgressStore) -> None:
    """Record all changes since the last call. When nsqd stops, call this before you close the store."""
    if broker.turn.shape_unsaved:
        broker.turn.shape_unsaved = False
        store.names_changed(broker.topology_parts)
    broker.record_progress()


async def retry_postponed(broker: Broker, turn: Turn) -> None:
    """Run turns while publishes wait for the removal of files, or for a copy that is far behind.

    A successful removal begins a turn itself, and so does a confirmation. But if the removal fails or the disk or the
    store hangs, there may be no other turn that responds to the publishers.
    """
    while True:
        turn.publishes_wait.clear()
        if not broker.turn.postponed:
            await turn.publishes_wait.wait()
        await trio.sleep(_POSTPONED_INTERVAL)
        with in_turn(turn):
            pass


async def reclaim_memory(broker: Broker, turn: Turn) -> None:
    """Run turns while the reclaimer has entries to free. Each turn frees a few thousand, and there may be no others."""
    while True:
        turn.something_to_reclaim.clear()
        if broker.turn.reclaimer.is_empty:
            await turn.something_to_reclaim.wait()
        await trio.sleep(_FREEING_INTERVAL)
        with in_turn(turn):
            pass


async def apply_retention(broker: Broker, turn: AnyTurn, interval: Callable[[], float | None]) -> None:
    """Apply retention regularly, so that old messages are also removed from topics without traffic.

    `interval` returns the seconds until the next time, or None if messages never become too old.
    """
    while (seconds := interval()) is not None:
        await trio.sleep(seconds)
        await _in_pieces(broker, turn, broker.apply_retention)


async def expire_idle(
    broker: Broker, turn: AnyTurn, interval: Callable[[], float], report: Callable[[Expired], None]
) -> None:
    """Delete topics and channels that have been idle for as long as the policy's `expire_after`.

    `report` is called once for each, although a dry run finds the same ones again each time.
    """
    reported: set[Expired] = set()  # by dry runs

    def expire(names: list[str]) -> None:
        for expired in broker.expire_idle(names):
            if expired.is_dry_run:
                still_expired.add(expired)
            if expired not in reported:
                report(expired)

    while True:
        await trio.sleep(interval())
        still_expired: set[Expired] = set()
        await _in_pieces(broker, turn, expire)
        reported = still_expired


async def _in_pieces(broker: Broker, turn: AnyTurn, do: Callable[[list[str]], None]) -> None:
    """Call `do` with the names of all topics, a hundred in each turn, so that clients don't have to wait long."""
    names = list(broker.topics)
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        with in_turn(turn):
            do(names[start : start + _TOPICS_AT_ONCE])
        await trio.lowlevel.checkpoint()


async def sweep_leases(leases: Leases, turn: AnyTurn, first_has_come: Wakeup) -> None:
    """Remove HTTP consumers that have stopped polling. Runs once a second while there are HTTP consumers."""
    while True:
        first_has_come.clear()
        if not leases.http_consumers:
            await first_has_come.wait()
        await trio.sleep(_SWEEP_INTERVAL)
        with in_turn(turn):
            leases.sweep()


async def watch_data_path(look: Callable[[], T], report: Callable[[T], None]) -> None:
    """Notice within a second that the data path was deleted, moved or replaced, or that its disk is full.

    `look` runs in a thread of its own, so a hanging file server doesn't stop the event loop. We keep one thread that
    only reports changes, because a new thread for each check would double the CPU time of an idle broker.
    """
    known: T | None = None
    stopping = Event()

    def wait_for_change() -> T | None:
        while not stopping.wait(_PLACE_INTERVAL):
            if (found := look()) != known:
                return found
        return None

    try:
        while True:
            found = await trio.to_thread.run_sync(
                wait_for_change, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
            if found is not None:
                known = found
                report(found)
    finally:
        stopping.set()


async def return_memory(sessions: Sessions, *, give_back: Callable[[], None] = return_unused) -> None:
    """Return memory to the system after many TLS sessions have ended.

    Each session takes tens of kilobytes, and leaves free fragments that the C library would keep.
    """
    seen = 0
    while True:
        await trio.sleep(_MEMORY_INTERVAL)
        gone = sessions.sessions_gone
        if gone - seen >= _MANY_SESSIONS:
            seen = gone
            give_back()
