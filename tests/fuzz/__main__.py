"""Fuzzing for a long time: `python -m tests.fuzz --minutes 60`; of one parser: `--target expressions`."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from random import randrange

from scripts.command_line import option, read_options
from tests.fuzz.fuzzing import Found, fuzz, targets

TARGETS = targets()


@dataclass(frozen=True, kw_only=True)
class FuzzOptions:
    minutes: float = option(1.0, "in all")
    target: str = option("", "only this parser", choices=[target.name for target in TARGETS])
    seed: int = option(randrange(1 << 32), "of what is tried (default: a new one)")


def main() -> int:
    settings = read_options(FuzzOptions, name="python -m tests.fuzz", about=__doc__)
    logging.disable()
    chosen = [target for target in TARGETS if settings.target in ("", target.name)]
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
