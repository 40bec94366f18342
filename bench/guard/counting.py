"""Counts instructions: runs the loads under Valgrind, in an environment that is the same everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from bench.builds import Build
from bench.guard.figures import Counts
from bench.work import ROOT, Failed

HERE: Final = Path(__file__).resolve().parent
LOADS: Final = HERE / "loads.py"
_AT_MOST: Final = 300  # seconds; an idle core takes 10

# The 64 MiB are room at the end of the heap. Without it the length of paths and variables decides where the heap has to
# grow, and so which lists can grow in place and which are copied: that made 0.5 % of one load.
_ENVIRONMENT: Final = {"PYTHONHASHSEED": "0", "MALLOC_TOP_PAD_": str(64 << 20)}
_CALLGRIND: Final = (
    *("-q", "--tool=callgrind", "--callgrind-out-file=count", "--instr-atstart=no", "--vgdb=no"),
    # Python's cache of methods is indexed by addresses. Two methods that a turn calls and that share a place there made up
    # to 4 % of a load, and any line of code may move them. So a search behind that cache does not count.
    *("--toggle-collect=find_name_in_mro*", "--collect-atstart=yes"),
)
_LOAD: Final = re.compile(r"^desc: Trigger: Client Request: (.*)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^totals: (\d+)$", re.MULTILINE)


class Skipped(Exception):
    """Nothing can be counted or compared here; the text says why, in one line."""


def key_of(build: Build) -> str:
    """Name all that the counts of this build depend on besides our code."""
    described = _output([_python(build), str(HERE / "python_build.py")])
    parts = [str(build), described, _output([_valgrind(), "--version"])]
    if build is Build.COMPILED:
        parts += [f"mypyc {metadata.version('mypy')}", _version_of(_compiler())]
    return ", ".join(parts)


def count(build: Build, *, tree: Path = ROOT, loads: Path = LOADS) -> Counts:
    """Return the instructions for each message of each load, on this build of the checkout `tree`. Raises Skipped."""
    python = _python(build, tree)
    with TemporaryDirectory(prefix="nsq-guard-") as name:
        folder = Path(name)
        _build_requests(folder / "requests.so")
        command = [python, "-P", "-s", str(loads), "./requests.so"]
        # Without Valgrind first: a mistake shows at once, and the bytecode of all modules is written.
        said = json.loads(_run([*command, _new_folder(folder, "rehearsal")], folder))
        if said["is_compiled"] != (build is Build.COMPILED):
            raise Failed(f"{python} does not run the {build.core} core")
        _run([_valgrind(), *_CALLGRIND, *command, _new_folder(folder, "data")], folder)
        totals = _totals(folder)
    # The median, because once in some rounds a list grows and is copied: it is chance whether a count has that.
    return {load: median(totals[load]) / messages for load, messages in said["messages"].items()}


def check_tools() -> None:
    """Raise Skipped unless this machine has all that counting needs."""
    _valgrind()
    _compiler()


def _python(build: Build, tree: Path = ROOT) -> str:
    return build.python(tree)[0]  # without its -I, which would ignore the hash seed


def _valgrind() -> str:
    if (path := shutil.which("valgrind")) is None:
        raise Skipped("there is no valgrind here")
    return path


def _compiler() -> str:
    """Return the compiler that scripts/compile takes."""
    name = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(name) is None:
        raise Skipped(f"there is no C compiler here: {name}")
    return str(name)


def _build_requests(library: Path) -> None:
    command = [_compiler(), "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "requests.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Skipped(f"requests.c does not compile: {done.stderr.strip().partition(chr(10))[0]}")


def _new_folder(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=_AT_MOST
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)}: status {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def _totals(folder: Path) -> Mapping[str, Sequence[int]]:
    """Return what Valgrind has counted for each load, round by round."""
    totals: defaultdict[str, list[int]] = defaultdict(list)
    for path in folder.glob("count.*"):
        text = path.read_text(encoding="utf-8")
        load, total = _LOAD.search(text), _TOTAL.search(text)
        if load and total:
            totals[load[1]].append(int(total[1]))
    return totals


def _version_of(compiler: str) -> str:
    """Return the first line of what it says, without the name by which it was called."""
    return "compiler " + _output([compiler, "--version"]).partition("\n")[0].partition(" ")[2]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout.strip()
