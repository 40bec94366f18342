"""The events that wake the store's background tasks."""

from __future__ import annotations

from nsqcommon.wakeup import Wakeup


class Wakeups:
    """One event per task. store_tasks.py says what the tasks do; nsqd/daemon.py waits for `health`."""

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
