"""A test that hangs ends its process, which says where it hung."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support import hangs

ROOT = Path(__file__).parents[2]
BEGIN = """
import signal, time
from tests.support import hangs
def test_that_hangs():
    time.sleep(100)
hangs.begin(2)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        cwd=ROOT,
        env={**os.environ, hangs.VARIABLE: "0.2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_test_that_hangs_ends_the_process_and_is_named() -> None:
    done = run("test_that_hangs()")
    assert done.returncode == -signal.SIGALRM
    assert "in test_that_hangs" in done.stderr


def test_so_does_the_one_after_a_test_that_took_the_signal_for_itself() -> None:
    done = run(
        "signal.signal(signal.SIGALRM, lambda *_: print('mine')); hangs.end(); hangs.begin(2); test_that_hangs()"
    )
    assert done.returncode == -signal.SIGALRM
    assert "in test_that_hangs" in done.stderr
    assert not done.stdout


def test_a_test_that_has_ended_is_left_alone() -> None:
    done = run("hangs.end(); time.sleep(0.5)")
    assert (done.returncode, done.stderr) == (0, "")
