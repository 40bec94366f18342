"""A short form of `python -m tests.simulation edit-kills`, and does its ledger notice?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import edit_kills
from tests.simulation.edit_kills import Outcome
from tests.support.lengths import sized

KILLS = sized(short=3, long=50)


@pytest.mark.slow
def test_exactly_one_of_two_versions_runs_whatever_a_kill_interrupts(tmp_path: Path) -> None:
    outcome = Outcome()
    edit_kills.run(tmp_path, outcome, kills=KILLS, seed=1)
    assert outcome.work.counts["replaced"] > 0
    assert outcome.work.counts["run again"] > 0
