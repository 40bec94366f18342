"""Use all features at a modest rate for hours, under a ledger: `python -m tests.soak --hours 24`."""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from tests.soak.soak import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help="how long")
    length.add_argument("--minutes", type=float, help="how long (default: 10)")
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="where all chance comes from")
    parser.add_argument(
        "--folder", type=Path, help="where nsqd keeps its data; it stays (default: a temporary one, removed at the end)"
    )
    arguments = parser.parse_args()
    seconds = arguments.hours * 3600 if arguments.hours else (arguments.minutes or 10) * 60
    logging.disable(logging.ERROR)  # clients log that their nsqd was killed
    plan = Plan(seconds=seconds, rate=arguments.rate, seed=arguments.seed)
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        return trio.run(run, plan, arguments.folder, _say)
    with TemporaryDirectory(prefix="soak-") as folder:
        return trio.run(run, plan, Path(folder), _say)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
