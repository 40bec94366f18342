"""go-nsq in programs of ours: tests/e2e/peers/go and its folders, each built when a test first needs it."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.needs import need
from tests.support.process import ROOT

UNREACHABLE: Final = "go cannot download go-nsq"

_SOURCES: Final = ROOT / "tests" / "e2e" / "peers" / "go"
_BUILT: Final = ROOT / "build" / "peers"
_LIMIT: Final = 600.0  # seconds; with an empty cache Go compiles its own library, too
# Neither another Go nor a C compiler is needed, and go.mod and go.sum stay as they are.
_ENVIRON: Final = {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}


@functools.cache
def go_peer(folder: str = "") -> Path:
    """Return the program. Skip the test where there is no Go, or where it cannot download go-nsq."""
    need("Go")
    program = _BUILT / (f"go-nsq-{folder}" if folder else "go-nsq")
    _BUILT.mkdir(parents=True, exist_ok=True)
    with (_BUILT / "lock").open("w") as lock:  # one at a time, where tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _go("mod", "download").returncode:
            pytest.skip(UNREACHABLE)
        built = _go("build", "-o", str(program), f"./{folder}")
        assert built.returncode == 0, built.stderr
    return program


def _go(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments],
        cwd=_SOURCES,
        env={**os.environ, **_ENVIRON},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
