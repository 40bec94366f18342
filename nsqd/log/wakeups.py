"""The events on which the tasks beside the turns sleep."""

from __future__ import annotations

from nsqcommon.wakeup import Wakeup


class Wakeups:
    """One event for each task of `StoreTasks`, and `hurry`; in store_tasks.py, each task says what it waits for."""

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
