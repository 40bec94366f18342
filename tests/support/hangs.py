"""Ends the run when a test hangs, and shows where, instead of waiting for CI's patience.

pytest's `faulthandler_timeout` would do so, too, but it starts a thread for each test, which takes a twentieth of the time
of the quick tests. An alarm of the kernel takes none.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Final

VARIABLE: Final = "NSQ_TEST_HANGS_AFTER"  # seconds, for runs on a machine that is very busy
PATIENCE: Final = float(os.environ.get(VARIABLE, "300"))


def begin(file: int) -> None:
    """Have a test end in time. Otherwise write to this descriptor where it is, and end the process by SIGALRM."""
    faulthandler.unregister(signal.SIGALRM)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a test may have wanted the signal for itself
    faulthandler.register(signal.SIGALRM, file=file, chain=True)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def end() -> None:
    """Let time pass: the test has ended, or all that it waits for has limits of its own."""
    signal.setitimer(signal.ITIMER_REAL, 0)
