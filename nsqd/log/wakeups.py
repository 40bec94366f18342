"""What the tasks beside the turns sleep on."""

from __future__ import annotations

from common.wakeup import Wakeup


class Wakeups:
    """What the tasks of a store sleep on."""

    def __init__(self) -> None:
        self.sync = Wakeup()
        self.hurry = Wakeup()  # ends the pause between two rounds early
        self.flush = Wakeup()
        self.load = Wakeup()
        self.topology = Wakeup()
        self.rotation = Wakeup()
        self.repair = Wakeup()
        self.idle = Wakeup()
        self.carry = Wakeup()
