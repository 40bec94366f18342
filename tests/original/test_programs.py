"""Whether NSQ's own programs are here."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.original.programs import FOLDER, PROGRAMS, program


def test_nsqs_own_programs_are_here() -> None:
    if not FOLDER:
        pytest.skip("NSQ_ORIGINAL names no folder with NSQ's own programs")
    assert [name for name in PROGRAMS if not os.access(program(name), os.X_OK)] == []
    said = subprocess.run([program("nsqd"), "--version"], capture_output=True, text=True, timeout=10, check=True)
    assert said.stdout.startswith("nsqd v1."), said.stdout
