"""A Postgres under Django's tasks: their queue where it is the broker, and their results in any case.

It writes and does not sync (`fsync=off`), which is as durable as nsqd's default: a kill -9 leaves what was written alone.
By its own default it syncs at each commit, and is slower.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench.servers import Process, Server
from bench.work import HOST, Failed

_USER: Final = "postgres"  # root may not run it
_STOP_LIMIT: Final = 10.0  # seconds
_OPEN: Final = "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')"


class Postgres(Server):
    program = "postgres"

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._programs = _programs()
        self._home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # the other user cannot enter the work's folder
        self._as = _other_user(self._home)
        self._connection: Any = None

    @classmethod
    def lacks(cls) -> str:
        if _programs() is None:
            return "postgres is not installed"
        missing = [it for it in ("psycopg", "django_tasks_db") if find_spec(it) is None]
        return f"{' and '.join(missing)}: scripts/setup dev,bench-jobs" if missing else ""

    @property
    def url(self) -> str:
        return f"postgresql://nsq@{HOST}:{self.port}/postgres"

    @property
    def command(self) -> Sequence[str]:
        return [
            *(f"{self._programs}/postgres", "-D", f"{self._home}/data", "-p", str(self.port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories=", "-c", "fsync=off"),
        ]

    def launch(self) -> None:
        if not (self._home / "data").exists():
            self._initialize()
        self._process = Process(self.command, self.log, **self._as)

    def _initialize(self) -> None:
        options = ("-D", "data", "-U", "nsq", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        done = subprocess.run(
            [f"{self._programs}/initdb", *options], cwd=self._home, capture_output=True, check=False, **self._as
        )
        if done.returncode:
            raise Failed(f"initdb: {done.stderr.decode()}")

    def answers(self) -> bool:
        asked = [f"{self._programs}/pg_isready", "-q", "-h", HOST, "-p", str(self.port), "-U", "nsq", "-d", "postgres"]
        return subprocess.run(asked, check=False).returncode == 0

    def left(self) -> int:
        import psycopg

        if self._connection is None:
            self._connection = psycopg.connect(self.url, autocommit=True)
        return int(self._connection.execute(_OPEN).fetchone()[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.stop(_STOP_LIMIT)  # a Postgres that is killed leaves shared memory behind
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)


def _programs() -> Path | None:
    """Return the folder of the newest installed server's programs: Debian has them where no PATH leads to."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda it: float(it.parts[-3]))
    here = str(found[-1]) if found else shutil.which("initdb")
    return Path(here).resolve().parent if here else None


def _other_user(home: Path) -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam(_USER)
    os.chown(home, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
