"""Things that must not be in the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = {".py", ".md", ".toml", ".sh", ".json", ".yaml", ".yml", ".txt", ".c", ""}

# Paths that exist on one machine only, written in pieces so that this file does not match.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(("wor" + "k/", "hom" + "e/", "roo" + "t/", "Use" + "rs/")) + ")")
SYNC = re.compile(r"\bos\.f(?:data)?sync\b")
LEFT_OVER = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b(?!\(#\d+\))")


def tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for file in tracked_files():
        if file.suffix not in TEXT or not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    return found


def test_no_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_what_is_left_to_do_names_an_issue() -> None:
    assert lines_with(LEFT_OVER) == []


def test_only_disk_sync_makes_files_durable() -> None:
    """Elsewhere `os.fsync` would leave data in the drive's cache on macOS."""
    own = ("tests/", "bench/", "scripts/", "common/nsqcommon/disk_sync.py")
    assert [line for line in lines_with(SYNC) if not line.startswith(own) and line.split(":")[0].endswith(".py")] == []


def test_scripts_can_be_run() -> None:
    plain = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix]
    assert plain
    for script in [*plain, ROOT / ".ci" / "run"]:
        assert script.stat().st_mode & 0o111, script.name
        assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n"), script.name
