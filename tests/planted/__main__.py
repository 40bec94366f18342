"""`scripts/test-planted`: the arguments, the files of results, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.command_line import option, read_options
from tests.planted import mutants
from tests.planted.runs import Result, run_all, tasks_of_mutants, tasks_of_table
from tests.planted.table import BUGS

KNOWN: Final = Path(__file__).with_name("found.tsv")


ABOUT = """\
Plants bugs into copies of the sources, one at a time, and runs the suites that have to find them: those of
tests/planted/table.py, and small random changes (tests/planted/mutants.tsv). Says which suite has found what and how fast.
"""
STATUS = """\
Exit status: 0 if each bug of the table is found, and each change that was found before (tests/planted/found.tsv); 1 if
not. All of it takes some hours; --results goes on where it was stopped.
"""


@dataclass(frozen=True, kw_only=True)
class PlantedOptions:
    what: str = option("both", "what to plant", choices=("bugs", "mutants", "both"))
    only: str = option("", "bugs and changes with these words in their names", word="WORDS")
    jobs: int = option(2, "so many at a time")
    results: Path | None = option(None, "keep results here, and leave out what it has", word="FILE")
    keep: bool = option(False, "write the results to found.tsv, if nothing is wrong with them")
    draw: int | None = option(None, "choose the random changes anew, and end", word="SEED")


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(PlantedOptions, arguments, name="scripts/test-planted", about=ABOUT, epilog=STATUS)
    if options.draw is not None:
        mutants.store(mutants.draw(options.draw), options.draw)
        print(f"drawn: {mutants.STORED}")
        return 0
    tasks = []
    if options.what != "mutants":
        tasks += tasks_of_table([bug for bug in BUGS if options.only in bug.name])
    if options.what != "bugs":
        tasks += tasks_of_mutants([it for it in mutants.stored() if options.only in it.bug.name])
    done = {key: it for key, it in read(options.results).items() if it.verdict != "broken"} if options.results else {}
    left = [task for task in tasks if (task.name, task.suite) not in done]

    def tell(result: Result) -> None:
        done[result.key] = result
        print(f"{len(done):4} {line_of(result)}", flush=True)
        if options.results:
            write(options.results, done.values())

    run_all(left, jobs=options.jobs, tell=tell)
    results = [done[task.name, task.suite] for task in tasks]
    known = read(KNOWN)
    wrong = complaints(results, known.values())
    if options.keep and not wrong:
        every = [*tasks_of_table(BUGS), *tasks_of_mutants(mutants.stored())]
        merged = known | {it.key: it for it in results}
        write(KNOWN, [merged[it.name, it.suite] for it in every if (it.name, it.suite) in merged])
    print(summary(results))
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


def complaints(results: Iterable[Result], known: Iterable[Result]) -> list[str]:
    """Return what is worse than it was, or wrong: a bug of the table, or a mutant that was found, has to be found."""
    was_found = {it.key for it in known if it.verdict == "found"}
    wrong = []
    for it in results:
        if it.name == "nothing":
            if it.verdict != "missed":
                wrong.append(f"{it.suite} fails without any bug: {it.by}")
        elif it.verdict == "broken":
            wrong.append(f"{it.name}: {it.suite} could not be run: {it.by}")
        elif it.verdict in ("missed", "hung") and (it.key in was_found or not it.suite.startswith("tests of ")):
            wrong.append(f"{it.name}: {it.suite} does not find it" + (" any more" if it.key in was_found else ""))
    return wrong


def summary(results: Sequence[Result]) -> str:
    lines = []
    of_table = [it for it in results if not it.suite.startswith("tests of ") and it.name != "nothing"]
    of_mutants = [it for it in results if it.suite.startswith("tests of ")]
    for what, some in (("bugs, each with a suite", of_table), ("mutants", of_mutants)):
        if some:
            found = [it for it in some if it.verdict == "found"]
            seconds = sorted(it.seconds for it in found) or [0.0]
            lines.append(
                f"{what}: {len(found)} of {len(some)} found, in {seconds[len(seconds) // 2]:.0f} s by the median, "
                f"{seconds[-1]:.0f} s at most"
            )
    return "\n".join(lines)


def line_of(result: Result) -> str:
    return f"{result.verdict:7} {result.seconds:6.1f} s  {result.suite:16}  {result.name}  {result.by}"


def read(path: Path) -> dict[tuple[str, str], Result]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    found = [Result(name, suite, verdict, float(seconds), by) for name, suite, verdict, seconds, by in rows]
    return {it.key: it for it in found}


def write(path: Path, results: Iterable[Result]) -> None:
    rows = ["\t".join((it.name, it.suite, it.verdict, f"{it.seconds:.1f}", it.by)) for it in results]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
