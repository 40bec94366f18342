"""A short form of `python -m tests.simulation bury`, and does its ledger notice?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.planting import bugs_for, with_bug
from tests.simulation.bury_kills import VERBS, BuryKills
from tests.simulation.killing import UNTIL_FOUND
from tests.support.lengths import sized

pytestmark = pytest.mark.slow

KILLS = sized(short=4, long=50)


def test_nothing_buried_is_lost_or_misplaced_by_kills(tmp_path: Path) -> None:
    run = BuryKills()
    run.run(tmp_path, kills=KILLS, seed=1)
    counts = run.work.counts
    assert min(counts[verb] for verb in VERBS) > 0, counts


VERDICTS = {
    "a crash forgets buried messages": "is not buried",
    # Which of the two shows first depends on when the kill comes, here and below.
    "a kick goes to all channels of the topic": r"other: message \d+ came with attempts|came back: .'channel_name': 'other'",
    "the limit of attempts is off by one": "came with attempts 4|is not buried",
    "attempts go down": "are the least|is not buried",
}


@pytest.mark.parametrize("bug", bugs_for("burying kills"))
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match=VERDICTS[bug]):
        BuryKills().run(tmp_path, kills=UNTIL_FOUND, seed=1, environ=with_bug(bug))
