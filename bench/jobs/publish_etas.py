"""A process that publishes jobs with ETAs, and notes each that the broker has confirmed.

    python -m bench.jobs.publish_etas APP COUNT SECONDS SEED

First it publishes jobs for warming up until one has run, and writes the time into the file `began`. From then on it
publishes evenly for half of the seconds, with ETAs anywhere until their end. A publish that fails is repeated, with the
same id, until it succeeds.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from bench.jobs.setup import setup_of_environment

WARMING_UP: Final = 1_000_000_000  # the first number of a job that does not count
_SOONEST: Final = 0.5  # seconds until a job is due
_PAUSE: Final = 0.2  # seconds before a publish is tried again

Publish = Callable[[int, float], None]


def main(app: str, count: int, seconds: float, seed: int) -> None:
    publish: Publish = importlib.import_module(app).publish
    folder = Path(setup_of_environment().folder)
    _warm_up(publish, folder)
    began = time.time()
    (folder / "began.new").write_text(str(began))
    (folder / "began.new").rename(folder / "began")
    chance = Random(seed)
    file = os.open(folder / "published", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in range(count):
        time.sleep(max(0.0, began + seconds / 2 * number / count - time.time()))
        soonest = time.time() + _SOONEST
        due = round(chance.uniform(soonest, max(soonest, began + seconds)), 3)
        tries = _publish_surely(publish, number, due)
        os.write(file, b"%d %.6f %.6f %d\n" % (number, due, time.time(), tries))


def _warm_up(publish: Publish, folder: Path) -> None:
    number = WARMING_UP
    while not any(path.stat().st_size for path in folder.glob("ran-*")):
        _publish_surely(publish, number, time.time() + _SOONEST)
        number += 1
        time.sleep(1)


def _publish_surely(publish: Publish, number: int, due: float) -> int:
    """Return how many tries it took."""
    tries = 1
    while True:
        try:
            publish(number, due)
            return tries
        except Exception as error:
            sys.stderr.write(f"publish of {number}, try {tries}: {error!r}\n")
            tries += 1
            time.sleep(_PAUSE)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
