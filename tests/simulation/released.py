"""Upgrading from the last release, and going back to it, with that release's code from the repository's history."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.simulation.going_back import Say, code_of
from tests.support.process import Nsqd
from tests.support.released_version import OPTIONS, check, fill

RELEASED: Final = "442dea2d"  # its nsqd is that of 0.1.0


def run(folder: Path, commit: str, say: Say) -> None:
    code = code_of(commit, folder / "code")
    for name, writer, reader in (("upgrade", code, None), ("way back", None, code)):
        data_path = folder / name
        with _nsqd(data_path, writer) as nsqd:
            fill(nsqd)
            nsqd.kill()
        with _nsqd(data_path, reader) as nsqd:
            check(nsqd)
            assert nsqd.stop() == 0
        say(f"{commit}: {name}: all of it is there")


def store(folder: Path, commit: str, into: Path) -> None:
    """Store a data path of that release as tests/e2e/data_paths has it: as `fill` and kill -9 leave it.

    owner.json is about a process of this machine, and would have each test watch whether that one still lives.
    """
    with _nsqd(folder / "data", code_of(commit, folder / "code")) as nsqd:
        fill(nsqd)
        nsqd.kill()
    shutil.copytree(folder / "data", into, ignore=shutil.ignore_patterns("*.lock", "owner.json"))


def _nsqd(data_path: Path, code: Path | None) -> Nsqd:
    return Nsqd(data_path, *OPTIONS, environ={"PYTHONPATH": str(code)} if code else None)
