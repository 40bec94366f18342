"""One build by setuptools, in an environment on which the result does not depend.

`build` and `uv build` would call the same function of setuptools. They would be one more tool to have before a release
without a network, and the environment would still be ours to fix: backend.py is fifteen lines.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from scripts.releasing.project import Refused

_BACKEND: Final = Path(__file__).with_name("backend.py")
_LAST_LINES: Final = 20


def build(kind: str, source: Path, into: Path, *, python: Path, timestamp: int, compiles: bool = False) -> Path:
    """Build "sdist" or "wheel" of a folder, and return the file. Raise `Refused` with the end of the log if it fails."""
    into.mkdir(parents=True)
    environ = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(timestamp),
        "PYTHONHASHSEED": "0",  # mypyc iterates over sets
        "NSQ_COMPILE": "1" if compiles else "",
        "PYTHONPATH": "",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    run([str(python), "-P", str(_BACKEND), kind, str(into)], cwd=source, environ=environ)
    (file,) = into.iterdir()
    return file


def run(command: list[str], *, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """Run a command to its end, and return what it says. Raise `Refused` with the last of that if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
        raise Refused(f"{' '.join(command[:6])} failed with status {done.returncode}:\n{said}")
    return done.stdout
