"""Run kombu's and Celery's own integration tests on a real nsqd.

python -m tests.e2e.peers.celery_suites --kombu ../kombu --celery ../celery [--redis 127.0.0.1:6379] [-- arguments of pytest]

Results are in SQLite, or in a Redis, whose keys the tests may delete. Most tests of canvases want a Redis.
Both are checkouts of these projects, of which only the tests are used: kombu and Celery themselves are the installed ones.
The tests need pytest-timeout and pydantic; bench/results/job-suites-2026-11.md says which ones are left out, and why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.command_line import argument, option, read_options
from tests.support.process import ROOT, Nsqd

# kombu's tests are mixins: each transport's file says how to connect, and which of them it is for.
KOMBU: Final = """
import os
import kombu
import nsqjobs.celery
import pytest
from t.integration.common import (
    BaseExchangeTypes, BaseFailover, BaseMessage, BasePriority, BaseTimeToLive, BasicFunctionality,
)

BROKER = os.environ["TEST_BROKER"]

@pytest.fixture
def connection(request):
    options = {"priority_steps": list(range(10))} if request.cls is test_Priority else {}
    return kombu.Connection(BROKER, transport_options=options)

@pytest.fixture
def failover_connection():
    return kombu.Connection(["nsq://127.0.0.1:1", BROKER], connect_timeout=10)

@pytest.fixture
def invalid_connection():
    return kombu.Connection("nsq://127.0.0.1:1")

class test_Basic(BasicFunctionality): ...
class test_Exchanges(BaseExchangeTypes): ...
class test_TimeToLive(BaseTimeToLive): ...
class test_Message(BaseMessage): ...
class test_Failover(BaseFailover): ...

class test_Priority(BasePriority):
    # They expect that one `drain_events` hands over all messages, and that a passing queue has priorities.
    test_publish_consume = test_publish_requeue_consume = test_simple_buffer_publish_consume = None
"""

CELERY: Final = ("test_tasks.py", "test_canvas.py", "test_inspect.py", "test_loader.py", "test_security.py")
LEFT_OUT: Final = (
    "t/integration/test_inspect.py::test_Inspect::test_scheduled"  # no worker holds a task that is not due
)
SETTINGS: Final = "[pytest]\npython_classes = test_*\nmarkers =\n    amqp\n    celery\n    env\n    flaky\n"


@dataclass(frozen=True, kw_only=True)
class SuitesOptions:
    pytest: tuple[str, ...] = argument("arguments for pytest", default=())
    kombu: Path | None = option(None, "a checkout of kombu")
    celery: Path | None = option(None, "a checkout of Celery")
    redis: str | None = option(None, "a Redis for the results of Celery's tests", word="HOST:PORT")


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(SuitesOptions, arguments, name="python -m tests.e2e.peers.celery_suites", about=__doc__)
    with tempfile.TemporaryDirectory() as folder, Nsqd(Path(folder) / "nsqd") as nsqd:
        broker = f"nsq://127.0.0.1:{nsqd.tcp[1]}"
        statuses = []
        if options.kombu:
            tests = _copied(options.kombu, Path(folder) / "kombu")
            (tests / "t/integration/test_nsq.py").write_text(KOMBU)
            arguments = ["t/integration/test_nsq.py", *options.pytest]
            statuses.append(_run(tests, arguments, broker, _results_in(options.redis, tests)))
        if options.celery:
            tests = _copied(options.celery, Path(folder) / "celery")
            _let_wait(tests / "t/integration/tasks.py")
            files = [f"t/integration/{name}" for name in CELERY]
            arguments = ["-p", "celery.contrib.pytest", f"--deselect={LEFT_OUT}", *files, *options.pytest]
            statuses.append(_run(tests, arguments, broker, _results_in(options.redis, tests)))
        return max(statuses, default=0)


def _copied(checkout: Path, to: Path) -> Path:
    """Copy the tests alone, so that they import what is installed."""
    shutil.copytree(checkout / "t", to / "t")
    (to / "pytest.ini").write_text(SETTINGS)
    return to


def _let_wait(tasks: Path) -> None:
    """Let the tests wait for a key of Redis for ten seconds, as they mean to: redis-py 8 gives up after five."""
    tasks.write_text(tasks.read_text().replace("port=port)", "port=port, socket_timeout=None)"))


def _results_in(redis: str | None, folder: Path) -> dict[str, str]:
    if redis is None:
        return {"TEST_BACKEND": f"db+sqlite:///{folder}/results.sqlite"}
    host, _, port = redis.rpartition(":")
    return {"TEST_BACKEND": f"redis://{redis}/0", "REDIS_HOST": host, "REDIS_PORT": port}


def _run(folder: Path, arguments: Sequence[str], broker: str, results: Mapping[str, str]) -> int:
    environ = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "TEST_BROKER": broker,
        **results,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:nsq", "--timeout=300", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
