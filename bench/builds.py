"""Which nsqd is measured: this tree in pure Python, the compiled core that scripts/compile has installed, or wheels.

A `tree` is a checkout, or an environment in which the wheels of a release are installed.
"""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Final

from bench.work import ROOT, Failed, say

AUTO: Final = "auto"
_COMPILE: Final = str(ROOT / "scripts" / "compile")
_ASK: Final = "from nsqcommon.version import core_of; from nsqd.broker import broker; print(core_of(broker))"


class Build(StrEnum):
    PURE = "pure"
    COMPILED = "compiled"

    @property
    def core(self) -> str:
        """Return the name of the build in nsqd's log."""
        return "compiled" if self is Build.COMPILED else "pure Python"

    def python(self, tree: Path = ROOT) -> list[str]:
        """Return the start of the command line that runs this build of a tree. An environment has only one."""
        if (installed := tree / "bin" / "python").exists():
            return [str(installed), "-I"]
        if self is Build.COMPILED:
            return [str(tree / ".venv-compiled" / "bin" / "python"), "-I"]  # without -I sources come first
        return [sys.executable if tree == ROOT else str(tree / ".venv" / "bin" / "python")]


CHOICES: Final = (AUTO, *Build)


def chosen(wanted: str, tree: Path = ROOT) -> Build:
    """Return the build to measure, after checking that nsqd really runs on it.

    `auto`: compiled, if that is up to date; in another tree than this one, the one that runs there.
    """
    if tree != ROOT:
        build = Build.COMPILED if _core(Build.COMPILED, tree) == Build.COMPILED.core else Build.PURE
        if wanted not in (AUTO, build):
            raise Failed(f"{tree} runs the {build.core} core")
        return build
    if wanted == Build.COMPILED:
        if subprocess.run([_COMPILE], check=False).returncode:
            raise Failed("there is no compiled core")
        build = Build.COMPILED
    elif wanted == AUTO and is_fresh():
        build = Build.COMPILED
    else:
        build = Build.PURE
        if wanted == AUTO:
            say("note: measuring pure Python, as scripts/compile has not been run on this code")
    check_core(build, ROOT)
    return build


def is_fresh() -> bool:
    """Return whether scripts/compile has been run on this code."""
    return subprocess.run([_COMPILE, "--check"], check=False).returncode == 0


def check_core(build: Build, tree: Path) -> None:
    """Raise Failed unless the nsqd of this tree really runs on this core."""
    core = _core(build, tree)
    if core != build.core:
        raise Failed(f"{build.python(tree)[0]} runs the {core} core")


def _core(build: Build, tree: Path) -> str:
    command = [*build.python(tree), "-c", _ASK]
    try:
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"{tree} has no {build} nsqd: run scripts/setup and scripts/compile there ({error})") from error
