"""The way from the broker to the journal, and the list of ledgers with progress that the journal does not know yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.store import Store

L = TypeVar("L")  # Ledger, whose module imports this one


class Journal(Generic[L]):
    """Records changes at once, except for progress: what was finished is collected, and recorded many times a second.

    A FIN only puts its ledger on the list `unsaved`, because one entry for each of them would cost more than the FIN.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.unsaved: dict[L, None] = {}  # ledgers with progress that the journal does not know
        self.urgent_changes = 0  # recorded since the start
        self.is_urgent = False  # whether the turn has to write the journal, because the disk does not have them all

    def record(self, change: Change, *, urgent: bool = True) -> None:
        """Record a change. Do not call this for anything ephemeral, because nothing of it outlives the process."""
        if urgent:
            self.urgent_changes += 1
            self.is_urgent = True
        self._store.record(change, urgent=urgent)

    def forget(self, ledger: L) -> None:
        """Take a ledger off the list, because its channel is deleted."""
        self.unsaved.pop(ledger, None)
