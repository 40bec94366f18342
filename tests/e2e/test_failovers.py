"""Lost machines lose nothing that was answered. The long version: `python -m tests.e2e.failovers --count 1000`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.failovers import LIVES, run


@pytest.mark.slow
def test_what_was_answered_survives_machines_and_their_disks(tmp_path: Path) -> None:
    options = random.choice(((), ("max-bytes-per-file=65536", "mem-queue-size=10")))
    outcome = run(tmp_path, lives=LIVES, seed=random.randrange(1 << 32), options=options)
    assert len(outcome.ledger.acknowledged) >= LIVES
