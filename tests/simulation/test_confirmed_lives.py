"""Whole nodes whose publishers wait for the store: `python -m tests.simulation confirmed-lives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.planted.planting import bugs_for, planted
from tests.simulation.remote.confirmed import live_confirmed
from tests.support.lengths import IS_LONG, sized

SEEDS: Final[Sequence[int]] = sized(short=range(2), long=range(400))
MOST_LIVES: Final = 300  # in which a planted bug has to be found
# A life that finds each planted bug, as in test_several_machines.py.
FINDS: Final = {
    "a publisher that waits for the store is answered when its message is written": 0,
    "history shows what another machine may not have": 10,
}


def test_random_lives() -> None:
    for seed in sorted({*SEEDS, *FINDS.values()}):
        outcome = live_confirmed(seed)
        assert not outcome.error, f"{outcome.error}\npython -m tests.simulation confirmed-lives --from {seed} --seeds 1"


def test_lives_name_bugs_that_are_planted() -> None:
    assert FINDS.keys() == {*bugs_for("confirmed lives")}


@pytest.mark.parametrize("bug", bugs_for("confirmed lives"))
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        if live_confirmed(FINDS[bug]).error:
            return
        assert IS_LONG, "the lives have changed: see FINDS"
        found = next((seed for seed in range(MOST_LIVES) if live_confirmed(seed).error), None)
    assert found is None, f"now life {found} finds it"
    raise AssertionError(f"no life of {MOST_LIVES} finds it")
