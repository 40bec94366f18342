"""kill -9 at random moments, under every kind of load, with a ledger of promises: `python -m tests.e2e.kill9`.

The load is `tests/support/traffic.py`, and the promises are in `tests/support/promises.py`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.command_line import argument, option, read_options
from tests.support.lengths import sized
from tests.support.process import Nsqd
from tests.support.promises import Ledger
from tests.support.traffic import Load, check_nothing_is_left, check_shape, drain, log_of, new_ledger, set_up

CYCLES: Final = sized(short=3, long=17)  # of a test
# How many messages are acknowledged and delivered before a kill: some kills come while everything begins.
EARLY: Final = range(300)
LATE: Final = range(800, 2000)


def _wait_for_the_kill(load: Load, ledger: Ledger, count: int) -> None:
    goal = ledger.acknowledged + ledger.delivered + count
    load.go_on_until(lambda: ledger.acknowledged + ledger.delivered >= goal)


def run(
    data_path: Path,
    *,
    cycles: int,
    seed: int,
    options: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> Ledger:
    """Run the cycles. Raise AssertionError, with the seed and the log, if a promise was broken."""
    chance = random.Random(seed)
    ledger = new_ledger()
    with Nsqd(data_path, *options, environ=environ) as nsqd:
        try:
            set_up(nsqd, ledger)
            for cycle in range(cycles):
                load = Load(nsqd, ledger, chance)
                _wait_for_the_kill(load, ledger, chance.choice(EARLY if cycle % 2 else LATE))
                killed_at = time.monotonic()
                nsqd.kill()
                load.ended()
                ledger.ended(killed_at)
                nsqd.start()
                check_shape(nsqd, ledger)
            drain(nsqd, ledger)
            nsqd.restart()
            check_nothing_is_left(nsqd)
        except Exception as error:
            raise AssertionError(
                f"{log_of(nsqd)}\n\nlife {ledger.life}, seed {seed}: {type(error).__name__} {error}"
            ) from error
    return ledger


@dataclass(frozen=True, kw_only=True)
class Kill9Options:
    options: tuple[str, ...] = argument("options of nsqd without dashes, as max-bytes-per-file=65536", default=())
    cycles: int = option(1000, "how many kills")
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")


def main() -> int:
    arguments = read_options(Kill9Options, name="python -m tests.e2e.kill9", about=(__doc__ or "").partition("\n")[0])
    sys.stdout.write(f"seed {arguments.seed}\n")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        ledger = run(Path(folder), cycles=arguments.cycles, seed=arguments.seed, options=tuple(arguments.options))
    sys.stdout.write(
        f"{arguments.cycles} kills in {time.monotonic() - began:.0f} s: {ledger.acknowledged} messages acknowledged, "
        f"{ledger.delivered} deliveries, {ledger.again} of them after a FIN just before a kill; nothing lost\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
