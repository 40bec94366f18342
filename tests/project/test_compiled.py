"""The compiled core (setup.py): what is compiled, when, and which of the two is running.

`scripts/test-compiled` runs the suite on the compiled core and sets NSQ_TEST_PYTHON; otherwise everything is pure Python.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import setuptools

from nsqcommon.version import core_of
from tests.support.process import Nsqd

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("NSQ_TEST_PYTHON")
CORE = "compiled" if PYTHON else "pure Python"

IMPORT_ALL = (
    "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
)


def setup_with(monkeypatch: pytest.MonkeyPatch, command: str, *, compile: str = "") -> tuple[list[str], dict[str, Any]]:
    """Return what setup.py compiles on this command, and what it tells setuptools."""
    given: dict[str, Any] = {}

    def mypycify(arguments: list[str], **settings: Any) -> list[str]:
        given.update(settings)
        return arguments

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NSQ_COMPILE", compile)
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.setitem(sys.modules, "mypyc.build", SimpleNamespace(mypycify=mypycify))
    runpy.run_path(str(ROOT / "setup.py"))
    return [it for it in given["ext_modules"] if not it.startswith("--")], given


def compiled_modules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    files, _ = setup_with(monkeypatch, "bdist_wheel", compile="1")
    return [file.removeprefix("common/").removesuffix(".py").replace("/", ".") for file in files]


def test_every_file_that_the_compiled_core_is_tested_by_exists() -> None:
    """pytest runs no test at all if one of its paths does not exist."""
    named = re.findall(r"tests/[^ \n]+", (ROOT / "scripts/test-compiled").read_text().partition("--dist")[2])
    expanded = subprocess.run(["bash", "-c", f"echo {' '.join(named)}"], stdout=subprocess.PIPE, text=True, check=True)
    files = expanded.stdout.split()
    assert len(files) > 50
    assert [file for file in files if not (ROOT / file).exists() and not (ROOT / f"{file}.py").exists()] == []


def test_every_compiled_file_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = setup_with(monkeypatch, "bdist_wheel", compile="1")
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_compiled_library_has_a_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    _, given = setup_with(monkeypatch, "bdist_wheel", compile="1")
    assert given["group_name"].startswith("nsq")


# These consume everything at once in any case.
EAGER = {"all", "any", "deque", "dict", "dict.fromkeys", "extend", "join", "list", "max", "min", "set", "sorted", "sum"}
EAGER |= {"frozenset", "tuple", "update"}


def test_no_generator_expression_is_compiled_into_a_list_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """mypyc makes a list of a generator expression.

    So one that should yield a million messages bit by bit would take all of the loop's time at once. A generator
    function stays one.
    """
    files, _ = setup_with(monkeypatch, "bdist_wheel", compile="1")
    assert [place for file in files for place in lazy_expressions(ROOT / file)] == []


def lazy_expressions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.GeneratorExp) and not isinstance(node, ast.Starred):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if not {called, called.rpartition(".")[2]} & EAGER:
                    yield f"{path.relative_to(ROOT)}:{child.lineno}"


@pytest.mark.parametrize(("command", "compile"), [("bdist_wheel", ""), ("bdist_wheel", "0"), ("editable_wheel", "1")])
def test_any_other_build_is_pure(monkeypatch: pytest.MonkeyPatch, command: str, compile: str) -> None:
    files, _ = setup_with(monkeypatch, command, compile=compile)
    assert files == []


def test_the_compiler_is_the_type_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    _, given = setup_with(monkeypatch, "egg_info", compile="1")
    (requirement,) = given["setup_requires"]
    assert f'"{requirement}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_no_compiled_module_lies_beside_the_sources() -> None:
    packages = ("common", "nsqd", "nsqlookupd", "nsqadmin")
    assert [path for package in packages for path in (ROOT / package).rglob("*.so")] == []


def test_these_tests_run_on_the_core_they_are_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [importlib.import_module(name) for name in compiled_modules(monkeypatch)]
    assert {core_of(module) for module in modules} == {CORE}


@pytest.mark.skipif(PYTHON is None, reason="scripts/test-compiled runs this")
def test_every_compiled_module_imports_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert PYTHON is not None
    names = compiled_modules(monkeypatch)
    files = subprocess.run(
        [PYTHON, "-P", "-c", IMPORT_ALL, *names],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    assert len(files) == len(names)
    assert [file for file in files if not file.endswith(".so") or Path(file).is_relative_to(ROOT / "nsqd")] == []


@pytest.mark.skipif(PYTHON is None, reason="scripts/test-compiled runs this")
@pytest.mark.parametrize(
    "name", ["nsqd.broker.topic.Topic", "nsqd.broker.channel.Channel", "nsqd.client.protocol.ClientProtocol"]
)
def test_what_there_are_many_of_has_no_dict(name: str) -> None:
    """A base class that is not compiled, such as `abc.ABC`, would give each object one."""
    module, _, class_name = name.rpartition(".")
    assert getattr(importlib.import_module(module), class_name).__dictoffset__ == 0


def test_nsqd_says_which_core_runs(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        assert re.search(rf"core: {CORE}$", nsqd.log, re.MULTILINE)


def test_a_traceback_names_file_and_line() -> None:
    commands = importlib.import_module("nsqcommon.wire.commands")
    with pytest.raises(AttributeError) as caught:
        commands.CommandReader(None, print)
    frames = [(Path(entry.path).name, entry.lineno + 1) for entry in caught.traceback]
    source = (ROOT / "common/nsqcommon/wire/commands.py").read_text(encoding="utf-8").splitlines()
    assert frames[-1][0] == "commands.py"
    assert "limits" in source[frames[-1][1] - 1]


def test_the_modules_have_the_names_that_one_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is a package for Python even if it was not meant to be: `common.nsqcommon` would be found, and be pure."""
    assert {name.partition(".")[0] for name in compiled_modules(monkeypatch)} == {"nsqcommon", "nsqd"}
