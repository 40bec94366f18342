"""Which nsqd is measured: this tree in pure Python, or the compiled core that scripts/compile has installed."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from typing import Final

from bench.work import ROOT, Failed, say

AUTO: Final = "auto"
_COMPILE: Final = str(ROOT / "scripts" / "compile")
_ASK: Final = "from common.version import core_of; from nsqd import protocol; print(core_of(protocol))"


class Build(StrEnum):
    PURE = "pure"
    COMPILED = "compiled"

    @property
    def core(self) -> str:
        """As nsqd's log has it."""
        return "compiled" if self is Build.COMPILED else "pure Python"

    @property
    def python(self) -> list[str]:
        """The start of its command line."""
        if self is Build.PURE:
            return [sys.executable]
        return [str(ROOT / ".venv-compiled" / "bin" / "python"), "-I"]  # or this tree would come first


CHOICES: Final = (AUTO, *Build)


def chosen(wanted: str) -> Build:
    """`auto`: the compiled one when it is up to date. What was chosen is asked what it is."""
    if wanted == Build.COMPILED:
        if subprocess.run([_COMPILE], check=False).returncode:
            raise Failed("there is no compiled core")
        build = Build.COMPILED
    elif wanted == AUTO and subprocess.run([_COMPILE, "--check"], check=False).returncode == 0:
        build = Build.COMPILED
    else:
        build = Build.PURE
        if wanted == AUTO:
            say("note: measuring pure Python, as scripts/compile has not been run on this code")
    command = [*build.python, "-c", _ASK]
    core = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    if core != build.core:
        raise Failed(f"{build.python[0]} runs the {core} core")
    return build
