"""A checkout of the scripts alone, and what they say when they are started in it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.process import ROOT

LIMIT: Final = 120.0
CANNOT: Final = 2  # the machine, or what was asked for, has to change first


def copy_scripts(to: Path) -> Path:
    """Make a checkout of the scripts, without .venv."""
    shutil.copytree(ROOT / "scripts", to / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, to / name)
    return to


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(python=shlex.quote(sys.executable), root=ROOT) if "{python}" in text else text)
    path.chmod(0o755)
    return path


def run(*command: str | Path, **environment: str) -> tuple[int, list[str]]:
    """Return the exit status, and what was said on stderr. Nothing may be said on stdout."""
    done = started(*command, **environment)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def started(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "NSQ", "CI", "PYTHON"))}
    return subprocess.run(
        command, env={**clean, "NSQ_APT": "no", **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
