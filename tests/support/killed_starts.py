"""Starts nsqd again and again on one data path, and kills each start at a later moment: `killed_starts.py DATA_PATH`.

A moment is a change that is replayed, or a call that is about to change a name, to open a file for writing, or a folder
for a sync: the first start ends at the first moment, the second one, on what that has left, at the second. The writes
before a moment are behind it. The last start gets as far as serving. The moments are printed, one a line.

All starts are forks of this process, which has imported nsqd, and end by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Final
from unittest.mock import patch

import trio

from nsqd import daemon
from nsqd.broker.journal_replay import replay
from nsqd.options import Options

REPLAYING: Final = "replaying"
_READS: Final = ("os.listdir", "os.scandir")
_ANY_PORT: Final = "127.0.0.1:0"


class Moments:
    """Counts the moments of this process, and kills it at the chosen one."""

    def __init__(self, data_path: str, chosen: int) -> None:
        self._data_path = data_path
        self._left = chosen

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Notice what Python does with files (sys.addaudithook)."""
        if event == "open":
            is_change = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY)
        else:
            is_change = event.startswith("os.") and event not in _READS
        if is_change and isinstance(arguments[0], str | os.PathLike):
            path = os.fspath(arguments[0])
            if path.startswith(self._data_path):
                self.come(f"{event} {path.removeprefix(self._data_path)}")

    def replaying(self, changes: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
        for change in changes:
            self.come(REPLAYING)
            yield change

    def come(self, moment: str) -> None:
        if self._left == 0:
            os.write(1, f"{moment}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


async def end() -> None:
    os._exit(0)


def run(data_path: str, chosen: int) -> None:
    """Start nsqd, and end when it serves, if it was not killed before."""
    moments = Moments(data_path, chosen)
    options = Options(data_path=data_path, tcp_address=_ANY_PORT, http_address=_ANY_PORT)
    sys.addaudithook(moments.look)
    with patch("nsqd.start.replay", lambda changes: replay(moments.replaying(changes))):
        trio.run(partial(daemon.run, options, wait_for_shutdown=end))


def is_killed(data_path: str, chosen: int) -> bool:
    """Start nsqd, and return whether it was killed, or began to serve before the chosen moment."""
    if (pid := os.fork()) == 0:
        run(data_path, chosen)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"start {chosen} has ended with {status}"
    return status != 0


if __name__ == "__main__":
    assert next(chosen for chosen in count() if not is_killed(sys.argv[1], chosen))
