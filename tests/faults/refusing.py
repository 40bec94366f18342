"""Real processes on a disk that refuses to read for as long as a test wants it: see read_refusals.c."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_name("read_refusals.c")


class RefusingDisk:
    """Preloaded with `environ`; made in a folder of its own, outside of the data path."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        library = folder / "read_refusals.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self._control = folder / "control"
        self.environ = {"LD_PRELOAD": str(library), "NSQ_REFUSE_CONTROL": str(self._control)}

    def refuse(self, part_of_path: str) -> None:
        """From now on, what has this in its path; with a "+" before it also opening."""
        fresh = self._control.with_suffix(".new")
        fresh.write_text(part_of_path)
        fresh.rename(self._control)

    def heal(self) -> None:
        self._control.unlink(missing_ok=True)

    @contextmanager
    def refusing(self, part_of_path: str) -> Iterator[None]:
        self.refuse(part_of_path)
        try:
            yield
        finally:
            self.heal()
