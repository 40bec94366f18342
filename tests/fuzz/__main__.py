"""Fuzzing for a long time: `python -m tests.fuzz --minutes 60`; of one parser: `--target expressions`."""

from __future__ import annotations

import argparse
import logging
import sys
from random import randrange

from tests.fuzz.fuzzing import Found, fuzz, targets


def main() -> int:
    known = targets()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="in all (default: %(default)s)")
    parser.add_argument("--target", choices=[target.name for target in known], help="only this parser")
    parser.add_argument("--seed", type=int, default=randrange(1 << 32), help="of what is tried (default: a new one)")
    settings = parser.parse_args()
    logging.disable()
    chosen = [target for target in known if settings.target in (None, target.name)]
    status = 0
    for target in chosen:
        try:
            count = fuzz(target, seconds=settings.minutes * 60 / len(chosen), seed=settings.seed)
        except Found as found:
            sys.stdout.write(f"FOUND {found} (seed {settings.seed})\n")
            status = 1
        else:
            sys.stdout.write(f"{target.name}: {count} inputs\n")
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
