"""What one client may cost at a stretch, before all others have their turn.

So many commands, and again as much of what costs more than others. The unit is a plain command, about a microsecond. One read
may hold 30,000 NOPs, or 920 DPUBs that each become a batch of their own, but hardly more than 600 messages of 200 bytes: a
publisher of these is never interrupted.
"""

from __future__ import annotations

from typing import Final

STRETCH: Final = 1024
COST_OF_FAILURE: Final = 32  # an answer that is an error
COST_OF_DEFERRAL: Final = 8  # DPUB or REQ: a batch, or an entry in the journal and another delivery
COST_OF_TOUCH: Final = 4
COST_OF_TOPIC: Final = 256  # its files take as much time as hundreds of messages


class Stretch:
    """A sum that the parts of a client add to, so that none of them has to know who looks at it."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0  # besides a unit for each command

    def spend(self, cost: int) -> None:
        """Count what costs more than a plain command. The command that exceeds the stretch is still carried out."""
        self.spent += cost
