"""NSQ's own programs beside ours. Without them only test_programs.py is collected, which says so in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.original.programs import FOLDER, Whose, program
from tests.support.process import Daemon, Nsqadmin, Nsqd, Nsqlookupd

collect_ignore_glob = [] if FOLDER else ["test_[!p]*.py"]

_D = TypeVar("_D", bound=Daemon)


class Daemons:
    """Starts daemons, ours and NSQ's, and ends them with the test."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._folder = folder
        self._running = running
        self._count = 0

    def nsqd(self, whose: Whose, *options: str, lookupd: Nsqlookupd | None = None, folder: Path | None = None) -> Nsqd:
        self._count += 1
        more = () if lookupd is None else (f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}",)
        path = folder or self._folder / f"nsqd-{self._count}"
        return self._start(whose, Nsqd(path, "broadcast-address=127.0.0.1", *more, *options))

    def nsqlookupd(self, whose: Whose, *options: str) -> Nsqlookupd:
        return self._start(whose, Nsqlookupd(*options))

    def nsqadmin(self, whose: Whose, *lookupds: Nsqlookupd) -> Nsqadmin:
        places = [f"lookupd-http-address=127.0.0.1:{it.http_address[1]}" for it in lookupds]
        return self._start(whose, Nsqadmin(*places))

    def _start(self, whose: Whose, daemon: _D) -> _D:
        if whose == "nsq":
            daemon.command = (str(program(daemon.program)),)
        self._running.enter_context(daemon)
        return daemon


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with ExitStack() as running:
        yield Daemons(tmp_path, running)
