"""Limits how much work one client may cause in a row before all others get their turn.

The client has to stop after STRETCH commands, or when the extra costs of expensive commands add up to STRETCH. The unit
is a plain command, about a microsecond. For example, one read may bring 30,000 NOPs, or 920 DPUBs that each become a
batch of their own. But it hardly ever brings more than 600 messages of 200 bytes, so we never interrupt a publisher of
such messages.
"""

from __future__ import annotations

from typing import Final

STRETCH: Final = 1024
COST_OF_FAILURE: Final = 32  # an error response
COST_OF_DEFERRAL: Final = 8  # DPUB, REQ or BURY: a batch of its own, or a journal entry and another delivery
COST_OF_TOUCH: Final = 4
COST_OF_LOG: Final = 32  # a topic's first message in this turn: a write to another file
COST_OF_TOPIC: Final = 256  # creating its files takes as long as hundreds of messages


class WorkBudget:
    """The extra costs of the commands in the current stretch. All parts of a client add to it."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0  # extra costs, besides the unit for each command

    def spend(self, cost: int) -> None:
        """Add the extra cost of an expensive command. We still carry out the command that exceeds the budget."""
        self.spent += cost
