"""`scripts/test-flakes`: the whole suite again and again, under changing load, to find what fails now and then.

Each run has its own seed (of the order of tests and of Python's hashes), load and number of workers: of ten runs, two run
beside six busy processes, four beside two, and four have the machine to themselves; two of them have one worker. The
file of results has a line for each run: a command that is started again goes on with those that are not in it, unless
something else than tests, scripts and documents has changed. A test that was mended is run many times by itself.

`--part 1/3`, in each of three checkouts at the same time, makes a third of the runs that have busy processes beside
them: the workers of the other two are these, so that no time is spent on processes that only compute.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scripts.command_line import argument, option, read_options
from tests.support import hangs

ROOT: Final = Path(__file__).resolve().parents[1]
BUSY: Final = (6, 6, 2, 2, 2, 2, 0, 0, 0, 0)  # processes that compute meanwhile; most first, as they find most
ALONE: Final = (3, 7)  # those of the ten runs that have one worker
WORKERS: Final = 3
PRODUCT: Final = (".", *(f":!{it}" for it in ("tests", "docs", "changes.d", "*.md", "bench", "scripts")))
_SPIN: Final = """
import os, sys
while os.getppid() == int(sys.argv[1]):  # so it ends also if we are killed
    for _ in range(1_000_000):
        pass
"""
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
_HANGS: Final = 1200  # seconds after which a test hangs, however busy the machine is
OTHER_RUNS: Final = 2  # exit status: the file has runs of something else
_PASSED, _TESTS_FAILED = 0, 1  # pytest's exit statuses; any other one means that the run itself went wrong


@dataclass(frozen=True, slots=True)
class Run:
    number: int
    seed: int
    busy: int
    workers: int


@dataclass(frozen=True, slots=True)
class Result:
    number: int
    seed: int
    busy: int
    workers: int
    seconds: float
    status: int
    failed: list[str]
    commit: str
    product: str  # the last commit that changed something else than tests, scripts and documents
    arguments: list[str]
    part: str = "1/1"  # of those that ran at the same time


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE: Final = Part(1, 1)


def part_of(text: str) -> Part:
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"{text} is not like 2/3")
    return Part(int(number), int(of))


def commit_now(*paths: str) -> str:
    """Return the last commit that has changed something there, with a plus sign if something was changed since."""
    commit = _git("log", "-1", "--format=%h", "--", *paths)
    return commit + "+" * bool(_git("status", "--porcelain", "--untracked-files=no", "--", *paths))


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def plan(number: int, seed: int) -> Run:
    """Return what the run of this number, from 0 on, is like."""
    place = number % len(BUSY)
    return Run(number, seed + number, BUSY[place], 1 if place in ALONE else WORKERS)


def read(path: Path) -> list[Result]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def run(it: Run, arguments: Sequence[str], part: Part = WHOLE) -> Result:
    """Run all tests. The workers of other parts are busy processes already, until those parts end."""
    environ = {**os.environ, "PYTHONHASHSEED": str(it.seed % (1 << 32)), hangs.VARIABLE: str(_HANGS)}
    began = time.monotonic()
    with _busy(max(0, it.busy - (part.of - 1) * WORKERS)):
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", f"--shuffle={it.seed}"),
            *(f"--numprocesses={it.workers}", "--dist=loadfile", "--no-loadscope-reorder"),
            *arguments,
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, errors="replace", check=False
        )
    failed = sorted(set(_FAILED.findall(done.stdout)))
    if done.returncode:
        print(done.stdout)
    seconds = round(time.monotonic() - began, 1)
    return Result(
        **asdict(it),
        seconds=seconds,
        status=done.returncode,
        failed=failed,
        commit=commit_now(),
        product=commit_now(*PRODUCT),
        arguments=list(arguments),
        part=str(part),
    )


@contextmanager
def _busy(count: int) -> Iterator[None]:
    command = [sys.executable, "-S", "-c", _SPIN, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def summary(results: Iterable[Result]) -> str:
    """Return a line for each run, and then for each test that has failed."""
    done = list(results)
    lines = [
        f"run {it.number + 1}: seed {it.seed}, {it.workers} worker{'s' * (it.workers > 1)} beside {it.busy} busy processes, "
        f"{it.seconds:.0f} s, {it.commit}: {_outcome(it)}"
        for it in done
    ]
    counts = Counter(test for it in done for test in it.failed)
    lines += [f"failed in {count} of {len(done)}: {test}" for test, count in counts.most_common()]
    return "\n".join(lines)


def _outcome(it: Result) -> str:
    if it.status == _PASSED:
        return "passed"
    return f"{len(it.failed)} failed" if it.status == _TESTS_FAILED and it.failed else f"went wrong, status {it.status}"


ABOUT: Final = """\
Runs all tests so many times, in another order each time, alone and beside busy processes, and lists what failed. Other
arguments go to pytest: `scripts/test-flakes 50 tests/e2e/test_tls.py`.
"""
STATUS: Final = (
    "Exit status: 0 if nothing has failed in any run, 1 if something has, 2 if the file has runs of something else."
)


@dataclass(frozen=True, kw_only=True)
class FlakesOptions:
    runs: int = argument("how many runs there should be in the file of results")
    pytest: tuple[str, ...] = argument("paths and options for pytest (default: tests)", default=())
    seed: int = option(1, "of the first run; the others have the next ones")
    results: Path = option(
        ROOT / "build/flakes.jsonl",
        "a line for each run; what it has is not run again (default: build/flakes.jsonl)",
        word="FILE",
    )
    part: Part = option(
        WHOLE, "the second of three parts that run at the same time, each in a checkout: 2/3", word="K/N", parse=part_of
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(
        FlakesOptions, arguments, name="scripts/test-flakes", about=ABOUT, epilog=STATUS, leaves_others=True
    )
    results = read(options.results)
    asked = [*options.pytest] or ["tests"]
    if results and (results[-1].product, results[-1].arguments) != (commit_now(*PRODUCT), asked):
        last = f"{' '.join(results[-1].arguments)} of what commit {results[-1].product} made"
        print(f"test-flakes: {options.results} has runs of {last}; name another file with --results", file=sys.stderr)
        return OTHER_RUNS
    seed = results[0].seed - results[0].number if results else options.seed
    options.results.parent.mkdir(parents=True, exist_ok=True)
    known = {it.number for it in results}
    part = options.part
    for number in range(part.number - 1, options.runs, part.of):
        it = plan(number, seed)
        if number in known or (part != WHOLE and not it.busy):
            continue
        result = run(it, asked, part)
        results.append(result)
        with open(options.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(summary([result]), flush=True)
    print(summary(sorted(results, key=lambda it: it.number)))
    return 1 if any(it.status for it in results) else 0


if __name__ == "__main__":
    sys.exit(main())
