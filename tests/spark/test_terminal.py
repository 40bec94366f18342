"""A terminal shows what `nsqpipe` does from its first second on.

It starts a JVM of its own, because the seconds in which that starts are those that show nothing if we do not.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.entry import HELD_SIGNALS
from tests.spark.kill9 import processes_of_session
from tests.support import hangs
from tests.support.process import SOURCES, Nsqd
from tests.support.spark import address, numbered, publish

PATIENCE: Final = 240.0  # seconds that Spark may take on a busy machine
QUIET: Final = 10.0  # seconds; an idle machine takes little more than one


@pytest.mark.own_jvm("what is seen while it starts")
def test_a_terminal_always_shows_life_and_a_signal_ends_with_the_last_state(nsqd: Nsqd, tmp_path: Path) -> None:
    hangs.lift_limit()  # a JVM starts; the wait below has a limit of its own
    publish(nsqd, "orders", numbered(500))
    temporary, table = tmp_path / "tmp", tmp_path / "table"
    temporary.mkdir()
    words = ("land", "--nsqd", address(nsqd), "--topic=orders", "--table", str(table), "--conf=spark.local.dir=/tmp")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": SOURCES, "TMPDIR": str(temporary), "COLUMNS": "200"}
        os.execv(sys.executable, [sys.executable, "-m", "nsqpipe", *words])
    shown, quiet = b"", 0.0
    began = last = time.monotonic()
    asked, running = False, 0
    while time.monotonic() - began < PATIENCE:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # the process has ended
                break
            quiet = max(quiet, time.monotonic() - last)
            last = time.monotonic()
        if not asked and b"land: batch 0, 500 rows read" in shown and not any_is_deaf(pid):
            asked, running = True, len(processes_of_session(pid))
            os.kill(pid, signal.SIGTERM)
    assert asked, (shown, any_is_deaf(pid))
    assert running >= 3, "nsqpipe, its JVM, and a worker"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = shown.decode()
    assert "starting Spark" in text
    final = text.rpartition("\x1b[2K")[2]
    assert "land: 500 rows read in" in final
    assert "500 landed in" in final
    assert f"0 late, 0 behind; table {table}\r\n" in final
    assert quiet < QUIET
    assert list(temporary.iterdir()) == []


def any_is_deaf(session: int) -> bool:
    """Return whether a process of the session has signals blocked.

    `nsqpipe` holds signals while it starts, but what it starts must not inherit that for longer than from fork to exec.
    """
    return any(blocked_signals(pid) & HELD_SIGNALS for pid in processes_of_session(session))


def blocked_signals(pid: int) -> set[int]:
    """Return the signals that the process has blocked; none if it has ended meanwhile."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return set()
    found = re.search(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}
