"""A Postgres of a test's own, on a socket in a folder of its own. It can be killed, and started again.

Root may not run the server: then it runs as the user `postgres`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.needs import need, postgres
from tests.support.process import eventually, needs_module

_LIMIT: Final = 60.0  # seconds to begin, with recovery, on a busy machine
_USER: Final = "postgres"


def needs_postgres() -> None:
    """Skip the test where Postgres is not installed."""
    need("Postgres")
    needs_module("psycopg")


class Postgres:
    def __init__(self) -> None:
        found = postgres()
        assert found is not None
        self._programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # the path of a socket has to be short
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            user = pwd.getpwnam(_USER)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._run("initdb", "-D", "data", "-U", "nsq", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._ended()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"postgresql://nsq@/postgres?host={self.folder}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> Self:
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    self._programs / "postgres", "-D", "data", "-k", self.folder,
                    "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=30",
                ],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as,
            )  # fmt: skip
        eventually(self._is_ready, _LIMIT)
        return self

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL. Its children notice and end; only then can another one start."""
        assert self._process is not None
        self._process.kill()
        self._ended()

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait(_LIMIT)
        self._process = None
        eventually(lambda: not _has_processes_in(self.folder / "data"), _LIMIT)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        asked: list[str | Path] = [
            self._programs / "pg_isready",
            "-q",
            "-h",
            self.folder,
            "-U",
            "nsq",
            "-d",
            "postgres",
        ]
        return subprocess.run(asked, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments], cwd=self.folder, capture_output=True, check=False, **self._as
        )
        assert done.returncode == 0, done.stderr.decode()


def _has_processes_in(folder: Path) -> bool:
    """Return whether a process works in this folder, as every process of Postgres does in its data."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if Path(os.readlink(process)) == folder:
                return True
        except OSError:
            continue
    return False
