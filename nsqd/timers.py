"""Periodic jobs, each a task that sleeps until there is something to do: an idle broker uses no processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.turn import Turn

_PROGRESS_INTERVAL: Final = 0.05  # seconds; with the journal's own it keeps FINs less than 100 ms behind
_TOPICS_AT_ONCE: Final = 100  # a fraction of a millisecond


class AnyTurn(Protocol):
    def begin(self) -> float: ...

    def finish(self) -> None: ...


class ProgressStore(Protocol):
    def write_journal(self, *, force: bool = False) -> bool: ...

    def set_topology(self, topology: object) -> None: ...


async def expire_messages(broker: Broker, turn: Turn) -> None:
    """Message timeouts and deferrals, exactly when they are due."""
    while True:
        turn.alarm_came_closer = trio.Event()
        turn.timers_sleep_until = broker.alarms.next
        with trio.move_on_after(max(0.0, broker.alarms.next - turn.begin())):
            await turn.alarm_came_closer.wait()
        turn.begin()
        broker.expire()
        turn.finish()


async def save_progress(broker: Broker, turn: Turn, store: ProgressStore) -> None:
    """What was finished, and the names of topics and channels, some times a second while something happens."""
    while True:
        turn.progress_made = trio.Event()
        if not (broker.changed or broker.lighter or broker.shape_unsaved):
            await turn.progress_made.wait()
        await trio.sleep(_PROGRESS_INTERVAL)
        if broker.shape_unsaved:
            broker.shape_unsaved = False
            store.set_topology(broker.topology())
        broker.record_progress()
        store.write_journal(force=True)


async def apply_retention(broker: Broker, turn: AnyTurn, interval: float | None) -> None:
    """Lets logs go of what has become too old, also those of topics where nothing happens."""
    while interval is not None:
        await trio.sleep(interval)
        names = list(broker.topics)
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            turn.begin()
            broker.let_go(names[start : start + _TOPICS_AT_ONCE])
            turn.finish()
            await trio.lowlevel.checkpoint()
