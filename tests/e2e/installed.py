"""Wheels that are installed into an environment of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Final

from scripts.releasing.building import build
from scripts.releasing.distributions import distributions_of, stage
from tests.support.process import ROOT, Nsqd

TIMESTAMP: Final = 1_700_000_000  # of what wheels have in them
_LIMIT: Final = 120.0  # seconds; several commands may start at once on a slow machine


class Installed:
    """An environment with wheels of ours. What these need of others comes from the environment of the tests.

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

    @property
    def modules(self) -> Path:
        (purelib,) = self.folder.glob("lib/python*/site-packages")
        return purelib

    def copy(self, folder: Path) -> Installed:
        """Return the same in another folder. Bytecode stays valid, but names the old files."""
        shutil.copytree(self.folder, folder, symlinks=True)
        old, new = (f"#!{it}/bin/".encode() for it in (self.folder, folder))
        for command in (folder / "bin").iterdir():
            if not command.is_symlink() and (text := command.read_bytes()).startswith(old):
                command.write_bytes(text.replace(old, new, 1))
        return Installed(folder, self._environ)

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


def build_pure(folder: Path) -> tuple[Path, Path]:
    """Build the pure wheels of this tree, of the client and of the suite, as a release builds them."""
    client, suite = (
        build(
            "wheel",
            stage(it, ROOT, folder / it.name / "staged"),
            folder / it.name / "wheel",
            python=Path(sys.executable),
            timestamp=TIMESTAMP,
        )
        for it in distributions_of(ROOT)
    )
    return client, suite


def install(
    wheels: Iterable[Path], folder: Path, *, only: Collection[str] | None = None, compiles: bool = True
) -> Installed:
    """Make an environment that has these wheels. pip asks no index, as nothing else is to be installed.

    Of the distributions in the environment of the tests it sees all, or only these. Bytecode is written by pip, or when
    a module is imported.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=_LIMIT)
    python = str(folder / "bin" / "python")
    # `--python` is pip's option for an environment that has no pip of its own.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    pip += [] if compiles else ["--no-compile"]
    subprocess.run([*pip, *map(str, wheels)], check=True, timeout=_LIMIT)
    seen = sysconfig.get_path("purelib")
    if only is not None:
        seen = str(folder / "dependencies")
        _link(only, Path(seen))
    # A path in a .pth file comes after the environment's own, and .pth files of that path, such as our editable
    # installation's, are not read.
    installed = Installed(folder)
    (installed.modules / "dependencies.pth").write_text(seen + "\n", encoding="utf-8")
    return installed


def _link(distributions: Iterable[str], folder: Path) -> None:
    """Make a folder that has these distributions of our environment, and no others."""
    folder.mkdir()
    for name in distributions:
        for file in metadata.files(name) or ():
            top, link = file.parts[0], folder / file.parts[0]
            if top not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(sysconfig.get_path("purelib"), top))
