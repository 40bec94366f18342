"""Stands for a daemon's command in tests of the documents.

It returns when the daemon listens, and ends the one that ran before. A reader does this with a terminal for each daemon
and Ctrl-C. It runs in a fork (world.py), and so does the daemon.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

Run = Callable[[str, Sequence[str]], NoReturn]  # a program with arguments, in this process

PATIENCE: Final = 60.0
_LISTENING: Final = re.compile("HTTPS?: listening on")  # nsqadmin may serve HTTPS only
# With these flags the program is no daemon.
OTHER: Final = ("fsck", "policy", "remote", "--help", "-h", "--version", "-version")


def main(program: str, arguments: Sequence[str], run: Run) -> int:
    if any(it in OTHER for it in arguments):
        run(program, arguments)
    place = _place(program, arguments)
    _end(place)
    log = place.with_suffix(".log")
    log.write_text("", encoding="utf-8")
    pid = os.fork()
    if not pid:
        os.setsid()
        _talk_to(log)
        run(program, arguments)
    place.write_text(str(pid), encoding="utf-8")
    deadline = time.monotonic() + PATIENCE
    while not _LISTENING.search(said := log.read_text(encoding="utf-8")):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            sys.stderr.write(said)
            return os.waitstatus_to_exitcode(status) or 1
        time.sleep(0.02)
    return 0


def _talk_to(log: Path) -> None:
    """Have this process read nothing, and write to the file."""
    nothing, written = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, opened in enumerate((nothing, written, written)):
        os.dup2(opened, number)
    os.close(nothing)
    os.close(written)


def _place(program: str, arguments: Sequence[str]) -> Path:
    """Return the file that remembers the daemon, one for each program and port."""
    port = re.search(r"--(?:tcp|http)-address[= ]\S*:(\d+)", " ".join(arguments))
    return Path(program).parent / f"{Path(program).name}-{port[1] if port else 'default'}.pid"


def _end(place: Path) -> None:
    if not place.exists():
        return
    pid = int(place.read_text(encoding="utf-8"))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise SystemExit(f"{place.name} did not end")
