"""Passes the broker's changes to the journal, and lists the ledgers whose progress isn't recorded yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.store import Store

L = TypeVar("L")  # Ledger, whose module imports this one


class BrokerJournal(Generic[L]):
    """Records changes immediately, except finished messages, which are collected for up to 50 ms.

    A FIN only puts its ledger on the list `unsaved`, because a journal entry for each FIN would cost more than the FIN.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.unsaved: dict[L, None] = {}  # ledgers with progress that isn't recorded yet
        self.urgent_changes = 0  # number of urgent changes since the start of nsqd
        self.is_urgent = False  # whether this turn must write the journal, because some of them aren't on disk

    def record(self, change: Change, *, urgent: bool = True) -> None:
        """Record a change. Don't record ephemeral topics or channels, because they end with the process."""
        if urgent:
            self.urgent_changes += 1
            self.is_urgent = True
        self._store.record(change, urgent=urgent)

    def forget(self, ledger: L) -> None:
        """Remove a ledger from `unsaved`, because its channel is deleted."""
        self.unsaved.pop(ledger, None)
