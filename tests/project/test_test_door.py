"""`scripts/test-door`: what it needs, what a machine of it gets, and what it tells of a visit."""

from __future__ import annotations

import io
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO, cast

import pytest

from scripts.door import bases
from scripts.door.__main__ import table
from scripts.door.machines import Failed, Machine, Running
from scripts.door.visits import Phase, Visit
from tests.project.checkout import CANNOT, executable, run
from tests.support.process import ROOT


def test_only_root_can_make_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert bases.why_not() == "it takes root to make machines"


def test_what_is_missing_to_make_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "debootstrap" else name)
    assert bases.why_not() == "no debootstrap here: it takes Debian with the package debootstrap"


def test_without_root_or_debootstrap_there_is_one_line_and_status_2(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    status, lines = run(ROOT / "scripts/test-door", PATH=str(programs), PYTHON=sys.executable)
    assert (status, len(lines)) == (CANNOT, 1)
    assert lines[0].startswith("test-door: ")


def test_a_machine_gets_what_the_host_says_about_indexes_but_no_paths_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/certificates").touch()
    for name, value in (
        ("PIP_INDEX_URL", "https://index.example/simple"),
        ("PIP_CERT", "/etc/certificates"),
        ("PIP_FIND_LINKS", "/not/there"),
        ("https_proxy", "http://proxy.example:8080"),
        ("SECRET", "x"),
    ):
        monkeypatch.setenv(name, value)
    found = bases.environment(tmp_path)
    assert found["PIP_INDEX_URL"] == "https://index.example/simple"
    assert found["PIP_CERT"] == "/etc/certificates"
    assert found["https_proxy"] == "http://proxy.example:8080"
    assert found.keys().isdisjoint({"PIP_FIND_LINKS", "SECRET", "PATH", "HOME", "CI"})


class Host:
    """Stands for a machine, and runs the commands right here; `clone` and `scripts/test` are what the test says."""

    name = "host"
    user = "newcomer"
    root = Path("/")

    def __init__(self, folder: Path, suite: str) -> None:
        self.home = str(folder)
        executable(folder / "tests/scripts/test", f"#!/bin/sh\n{suite}\n")

    def run(self, command: str, log: TextIO) -> None:
        assert command.startswith("git clone ")

    def start(self, command: str, log: TextIO, *, cwd: str) -> Running:
        return Running(["sh", "-c", f"cd {cwd} && {command}"], self.name, log)


@pytest.mark.parametrize(
    ("suite", "of_phase", "last"),
    [
        ("echo '== checks: 7 s' >&2; echo '= 3 passed in 9s ='; exit 0", "", ("3 passed in 9s", False)),
        ("echo '== checks: 7 s' >&2; echo 'no luck'; exit 3", "", ("status 3: no luck", True)),
        ("echo '== checks: 7 s, exit status 3' >&2; echo '= 3 passed ='; exit 0", "exit status 3", ("3 passed", False)),
        (
            "echo '== checks: 7 s, exit status 3' >&2; exit 3",
            "exit status 3",
            ("status 3: == checks: 7 s, exit status 3", True),
        ),
    ],
)
def test_a_visit_tells_the_phases_of_the_suite_and_how_it_ended(
    suite: str, of_phase: str, last: tuple[str, bool], tmp_path: Path
) -> None:
    visit = Visit(cast(Machine, Host(tmp_path, suite)), io.StringIO(), "")
    with pytest.raises(Failed) if last[1] else nullcontext():
        visit.test()
    assert [(it.name, it.note, it.failed) for it in visit.phases] == [
        ("clone", "", False),
        ("checks", of_phase, bool(of_phase) and last[1]),
        ("scripts/test", *last),
    ]
    assert visit.phases[1].seconds == 7


def test_a_command_that_takes_too_long_has_failed() -> None:
    running = Running(["sleep", "60"], "host", io.StringIO())
    with pytest.raises(Failed, match=r"not done after 0 s"):
        running.wait(0.01)


def test_the_table_says_what_failed() -> None:
    said = table([Phase("user", "test", "clone", 1.26), Phase("user", "test", "tests", 0, "status 1", failed=True)])
    assert said.splitlines() == [
        "machine  step  phase  seconds",
        "user     test  clone      1.3",
        "user     test  tests           FAILED: status 1",
    ]
