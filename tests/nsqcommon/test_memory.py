"""Figures about the memory of this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsqcommon import memory
from nsqcommon.memory import resident_bytes

PIECES = """
from nsqcommon.memory import resident_bytes, return_unused
kept, gone = [], []
for _ in range(2000):  # what goes lies between what stays
    gone.append(bytes(30_000))
    kept.append(bytes(1_000))
gone.clear()
before = resident_bytes()
return_unused()
assert resident_bytes() < before - 40_000_000, (before, resident_bytes())
"""


def test_resident_bytes_are_those_of_a_living_process() -> None:
    assert 10 << 20 < resident_bytes() < 10 << 30


def test_without_proc_they_are_the_most_that_it_has_ever_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = resident_bytes()
    monkeypatch.setattr(memory, "_STATM", tmp_path / "missing")
    assert 0.9 * now < resident_bytes() < 10 << 30


def test_what_lies_between_pieces_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
