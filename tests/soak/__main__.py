"""Use all features at a modest rate for hours, under a ledger: `python -m tests.soak --hours 24`."""

from __future__ import annotations

import logging
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from scripts.command_line import option, read_options
from tests.soak.soak import Plan, run


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    hours: float | None = option(None, "how long")
    minutes: float | None = option(None, "how long (default: 10)")
    rate: float = option(200.0, "messages a second")
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")
    folder: Path | None = option(
        None, "where nsqd keeps its data; it stays (default: a temporary one, removed at the end)"
    )

    def __post_init__(self) -> None:
        if self.hours is not None and self.minutes is not None:
            raise ValueError("--minutes: not allowed with --hours")


def main() -> int:
    arguments = read_options(SoakOptions, name="python -m tests.soak", about=__doc__)
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
