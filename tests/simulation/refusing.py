"""Real processes on a disk that refuses to read for as long as a test wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.simulation.shim import Effect, Op, Rule, Shim

_READS: Final = Op.READ | Op.CACHED_READ | Op.LIST


class RefusingDisk:
    """The disk of a data path, for the processes that are started with `environ`."""

    def __init__(self, folder: Path, data_path: Path) -> None:
        self._shim = Shim(folder, data_path)
        self.environ: Mapping[str, str] = self._shim.environ

    def refuse(self, part_of_path: str) -> None:
        """Refuse reads of files that have this in their path; with a "+" in front also refuse to open them."""
        ops = _READS | Op.OPEN if part_of_path.startswith("+") else _READS
        self._shim.apply(Rule(ops, Effect.FAIL, pattern=f"*{part_of_path.removeprefix('+')}*"))

    def heal(self) -> None:
        self._shim.heal()

    @contextmanager
    def refusing(self, part_of_path: str) -> Iterator[None]:
        self.refuse(part_of_path)
        try:
            yield
        finally:
            self.heal()
