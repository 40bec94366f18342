"""`scripts/test-long`: runs long forms one after the other, and sums up."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import randrange
from typing import Final

from scripts.command_line import argument, option, read_options
from tests.long.forms import FORMS, Form
from tests.support.needs import missing
from tests.support.process import ROOT

LOGS: Final = ROOT / "build" / "long"
MOST_SEEDS: Final = 1_000_000
TAIL: Final = 40  # lines of a failure that are shown; its file has all of them
# A busy machine takes longer, and what is counted ends when it has been counted. After this it hangs.
GRACE_FACTOR: Final = 4
GRACE_MINUTES: Final = 10


@dataclass(frozen=True, slots=True)
class Ran:
    name: str
    verdict: str  # good, FAILED, HANGS, skipped
    seconds: float
    said: str  # its last line, or why it did not run

    @property
    def is_bad(self) -> bool:
        return self.verdict in {"FAILED", "HANGS"}

    def __str__(self) -> str:
        return f"{self.verdict:8} {self.name:20} {self.seconds:7.0f} s  {self.said}"


def _minutes(text: str) -> float:
    if not (minutes := float(text)) > 0:
        raise ValueError("more than 0, please")
    return minutes


@dataclass(frozen=True, kw_only=True)
class LongOptions:
    name: tuple[str, ...] = argument("run only these, in this order", word="[NAME]...", default=())
    minutes: float | None = option(None, "how long each takes that can be scaled", word="N", parse=_minutes)
    seed: int = option(randrange(MOST_SEEDS), f"where all chance comes from (default: a new one, below {MOST_SEEDS:,})")
    list: bool = option(False, "name them, with their minutes, and end")


def main(arguments: Sequence[str] | None = None, forms: Sequence[Form] = FORMS, logs: Path = LOGS) -> int:
    hours = sum(form.minutes for form in forms) / 60
    about = (
        f"Runs the long forms of the fault, soak and kill tests one after the other, {hours:.0f} hours in all. Each has a "
        f"limit of {GRACE_FACTOR} times its minutes and {GRACE_MINUTES} more; what it says goes into a file of "
        f"{LOGS.relative_to(ROOT)}, and the end of it to the screen if it has failed."
    )
    status = "Exit status: 1 if one has failed or hangs. docs/how-to/test-faults.md says what each of them finds."
    options = read_options(LongOptions, arguments, name="scripts/test-long", about=about, epilog=status)
    known = {form.name: form for form in forms}
    if unknown := [name for name in options.name if name not in known]:
        print(f"test-long: no such form: {', '.join(unknown)}; --list names all", file=sys.stderr)
        return 2
    chosen = [known[name] for name in dict.fromkeys(options.name)] or [*forms]
    if options.list:
        for form in chosen:
            print(f"{form.name:20} {form.takes(options.minutes):4g} min{'*' if form.is_scaled else ' '} {form.about}")
        print("* --minutes changes it")
        return 0
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        for form in chosen:
            results.append(run(form, options.seed, options.minutes, logs))
            print(results[-1], flush=True)
    except KeyboardInterrupt:
        print(f"stopped; left out: {', '.join(form.name for form in chosen[len(results) :])}", file=sys.stderr)
        return 130
    finally:
        _sum_up(results, options.seed)
    return 1 if any(it.is_bad for it in results) else 0


def run(form: Form, seed: int, minutes: float | None, logs: Path, *, limit: float | None = None) -> Ran:
    """Run one form in a process group of its own, which is gone when this returns. `limit`: seconds."""
    if lacks := missing(*form.needs):
        return Ran(form.name, "skipped", 0.0, lacks)
    command, environ = form.started_with(seed, minutes)
    print(f"== {form.name}, seed {seed}: {_shown(command, environ)}", flush=True)
    began = time.monotonic()
    path = logs / f"{form.name}.log"
    limit = limit if limit is not None else 60 * (GRACE_FACTOR * form.takes(minutes) + GRACE_MINUTES)
    status = _run(command, {**os.environ, **environ}, path, limit)
    seconds = time.monotonic() - began
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if status == 0:
        return Ran(form.name, "good", seconds, lines[-1] if lines else "")
    print("\n".join(lines[-TAIL:]))
    return Ran(form.name, "HANGS" if status is None else "FAILED", seconds, f"seed {seed}, {path}")


def _run(command: Sequence[str], environ: Mapping[str, str], path: Path, limit: float) -> int | None:
    """Return the exit status, or None if it was still running after `limit` seconds."""
    with path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and what it has started and left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # all of it has ended
        pass
    process.wait()


def _shown(command: Sequence[str], environ: Mapping[str, str]) -> str:
    set_ = [f"{name}={shlex.quote(value)}" for name, value in environ.items()]
    return " ".join([*set_, "python", shlex.join(command[1:])])


def _sum_up(results: Sequence[Ran], seed: int) -> None:
    bad = [it for it in results if it.is_bad]
    skipped = [it for it in results if it.verdict == "skipped"]
    print(f"== seed {seed}: {len(results)} long forms, {len(bad)} failed, {len(skipped)} skipped")
    for result in results:
        print(result)


if __name__ == "__main__":
    sys.exit(main())
