"""NSQ_PURE=1: sources come before compiled modules. `tests/e2e/test_wheels.py` shows it with a compiled wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from nsqcommon.source_finder import SourceFinder

FIRST = "import {}, sys; print(getattr(sys.meta_path[0], '__name__', ''))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / f"topic{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    (tmp_path / "topic.py").write_text("")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "data").mkdir()
    return tmp_path


def test_the_source_is_found_and_not_what_is_compiled(folder: Path) -> None:
    spec = SourceFinder.find_spec("nsqd.broker.topic", ["/no/such/folder", str(folder)])
    assert spec is not None
    assert spec.origin == str(folder / "topic.py")


def test_a_package_is_one(folder: Path) -> None:
    spec = SourceFinder.find_spec("nsqcommon.room", [str(folder)])
    assert spec is not None
    assert spec.submodule_search_locations == [str(folder / "room")]


@pytest.mark.parametrize("name", ["other.topic", "nsqdx.topic", "nsqd.missing", "nsqd.data"])
def test_all_else_is_left_to_python(folder: Path, name: str) -> None:
    assert SourceFinder.find_spec(name, [str(folder)]) is None
    assert SourceFinder.find_spec("nsqd", None) is None


@pytest.mark.parametrize("package", ["nsqcommon", "nsqd"])
@pytest.mark.parametrize(("value", "is_first"), [("1", True), ("0", False), ("", False)])
def test_it_comes_first_when_the_environment_says_so(package: str, value: str, is_first: bool) -> None:
    said = subprocess.run(
        [sys.executable, "-c", FIRST.format(package)],
        env={**os.environ, "NSQ_PURE": value},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert (said == "SourceFinder\n") == is_first
