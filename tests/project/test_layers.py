"""Each service runs without the others. Who may import whom is in pyproject.toml, and scripts/check looks at that."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.process import PYTHONPATH

ROOT = Path(__file__).resolve().parents[2]

# What a service must not need: the other services, and packages that only other extras install.
HIDDEN = {
    "nsqcommon": ("nsqd", "nsqlookupd", "nsqadmin", "jinja2", "httpx", "pyspark", "pyarrow"),
    "nsqd": ("nsqlookupd", "nsqadmin", "jinja2", "pyspark", "pyarrow"),
    "nsqlookupd": ("nsqd", "nsqadmin", "jinja2", "httpx", "pyspark", "pyarrow"),
    "nsqtools": ("nsqd", "nsqlookupd", "nsqadmin", "jinja2", "httpx", "pyspark", "pyarrow"),
    "nsqjobs": ("nsqd", "nsqlookupd", "nsqadmin", "jinja2", "httpx", "pyspark", "pyarrow"),
    "nsqclient": (
        "nsqd",
        "nsqlookupd",
        "nsqadmin",
        "jinja2",
        "httpx",
        "pyspark",
        "pyarrow",
        "uvicorn",
        "msgpack",
    ),
    "nsqadmin": ("nsqd", "nsqlookupd", "pyspark", "pyarrow"),
    "nsqpytest": ("nsqlookupd", "nsqadmin", "nsqclient", "jinja2", "pyspark", "pyarrow"),
}

# A job queue's room needs its own library and none of the others; what the rooms share needs none at all.
LIBRARIES = {
    "celery": ("celery", "kombu", "billiard"),
    "taskiq": ("taskiq", "taskiq_dependencies"),
    "dramatiq": ("dramatiq",),
    "django": ("django", "django_tasks"),
}

LOOPS = {"trio", "asyncio", "socket", "ssl", "select", "selectors", "subprocess", "threading"}

IMPORT_ALL = "tests.project.import_all"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def import_all(package: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    """Import the package in a fork of a process that has imported what all need and nothing of ours."""
    command = [sys.executable, "-P", "-m", IMPORT_ALL, package, *hidden]
    return forked.run(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, cwd=ROOT, text=True, timeout=120)


@pytest.mark.parametrize("package", HIDDEN)
def test_a_service_imports_with_the_others_hidden(package: str) -> None:
    result = import_all(package, *HIDDEN[package])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("room", LIBRARIES)
def test_a_room_of_jobs_imports_with_the_other_libraries_hidden(room: str) -> None:
    others = [name for library, names in LIBRARIES.items() if library != room for name in names]
    result = import_all(f"nsqjobs.{room}", *others)
    assert result.returncode == 0, result.stderr


def test_what_the_rooms_of_jobs_share_imports_without_any_library() -> None:
    shared = [f"nsqjobs.{path.stem}" for path in (ROOT / "nsqjobs").glob("*.py") if path.stem != "__init__"]
    assert "nsqjobs.held" in shared
    hidden = [name for names in LIBRARIES.values() for name in names]
    code = f"import sys\nfor name in {hidden}: sys.modules[name] = None\nimport nsqjobs, {', '.join(shared)}"
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", ["nsqd.broker", "nsqcommon.wire"])
def test_a_core_loads_no_loop(package: str) -> None:
    """The contracts read what modules import; this is what a process then holds."""
    result = run(sys.executable, "-m", IMPORT_ALL, package)
    loaded = set(result.stdout.split())
    assert len([name for name in loaded if name.startswith(f"{package}.")]) > 10, result.stderr
    assert not loaded & LOOPS


@pytest.mark.parametrize("package", HIDDEN)
def test_a_package_is_typed(package: str) -> None:
    folder = Path(*importlib.import_module(package).__path__)
    assert folder.is_relative_to(ROOT)
    assert (folder / "py.typed").is_file()
