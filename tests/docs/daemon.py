"""Stands for a daemon's command in tests of the documents.

It returns when the daemon listens, and ends the one that ran before. A reader does this with a terminal for each daemon
and Ctrl-C. `daemon.py PROGRAM FLAGS...`
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

PATIENCE: Final = 60.0
# With these flags the program is no daemon.
OTHER: Final = ("fsck", "policy", "--help", "-h", "--version", "-version")


def main(program: str, arguments: list[str]) -> int:
    if any(it in OTHER for it in arguments):
        os.execv(program, [program, *arguments])
    place = _place(program, arguments)
    _end(place)
    log = place.with_suffix(".log")
    with log.open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True
        )
    place.write_text(str(process.pid), encoding="utf-8")
    deadline = time.monotonic() + PATIENCE
    while "HTTP: listening on" not in (said := log.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.stderr.write(said)
            return process.returncode or 1
        time.sleep(0.02)
    return 0


def _place(program: str, arguments: list[str]) -> Path:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
