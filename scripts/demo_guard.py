"""Ends what `scripts/demo` has started, if the demo itself was killed and could not.

The demo starts this program with a pipe to it that nobody else has, so the pipe ends when the demo does, however that
happens. All processes of the demo have a mark in their environment, which their children and workers inherit. Where
there is a /proc they are found by that mark, also those that the demo had no time to tell of. Elsewhere the process
groups count that the demo has told of.

A signal to the parent's death (PR_SET_PDEATHSIG) would not do: it watches the thread that has started a process, and
trio starts processes in threads that end when they are idle; and it does not reach a worker of a worker.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

MARK: Final = "NSQ_DEMO"
PATIENCE: Final = 5.0  # seconds that processes have to stop in good order
_LOOK: Final = 0.1
_PROC: Final = Path("/proc")
_DONE: Final = "done"


class Guard:
    """The demo's side."""

    def __init__(self, temporary: Path | None = None) -> None:
        """`temporary` is a folder to remove as well."""
        mark = uuid4().hex
        self.environment: Mapping[str, str] = {**os.environ, MARK: mark}  # for the processes of the demo
        command = [sys.executable, "-P", "-S", __file__, mark, *([str(temporary)] if temporary is not None else [])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # what is sent to the demo's group is not for the guard
        )

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}")

    def close(self) -> None:
        """End it: everything has stopped."""
        self._tell(_DONE)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # somebody has killed the guard
            self._process.stdin.write(f"{line}\n")


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, *temporary = sys.argv[1:]
    told: set[int] = set()
    for line in map(str.strip, sys.stdin):
        if line == _DONE:
            return
        (told.add if line[0] == "+" else told.discard)(int(line[1:]))
    if _PROC.is_dir():
        end_all(lambda: marked(mark), os.kill)
    else:
        end_all(lambda: {pid for pid in told if _has_group(pid)}, os.killpg)
    for folder in temporary:
        shutil.rmtree(folder, ignore_errors=True)


def end_all(left: Callable[[], set[int]], send: Callable[[int, int], None]) -> None:
    """Stop everything that is left, and kill it after a while."""
    until = time.monotonic() + PATIENCE
    asked: set[int] = set()
    while pids := left():
        is_late = time.monotonic() > until
        for pid in pids if is_late else pids - asked:
            with suppress(ProcessLookupError):
                send(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        asked |= pids
        time.sleep(_LOOK)


def marked(mark: str) -> set[int]:
    """Return the processes with this mark in their environment. Those that have ended have none any more."""
    found, wanted = set(), f"{MARK}={mark}".encode()
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
    return found


def _has_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
