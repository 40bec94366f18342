"""Whole nodes whose machines are lost: `python -m tests.simulation lost-machines`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.planted.planting import bugs_for, planted
from tests.simulation.remote.lost_machine import live_with_losses
from tests.simulation.remote.prefixes import live_with_prefixes
from tests.support.lengths import IS_LONG, sized

SEEDS: Final[Sequence[int]] = sized(short=range(3), long=range(400))
PREFIXES: Final[int] = sized(short=30, long=5000)
MOST_LIVES: Final = 300  # in which a planted bug has to be found
# A life that finds each planted bug, as in test_several_machines.py.
FINDS: Final = {
    "a change of the journal is recorded after that of the log": 0,
    "a short write is recorded whole": 1,
    "a new name is not recorded": 34,
    "small files are recorded in pieces": 67,
    "a removal is recorded before the journal that allows it": 0,
}


def test_random_lives() -> None:
    for seed in sorted({*SEEDS, *FINDS.values()}):
        outcome = live_with_losses(seed)
        assert not outcome.error, f"{outcome.error}\npython -m tests.simulation lost-machines --from {seed} --seeds 1"


def test_a_node_starts_from_any_prefix_of_what_was_recorded() -> None:
    tried, seed = 0, 0
    while tried < PREFIXES:
        outcome = live_with_prefixes(seed)
        assert not outcome.error, f"{outcome.error}\npython -m tests.simulation prefixes --from {seed} --seeds 1"
        tried, seed = tried + outcome.counts["prefixes"], seed + 1


def test_lives_name_bugs_that_are_planted() -> None:
    assert FINDS.keys() == {*bugs_for("lost machines")}


@pytest.mark.parametrize("bug", bugs_for("lost machines"))
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        if live_with_losses(FINDS[bug]).error:
            return
        assert IS_LONG, "the lives have changed: see FINDS"
        found = next((seed for seed in range(MOST_LIVES) if live_with_losses(seed).error), None)
    assert found is None, f"now life {found} finds it"
    raise AssertionError(f"no life of {MOST_LIVES} finds it")
