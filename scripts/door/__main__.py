"""`scripts/test-door`: the arguments, the order of things, and the table at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from nsqcommon.options import one_of, option
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, argument, parsed_by, run_command
from scripts.door import bases
from scripts.door.machines import USER, Failed, Machine
from scripts.door.visits import SOURCE, Phase, Visit

ROOT: Final = Path(__file__).resolve().parents[2]
MACHINES: Final = ("root", "user")
STEPS: Final = ("broker", "test", "compiled")
QUICK: Final = "tests/nsqcommon"
CANNOT: Final = 2


ABOUT: Final = """\
Makes two empty Debian machines, and does there what a newcomer does: clone, scripts/run-broker, publish, consume,
scripts/test. `root` has nothing but git, certificates and Python; `user` has no rights, and python3-venv beside these.
The commit that is checked out is what they clone.
"""
STATUS: Final = "Exit status: 0 if all went well, 1 if not, 2 where no machine can be made."


def _steps(text: str) -> tuple[str, ...]:
    steps = tuple(text.split(","))
    if unknown := [it for it in steps if it not in STEPS]:
        raise ValueError(f"no step {unknown[0]}, only {', '.join(STEPS)}")
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    cache: Path = option(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nsq-suite-door",
        "for bases, machines and the log",
        kind=parsed_by(Path, "DIR"),
    )
    only: str = option("", "one machine instead of both", kind=one_of(*MACHINES))
    steps: tuple[str, ...] = option(STEPS, "some of these", kind=parsed_by(_steps, "STEP,...", show=",".join))
    quick: bool = option(False, f"run `scripts/test {QUICK}` instead of the whole suite")
    keep: bool = option(False, "leave the machines' folders, and use those that are there")
    shell: bool = option(False, "run a shell, or COMMAND, on a machine (--only, --keep) instead of all this")
    command: str = argument("for --shell", kind=parsed_by(str, "COMMAND"), default="")

    def __post_init__(self) -> None:
        if self.command and not self.shell:
            raise StartupError(f"{self.command} is a command for --shell")


def main(arguments: Sequence[str] | None = None) -> int:
    door = Command(table=DoorOptions, run=run, about=ABOUT, closing=STATUS)
    return run_command(door, sys.argv[1:] if arguments is None else arguments, "scripts/test-door")


def run(options: DoorOptions) -> int:
    if reason := bases.why_not():
        print(f"test-door: {reason}", file=sys.stderr)
        return CANNOT
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cache = options.cache
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock, open(cache / "log", "w") as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"test-door: another one works in {cache}, choose another folder with --cache", file=sys.stderr)
            return CANNOT
        names = [options.only] if options.only else MACHINES
        if options.shell:
            return _shell(cache, names[-1], options.command, log)
        phases: list[Phase] = []
        try:
            for name in names:
                _visit(cache, name, options, log, phases)
        except Failed as error:
            print(f"test-door: {error}", file=sys.stderr)
            return 1
        finally:
            print(table(phases), end="")
    return 1 if any(it.failed for it in phases) else 0


def _visit(cache: Path, name: str, options: DoorOptions, log: TextIO, phases: list[Phase]) -> None:
    print(f"== {name}", flush=True)
    began = time.monotonic()
    root = _folder(cache, name, log, keep=options.keep)
    phases.append(Phase(name, "machine", "made", time.monotonic() - began))
    try:
        with _machine(name, root) as machine:
            visit = Visit(machine, log, QUICK if options.quick else "", phases)
            for step in options.steps:
                try:
                    getattr(visit, step)()
                except Failed as error:
                    print(f"test-door: {name}, {step}: {error}", file=sys.stderr, flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(root)


def _shell(cache: Path, name: str, command: str, log: TextIO) -> int:
    with _machine(name, _folder(cache, name, log, keep=True)) as machine:
        return machine.shell(command)


def _folder(cache: Path, name: str, log: TextIO, *, keep: bool) -> Path:
    base = bases.base(cache, user=name == "user", log=log)
    root = cache / name
    if root.exists() and not keep:  # of a run that was killed
        shutil.rmtree(root)
    if not root.exists():
        bases.copy(base, root)
        with open(root / "etc/hosts", "a") as hosts:
            hosts.write(f"127.0.1.1 {name}\n")  # as Debian's installer does
    _copy_repository(root / SOURCE[1:], owner=root / "home" / USER if name == "user" else root)
    return root


def _machine(name: str, root: Path) -> Machine:
    return Machine(name, root, bases.environment(root), user=USER if name == "user" else "root")


def _copy_repository(target: Path, *, owner: Path) -> None:
    """Make a bare repository whose branch `main` is the commit that is checked out here."""
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        print("test-door: only what is committed is cloned, and here are changes that are not", file=sys.stderr)
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", target], check=True)
    wanted = ("+HEAD:refs/heads/main", "+refs/tags/*:refs/tags/*")
    subprocess.run(["git", "fetch", "--quiet", "--no-tags", ROOT, *wanted], cwd=target, check=True)
    user = owner.stat()
    for path in (target, *target.rglob("*")):  # git reads only its user's repositories
        os.chown(path, user.st_uid, user.st_gid)


def table(phases: Sequence[Phase]) -> str:
    rows = [
        (
            it.machine,
            it.step,
            it.name,
            f"{it.seconds:.1f}" if it.seconds else "",
            f"FAILED: {it.note}" if it.failed else it.note,
        )
        for it in phases
    ]
    header = ("machine", "step", "phase", "seconds", "")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(4)]
    lines = []
    for machine, step, name, seconds, note in (header, *rows):
        left = "  ".join(text.ljust(width) for text, width in zip((machine, step, name), widths, strict=False))
        lines.append(f"{left}  {seconds.rjust(widths[3])}  {note}".rstrip() + "\n")
    return "".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
