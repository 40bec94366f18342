"""A short form of `python -m tests.faults bury`, and does its ledger notice?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import bury_kills
from tests.faults.bury_kills import Outcome
from tests.planted.planting import with_bug

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_nothing_buried_is_lost_or_misplaced_by_kills(tmp_path: Path) -> None:
    outcome = Outcome()
    bury_kills.run(tmp_path, outcome, kills=50, seed=1)
    counts = outcome.work.counts
    assert min(counts[what] for what in ("buried", "kicked", "discarded", "redelivered")) > 0, counts


@pytest.mark.parametrize(
    ("bug", "verdict"),
    [
        ("a crash forgets buried messages", "is not buried"),
        ("a kick goes to all channels of the topic", r"other: message \d+ came with attempts"),
        # Which of the two shows first depends on when the kill comes.
        ("the limit of attempts is off by one", "came with attempts 4|is not buried"),
        ("attempts go down", "are the least|is not buried"),
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str, verdict: str) -> None:
    with pytest.raises(AssertionError, match=verdict):
        bury_kills.run(tmp_path, Outcome(), kills=25, seed=1, environ=with_bug(bug))  # ends where the bug shows
