"""The physical limit of publishing: runs `limit.c`, which isn't a broker, where `bench peers` runs one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.servers import Server
from bench.work import COMPILERS, HERE, c_compiler, compiled


class Limit(Server):
    program = "limit"
    protocol = "nsq"
    _greeting = b"  V2IDENTIFY\n\0\0\0\2{}"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.records = folder / "records"  # each message behind its size
        self._binary = folder / "limit"

    @classmethod
    def lacks(cls) -> str:
        return "" if c_compiler() else f"bench/limit.c is compiled before it is measured: that needs {COMPILERS}"

    @classmethod
    def version(cls) -> str:
        return "bench/limit.c"

    @property
    def command(self) -> Sequence[str]:
        return [str(self._binary), str(self.port), str(self.records)]

    def launch(self) -> None:
        if not self._binary.exists():
            compiled(self._binary, HERE / "limit.c")
        super().launch()
