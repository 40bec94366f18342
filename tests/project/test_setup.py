"""scripts/setup says what it is going to do before it does it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def test_setup_says_what_takes_so_long_and_only_then(tmp_path: Path) -> None:
    for name in ("scripts/setup", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"  # a python that installs nothing
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    before, after = said_by(tmp_path / "scripts" / "setup").splitlines()
    assert before == "setup: installing into .venv; the first time takes half a minute, see .venv/install.log"
    assert after.startswith("setup: installed in ")
    log = (tmp_path / ".venv" / "install.log").read_text()
    assert "pip install" in log
    assert "--quiet" not in log, "pip tells the log what it is doing"
    assert said_by(tmp_path / "scripts" / "setup") == ""


def said_by(script: Path) -> str:
    return subprocess.run([script], capture_output=True, text=True, timeout=30, check=True).stderr
