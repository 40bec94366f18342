"""A wheel that is installed into an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from tests.support.process import Nsqd

_LIMIT: Final = 120.0  # seconds; several commands may start at once on a slow machine


class Installed:
    """An environment with one wheel. What the wheel needs of others comes from the environment of the tests.

    `environ` is for every program that is run there. `runs_in` is where that is: a folder that has none of our sources.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None, *, runs_in: Path | None = None) -> None:
        self.folder = folder
        self._environ = {"PYTHONPATH": "", **(environ or {})}
        self._runs_in = runs_in or folder

    def with_environ(self, environ: Mapping[str, str]) -> Installed:
        return Installed(self.folder, {**self._environ, **environ}, runs_in=self._runs_in)

    def in_folder(self, folder: Path) -> Installed:
        return Installed(self.folder, self._environ, runs_in=folder)

    def command(self, name: str) -> Path:
        return self.folder / "bin" / name

    def run(self, name: str, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of this environment to its end."""
        return subprocess.run(
            [self.command(name), *arguments],
            cwd=self._runs_in,
            env={**os.environ, **self._environ},
            input=input,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )

    def start(self, name: str, *arguments: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a command of this environment that runs until somebody ends it."""
        return subprocess.Popen(
            [self.command(name), *arguments],
            cwd=self._runs_in,
            env={**os.environ, **self._environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def nsqd(self, data_path: Path) -> Nsqd:
        nsqd = Nsqd(data_path, environ=self._environ)
        nsqd.command = [str(self.command("nsqd"))]
        return nsqd


def install(wheel: Path, folder: Path) -> Installed:
    """Make an environment that has this wheel. pip asks no index, as nothing else is to be installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=_LIMIT)
    python = str(folder / "bin" / "python")
    # `--python` is pip's option for an environment that has no pip of its own.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, timeout=_LIMIT)
    # A path in a .pth file comes after the environment's own, and .pth files of that path, such as our editable
    # installation's, are not read.
    (purelib,) = folder.glob("lib/python*/site-packages")
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(folder)
