"""Limits the work that one client may cause in a row before all others get their turn.

protocol.py's `_work` pauses a client after STRETCH commands, or when the extra costs of expensive commands add up to
STRETCH. The unit is a plain command, about a microsecond. For example, one read may contain 30,000 NOPs, or 920 DPUBs
that each become a batch of their own. But it hardly ever contains more than 600 messages of 200 bytes, so publishers of
such messages are hardly ever interrupted.
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
    """The extra costs of the commands since other clients had their turn. All parts of a client add to them."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0  # extra costs, besides the unit for each command

    def spend(self, cost: int) -> None:
        """Add the extra cost of an expensive command. We still carry out the command that exceeds the budget."""
        self.spent += cost
