"""A short form of `python -m tests.simulation outbox`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import outbox_kills
from tests.simulation.outbox_kills import Outcome
from tests.support.postgres import needs_postgres

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_row_is_published_once_whatever_is_killed(tmp_path: Path, database: str) -> None:
    if database == "postgres":
        needs_postgres()
    outcome = Outcome()
    outbox_kills.run(tmp_path, outcome, database=database, kills=5, seed=3)
    assert outcome.rows
