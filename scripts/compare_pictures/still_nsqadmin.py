"""Runs nsqadmin with a clock that stands still and the same random numbers each time: `still_nsqadmin.py OPTIONS`.

The monotonic clock runs on, so that waits end. This file imports nothing of ours, because PYTHONPATH decides which
checkout's nsqadmin runs.
"""

import os
import random
import runpy
import sys
import time

_now = float(os.environ["STILL_AT"])
time.time = lambda: _now
time.time_ns = lambda: int(_now * 1e9)
os.urandom = random.Random(39).randbytes
for _name in ("secrets", "random"):  # they have a reference to the real urandom, so they are imported again
    sys.modules.pop(_name, None)
runpy.run_module("nsqadmin", run_name="__main__", alter_sys=True)
