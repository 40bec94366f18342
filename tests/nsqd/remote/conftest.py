"""The machine that tests of the copy begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nsqd.remote.machines import JOURNAL, LOG, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine that owns the name, and has sent a journal and a log."""
    first = Machine(tmp_path / "a")
    first.start()
    first.send_difference()
    first.append(JOURNAL, b"journal")
    first.append(LOG, b"one")
    first.send()
    return first
