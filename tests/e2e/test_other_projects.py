"""nsq-suite, installed into a project that has packages of its own named `common`, `tests`, `utils` and the like.

The project is a Django site and a Celery application at once: its app `common` has a task for each.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.installed import Installed
from tests.support.process import Nsqd, eventually

pytestmark = [
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="it installs wheels itself"),
]

LIMIT: Final = 60.0  # seconds
THEIRS: Final = ("bench", "common", "docs", "scripts", "tests", "utils")
OURS: Final = ("nsqadmin", "nsqclient", "nsqd", "nsqjobs", "nsqlookupd", "nsqtools")
TASKS_OF_DJANGO: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"

FILES: Final = {
    **{f"{name}/__init__.py": "" for name in THEIRS},
    "common/apps.py": """
from django.apps import AppConfig

class Common(AppConfig):
    name = "common"
""",
    "common/tasks.py": f"""
from pathlib import Path
from {TASKS_OF_DJANGO} import task
import common

@task
def tell(path: str) -> None:
    Path(path).write_text(common.__file__ + "\\n")
""",
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
""",
    "settings.py": f"""
import os

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["common", "nsqjobs.django", "{TASKS_OF_DJANGO}"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
TASKS = {{
    "default": {{
        "BACKEND": "nsqjobs.django.NsqBackend",
        "OPTIONS": {{"url": os.environ["NSQ_URL"], "results": False}},
    }}
}}
""",
    "jobs.py": """
import os
from pathlib import Path
from celery import Celery
import common

app = Celery("jobs", broker=os.environ["NSQ_URL"])
app.conf.broker_connection_retry_on_startup = True

@app.task
def tell(path):
    Path(path).write_text(common.__file__ + "\\n")
""",
    "tests/test_project.py": f"""
import importlib
from pathlib import Path
import pytest

ROOT = Path(__file__).parents[1]

@pytest.mark.parametrize("name", {THEIRS})
def test_a_package_of_the_project_is_its_own(name):
    assert Path(importlib.import_module(name).__file__).parent == ROOT / name

@pytest.mark.parametrize("name", {OURS})
def test_nsq_suite_is_installed(name):
    assert not Path(importlib.import_module(name).__file__).is_relative_to(ROOT)

def test_a_broker_runs(nsq_broker):
    import nsqclient.sync
    with nsqclient.sync.producer(nsq_broker.tcp_address) as producer:
        producer.publish("orders", b"one")
""",
}
TESTS: Final = len(THEIRS) + len(OURS) + 1
CODE_OF_PYTEST: Final = "import sys; from pytest import console_main; sys.exit(console_main())"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def installed(project: Path, pure: Installed) -> Installed:
    """Write the command `pytest` beside our wheels: pip would write that for a pytest of this environment."""
    command = pure.command("pytest")
    command.write_text(f"#!{pure.command('python')}\n{CODE_OF_PYTEST}\n", encoding="utf-8")
    command.chmod(0o755)
    return pure.in_folder(project)


@pytest.fixture(scope="module")
def nsqd(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with installed.nsqd(tmp_path_factory.mktemp("nsqd")) as nsqd:
        yield nsqd


@pytest.fixture
def with_broker(installed: Installed, nsqd: Nsqd) -> Installed:
    return installed.with_environ({"NSQ_URL": f"nsq://127.0.0.1:{nsqd.tcp[1]}", "DJANGO_SETTINGS_MODULE": "settings"})


def run(installed: Installed, *command: str) -> str:
    done = installed.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [("pytest",), ("python", "-m", "pytest", "-p", "xdist", "-n1")],
    ids=["pytest", "python -m pytest in a worker of xdist"],
)
def test_the_project_s_tests_pass(installed: Installed, command: tuple[str, ...]) -> None:
    assert f"{TESTS} passed" in run(installed, *command, "-p", "no:cacheprovider")


IN_EACH_ORDER: Final = """
import os, sys
import trio, httptools, cramjam  # what ours need
first = sys.argv[1:]
for name in first:
    if not (pid := os.fork()):
        for module in (name, *first, "common"):
            __import__(module)
        print(sys.modules["common"].__file__, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_both_import_whichever_comes_first(installed: Installed, project: Path) -> None:
    said = run(installed, "python", "-c", IN_EACH_ORDER, "common", *OURS)
    assert said.splitlines() == [str(project / "common" / "__init__.py")] * (1 + len(OURS))


def test_a_task_of_the_django_site_is_done(with_broker: Installed, project: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    check = "import django; django.setup(); from django.core.management import call_command; call_command('check')"
    enqueue = f"from common.tasks import tell; tell.enqueue({str(told)!r})"
    assert "no issues" in run(with_broker, "python", "-c", f"{check}; {enqueue}")
    with worker(with_broker, tmp_path / "log", "manage.py", "nsq_worker"):
        eventually(lambda: told.exists() and told.read_text().endswith("\n"), LIMIT)
    assert told.read_text() == f"{project / 'common' / '__init__.py'}\n"


def test_a_task_of_the_celery_application_is_done(with_broker: Installed, project: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    run(with_broker, "python", "-c", f"import jobs; jobs.tell.delay({str(told)!r})")
    with worker(with_broker, tmp_path / "log", "-m", "celery", "-A", "jobs", "worker", "--pool=solo"):
        eventually(lambda: told.exists() and told.read_text().endswith("\n"), LIMIT)
    assert told.read_text() == f"{project / 'common' / '__init__.py'}\n"


@contextmanager
def worker(installed: Installed, log: Path, *arguments: str) -> Iterator[None]:
    """Run a worker for as long as the block runs, and check that it ends well. Show its log if the block fails."""
    with log.open("wb") as file:
        process = installed.start("python", *arguments, output=file)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    except (AssertionError, subprocess.TimeoutExpired):
        print(log.read_text(errors="replace"))  # noqa: T201  # pytest shows it with the failure
        raise
    finally:
        process.kill()
        process.wait(LIMIT)
