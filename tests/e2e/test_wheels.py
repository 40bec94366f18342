"""What `scripts/release` ships, installed: every command starts, messages go through, and the right core runs.

`NSQ_TEST_WHEELS=dist scripts/test tests/e2e/test_wheels.py` tests the wheels in this folder. Otherwise the pure one is
built here, and the compiled one is that of scripts/compile, as building another takes minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from scripts.releasing.building import build
from tests.support.installed import Installed, install
from tests.support.process import ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="it installs both cores itself"),
]

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS: Final = sorted(PROJECT["scripts"])
NAME: Final = f"nsq_suite-{PROJECT['version']}"  # the folder may have those of earlier releases, too
SHIPPED: Final = os.environ.get("NSQ_TEST_WHEELS")
FILES: Final = (
    "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
)


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if SHIPPED is not None:
        (wheel,) = (ROOT / SHIPPED).glob(f"{NAME}-py3-none-any.whl")
    else:
        folder = tmp_path_factory.mktemp("built")
        wheel = build("wheel", ROOT, folder / "wheel", python=Path(sys.executable), timestamp=1_700_000_000)
        assert wheel.name.endswith("-py3-none-any.whl")
    return wheel


@pytest.fixture(scope="module")
def pure(pure_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(pure_wheel, tmp_path_factory.mktemp("pure") / "installed")


@pytest.fixture(scope="module")
def compiled_wheel() -> Path:
    own = "-cp{}{}-*.whl".format(*sys.version_info)
    if SHIPPED is not None:
        (wheel,) = (ROOT / SHIPPED).glob(NAME + own)
    elif subprocess.run([ROOT / "scripts" / "compile", "--check"], check=False).returncode:
        pytest.skip("scripts/compile has not compiled this code")
    else:
        (wheel,) = (ROOT / ".venv-compiled" / "wheel").glob(f"*{own}")
    return wheel


@pytest.fixture(scope="module")
def compiled(compiled_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(compiled_wheel, tmp_path_factory.mktemp("compiled") / "installed")


def top_level_names(wheel: Path) -> set[str]:
    """Return what is then beside the packages of all others."""
    with zipfile.ZipFile(wheel) as files:
        return {name.partition("/")[0] for name in files.namelist()}


def test_no_name_of_ours_is_anybody_elses(pure_wheel: Path) -> None:
    names = top_level_names(pure_wheel)
    assert {"nsqcommon", "nsqd", "nsqpytest", "pyspark_nsqtable"} <= names
    assert not [name for name in names if not name.startswith(("nsq", "pyspark_nsq"))]


def test_nor_does_the_compiled_wheel_add_one(compiled_wheel: Path, pure_wheel: Path) -> None:
    (added,) = top_level_names(compiled_wheel) - top_level_names(pure_wheel)
    assert added.startswith("nsq_core__mypyc.")


def check_commands(installed: Installed) -> None:
    """Start every command."""
    with ThreadPoolExecutor(2) as threads:
        said = [*threads.map(lambda name: installed.run(name, "--help"), COMMANDS)]
    assert {name: it.stderr for name, it in zip(COMMANDS, said, strict=True) if it.returncode} == {}


def check_core(installed: Installed, core: str, data_path: Path) -> None:
    """Send a message through nsqd with two other commands, and see which core nsqd runs."""
    with installed.nsqd(data_path) as nsqd:
        assert re.search(rf"core: {core}$", nsqd.log, re.MULTILINE)
        address = f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp[1]}"
        sent = installed.run("to_nsq", address, "--topic=t", input="hello\n")
        assert sent.returncode == 0, sent
        got = installed.run("nsq_tail", address, "--topic=t", "-n=1")
        assert (got.returncode, got.stdout) == (0, "hello\n"), got
        assert nsqd.stop() == 0


def test_the_pure_wheel(pure: Installed, tmp_path: Path) -> None:
    check_commands(pure)
    check_core(pure, "pure Python", tmp_path)


def test_the_compiled_wheel(compiled: Installed, tmp_path: Path) -> None:
    check_commands(compiled)
    check_core(compiled, "compiled", tmp_path)


def test_the_compiled_wheel_as_pure_python(compiled: Installed, compiled_wheel: Path, tmp_path: Path) -> None:
    as_pure = compiled.with_environ({"NSQ_PURE": "1"})
    check_core(as_pure, "pure Python", tmp_path)
    names = compiled_modules(compiled_wheel)
    for installed, suffix in ((compiled, ".so"), (as_pure, ".py")):
        said = installed.run("python", "-c", FILES, *names)
        assert said.returncode == 0, said
        files = [Path(it) for it in said.stdout.split()]
        assert len(files) == len(names)
        assert [it for it in files if it.suffix != suffix or not it.is_relative_to(compiled.folder)] == []


def compiled_modules(wheel: Path) -> list[str]:
    """Return the names of the modules that the wheel has both as source and compiled."""
    with zipfile.ZipFile(wheel) as files:
        found = files.namelist()
    names = [it.partition(".")[0] for it in found if it.endswith(".so") and "__mypyc" not in it]
    assert len(names) > 20
    assert [it for it in names if f"{it}.py" not in found] == []
    return [it.replace("/", ".") for it in names]
