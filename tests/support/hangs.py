"""Limits how long a test may take. One that hangs ends its process, which shows where, instead of waiting for CI's patience.

pytest's `faulthandler_timeout` would do so, too, but it starts a thread for each test, which takes a twentieth of the time
of the quick tests. An alarm of the kernel takes none.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Final

VARIABLE: Final = "NSQ_TEST_HANGS_AFTER"  # for runs on a machine that is very busy
LIMIT: Final = float(os.environ.get(VARIABLE, "300"))  # seconds


_SIGNALS: Final = {signal.ITIMER_REAL: signal.SIGALRM, signal.ITIMER_PROF: signal.SIGPROF}


def begin_limit(file: int, timer: int = signal.ITIMER_REAL) -> None:
    """Limit the test that begins. After that, write the stacks of all threads to this descriptor, and die of the alarm.

    With `ITIMER_PROF`, only the processor time counts.
    """
    alarm = _SIGNALS[timer]
    faulthandler.unregister(alarm)
    signal.signal(alarm, signal.SIG_DFL)  # a test may have wanted the signal for itself
    faulthandler.register(alarm, file=file, chain=True)
    signal.setitimer(timer, LIMIT)


def lift_limit(timer: int = signal.ITIMER_REAL) -> None:
    """Lift the limit: the test has ended, or all that it waits for has limits of its own."""
    signal.setitimer(timer, 0)
