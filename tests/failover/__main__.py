"""Machines that own one node after the other, for as long as you like: `python -m tests.failover rf1 --count 1000`.

Each life has a seed of its own, and is a line of JSON in --results. So you may spread a long run over days:

    python -m tests.failover rf1 --from-seed 0 --count 200 --results rf1.jsonl
    python -m tests.failover rf1 --from-seed 200 --count 800 --results rf1.jsonl

With --standby another machine waits with `nsqd --standby`, and takes over by itself.

The summary is of all lives of the suite in that file. Exit status: 1 if a promise was broken in this run, 2 if
none was tried, for example because the store isn't there.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from scripts.command_line import argument, option, read_options
from tests.failover.stores import KINDS, SERVERS, NewStore, stores
from tests.failover.suites import SUITES, Suite, live, restore_all

STANDBY_AFTER: Final = "1s"
_LINE_EVERY: Final = 10.0  # seconds between two lines about the progress
_MOST_OF_A_SEED: Final = 1 << 32


@dataclass(frozen=True, kw_only=True)
class FailoverOptions:
    suite: str = argument("; ".join(f"{name}: {it.about}" for name, it in SUITES.items()), choices=tuple(SUITES))
    store: str = option("file", f"{', '.join(SERVERS)}: with a bad network in front of them", choices=tuple(KINDS))
    standby: str = option(
        "", f"wait with --standby, and with --standby-after={STANDBY_AFTER} if you don't say what", word="AFTER"
    )
    size: float | None = option(None, "of the node that rf9 restores (0.004)", word="GB")
    from_seed: int = option(random.randrange(_MOST_OF_A_SEED), "of the first life (default: a new one)", word="N")
    count: int = option(10, "lives")
    results: Path | None = option(None, "append a line of JSON for each life", word="FILE")


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(sys.argv[1:] if arguments is None else arguments)
    suite = SUITES[options.suite]
    if options.store not in suite.kinds:
        say(f"{options.suite} needs --store={' or '.join(suite.kinds)}")
        return 2
    if options.standby and not suite.has_standby:
        say(f"{options.suite} can't be lived with a standby")
        return 2
    if options.size is not None:
        if suite.live is not restore_all:
            say(f"{options.suite} has no size")
            return 2
        suite = replace(suite, live=partial(restore_all, size=round(options.size * 1e9)))
    kind = {"suite": options.suite, "store": options.store, "standby": options.standby}
    results: list[dict[str, Any]] = _read(options.results, kind)
    broken, reported = 0, time.monotonic()
    try:
        with TemporaryDirectory(prefix="failover-") as folder, ExitStack() as running:
            new_store = running.enter_context(stores(options.store, Path(folder)))
            if suite.has_spark:
                running.enter_context(_spark(Path(folder)))
            for seed in range(options.from_seed, options.from_seed + options.count):
                result = {**kind, **run_life(suite, seed, new_store, standby_after=options.standby)}
                results.append(result)
                if options.results is not None:
                    with options.results.open("a") as file:
                        file.write(json.dumps(result) + "\n")
                if result["violation"] is not None:
                    broken += 1
                    say(result["violation"])
                if time.monotonic() >= reported + _LINE_EVERY:
                    reported = time.monotonic()
                    say(f"{seed - options.from_seed + 1} of {options.count} lives, {broken} with a violation")
    except KeyboardInterrupt:
        say("stopped")
    except pytest.skip.Exception as reason:
        say(f"can't be lived here: {reason}")
        return 2
    say(summary(results))
    return int(broken > 0)


def _spark(folder: Path) -> AbstractContextManager[object]:
    from tests.support.spark_session import spark_session  # later: it needs packages that may be missing

    return spark_session(folder / "warehouse")


def options_of(words: Sequence[str]) -> FailoverOptions:
    """Return the options. `--standby` may have a value, which typer doesn't know; a word behind it is that value."""
    said = [
        f"--standby={STANDBY_AFTER}" if word == "--standby" and after.startswith("-") else word
        for word, after in zip(words, [*words[1:], "-"], strict=True)
    ]
    return read_options(FailoverOptions, said, name="python -m tests.failover", about=__doc__)


def run_life(suite: Suite, seed: int, new_store: NewStore, *, standby_after: str = "") -> dict[str, Any]:
    """Live one life, and return its line of the results."""
    began = time.monotonic()
    violation, document = None, dict[str, Any]()
    with TemporaryDirectory(prefix="failover-") as folder:
        try:
            outcome = live(suite, Path(folder), seed, new_store, standby_after=standby_after)
            document = {"failovers": outcome.failovers, "pauses": outcome.pauses, **outcome.figures}
        except AssertionError as error:
            violation = str(error)
    return {"seed": seed, "seconds": round(time.monotonic() - began, 1), "violation": violation, **document}


def summary(results: Sequence[dict[str, Any]]) -> str:
    """Return what all of these lives have shown, in words."""
    good = [it for it in results if it["violation"] is None]
    pauses = sorted(pause for it in good for pause in it["pauses"])
    lines = [
        f"{len(results)} lives, {len(results) - len(good)} with a violation, "
        f"{sum(it['failovers'] for it in good)} failovers in {sum(it['seconds'] for it in results):.0f} s"
    ]
    if bad := [it["seed"] for it in results if it["violation"] is not None]:
        lines.append(f"seeds with a violation: {', '.join(map(str, bad[:20]))}")
    if pauses:
        p99 = pauses[min(len(pauses) - 1, int(len(pauses) * 0.99))]
        lines.append(f"the next OK: p50 {median(pauses):.2f} s, p99 {p99:.2f} s, at most {pauses[-1]:.2f} s")
    names = dict.fromkeys(name for it in good for name in it)
    for name in names:
        values = [it[name] for it in good if name in it]
        if name in _SHOWN_AS_MOST:
            lines.append(f"{name}: at most {max(values)}")
        elif name in _SHOWN_AS_MEDIAN:
            lines.append(f"{name}: p50 {median(values)}")
        elif name not in _SHOWN_ABOVE:
            lines.append(f"{name}: {sum(values):,}")
    return "\n".join(lines)


_SHOWN_ABOVE: Final = ("suite", "store", "standby", "seed", "seconds", "violation", "failovers", "pauses")
_SHOWN_AS_MOST: Final = (
    "oldest_again",
    "lateness",
    "longest_zombie",
    "back_after",
    "grown_mb",
    "took",
    "spark_back_after",
    "restore_seconds",
    "restore_cpu_seconds",
    "restore_peak_mb",
)
_SHOWN_AS_MEDIAN: Final = ("written_rate",)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _read(path: Path | None, kind: dict[str, str]) -> list[dict[str, Any]]:
    """Return the lives in a file that are of this kind."""
    if path is None or not path.exists():
        return []
    found = [{"standby": "", **json.loads(line)} for line in path.read_text().splitlines()]
    return [it for it in found if kind.items() <= it.items()]


if __name__ == "__main__":
    sys.exit(main())
