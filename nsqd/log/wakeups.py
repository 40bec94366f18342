"""The events that wake the store's background tasks."""

from __future__ import annotations

from nsqcommon.wakeup import Wakeup


class Wakeups:
    """The events, most of them for one task in store_tasks.py. nsqd/daemon.py waits for `health`."""

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
