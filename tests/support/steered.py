"""Runs one of our daemons on the clock that the file STEERED_CLOCK has: `python -m tests.support.steered nsqd ...`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tests.support import (
    replaced_clocks,  # noqa: F401 - first, before anything of ours is imported
    steered_clock,
)


def main() -> None:
    steered_clock.follow(Path(os.environ["STEERED_CLOCK"]))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
