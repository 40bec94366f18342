"""A machine: a disk that outlives its processes, a boot that ends with the power, and a way to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.remote.disk import MachineDisk

if TYPE_CHECKING:
    from tests.simulation.remote.process import Process


class Machine:
    def __init__(self, number: int) -> None:
        self.number = number
        self.disk = MachineDisk()
        self.copies: list[MachineDisk] = []  # of its disk, as backups and snapshots are
        self.boots = 1
        self.process: Process | None = None
        self.is_cut_off = False

    def __str__(self) -> str:
        return f"machine {self.number}"

    @property
    def boot(self) -> str:
        return f"{self.number}.{self.boots}"
