"""A short form of `python -m tests.simulation edit-kills`, and does its ledger notice?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.planting import bugs_for, with_bug
from tests.simulation.edit_kills import EditKills
from tests.simulation.killing import UNTIL_FOUND
from tests.support.lengths import sized

KILLS = sized(short=3, long=50)
VERDICTS = {
    # The old one comes as well; or it has come, is finished, and is replaced only then.
    "an edit leaves what it replaces": "although a later one replaces it|has replaced a message that was finished",
    "a crash brings back what an edit has replaced": "although a later one replaces it",
    # A repeat finds the message replaced, and is refused; or it runs again, a second time.
    "nobody remembers the token of an edit": "was refused, and has come before|although its edit was refused|made twice|and came as",
}


@pytest.mark.slow
def test_exactly_one_of_two_versions_runs_whatever_a_kill_interrupts(tmp_path: Path) -> None:
    run = EditKills()
    run.run(tmp_path, kills=KILLS, seed=1)
    assert run.work.counts["replaced"] > 0
    assert run.work.counts["run again"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_for("edit kills"))
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match=VERDICTS[bug]):
        # Only some kills come between an edit and its answer.
        EditKills().run(tmp_path, kills=UNTIL_FOUND, seed=1, environ=with_bug(bug))
