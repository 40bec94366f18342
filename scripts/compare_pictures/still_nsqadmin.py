"""Runs nsqadmin with a clock that stands still and random numbers that are the same each time: `still_nsqadmin.py OPTIONS`.

What it measures and waits for goes by the monotonic clock, which runs on. It is a file of its own that imports nothing of
ours, because the checkout whose nsqadmin runs may be another one: PYTHONPATH says which.
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
for _name in ("secrets", "random"):  # what has taken urandom already takes it again
    sys.modules.pop(_name, None)
runpy.run_module("nsqadmin", run_name="__main__", alter_sys=True)
