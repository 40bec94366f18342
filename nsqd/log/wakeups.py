"""The events that wake the store's background tasks."""

from __future__ import annotations

from nsqcommon.wakeup import Wakeup


class Wakeups:
    """One event per background task, plus `hurry`. Read store_tasks.py to see what each task does."""

    def __init__(self) -> None:
        self.sync = Wakeup()
        self.hurry = Wakeup()  # ends the pause after a sync early
        self.flush = Wakeup()
        self.load = Wakeup()
        self.topology = Wakeup()
        self.rotation = Wakeup()
        self.repair = Wakeup()
        self.health = Wakeup()
        self.idle = Wakeup()
        self.compaction = Wakeup()
