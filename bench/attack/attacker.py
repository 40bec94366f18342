"""The hostile process: `python -m bench.attack.attacker ROW SECONDS JSON` runs one load of `cases.py`."""

from __future__ import annotations

import json
import os
import resource
import sys
import time

from bench.attack.cases import CASES
from bench.attack.target import Target


def main(name: str, seconds: str, target: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(10)  # if cores are scarce, the attacker waits, not the daemon or the probe
    print(CASES[name].attack(Target(**json.loads(target)), time.monotonic() + float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
