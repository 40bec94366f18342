"""go-nsq in programs of ours: tests/e2e/peers/go and its folders, built by scripts/build-go-peers."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.needs import need
from tests.support.process import ROOT

UNREACHABLE: Final = "go cannot download go-nsq"

_UNREACHABLE_STATUS: Final = 3
_LIMIT: Final = 600.0  # seconds; with an empty cache Go compiles its own library, too


@functools.cache
def go_peer(folder: str = "") -> Path:
    """Return the program. Skip the test where there is no Go, or where it cannot download go-nsq."""
    need("Go")
    build = [str(ROOT / "scripts" / "build-go-peers")]
    built = subprocess.run(build, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if built.returncode == _UNREACHABLE_STATUS:
        pytest.skip(UNREACHABLE)
    assert built.returncode == 0, built.stderr
    return ROOT / "build" / "peers" / (f"go-nsq-{folder}" if folder else "go-nsq")
