"""How much work one client may cause at a stretch before all others get their turn.

A stretch ends after STRETCH commands, or when the extra costs of expensive commands add up to the same number. The unit
is a plain command, about a microsecond. One read may hold 30,000 NOPs, or 920 DPUBs that each become a batch of their
own, but hardly more than 600 messages of 200 bytes: a publisher of such messages is never interrupted.
"""

from __future__ import annotations

from typing import Final

STRETCH: Final = 1024
COST_OF_FAILURE: Final = 32  # an answer that is an error
COST_OF_DEFERRAL: Final = 8  # DPUB, REQ or BURY: a batch of its own, or a journal entry and another delivery
COST_OF_TOUCH: Final = 4
COST_OF_LOG: Final = 32  # a topic that gets its first message of the turn: a write to another file
COST_OF_TOPIC: Final = 256  # creating its files takes as long as hundreds of messages


class WorkBudget:
    """A sum that all parts of a client add to. None of them has to know who reads it."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0  # extra costs, besides the unit for each command

    def spend(self, cost: int) -> None:
        """Add the extra cost of an expensive command. The command that exceeds the stretch is still carried out."""
        self.spent += cost
