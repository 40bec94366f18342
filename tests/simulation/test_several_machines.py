"""Several machines, one name, and a store that keeps two promises: `python -m tests.simulation several-machines`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from tests.planted.planting import bugs_for, planted
from tests.simulation.remote.life import RemoteLife, live, live_with_standbys
from tests.support.lengths import IS_LONG, sized
from tests.support.quick import unless_quick

SEEDS: Final[Sequence[int]] = sized(short=range(6), long=range(400))
MOST_LIVES: Final = 300  # in which a planted bug has to be found
# A life that finds each planted bug, so that the short form finds all of them. When lives have
# changed, and a bug isn't found any more, run the long form of this file: its error says which life finds the bug now.
FINDS: Final = {
    "an OK comes before those of the slots ahead of it": 7,
    "an OK does not wait for the end of the run before": 27,
    "a slot that exists counts as our own earlier try": 0,
    "a slot that timed out is given up": 0,
    "a repeated slot has other bytes": 0,
    "a conflict is taken for another owner": 6,
    "a slot that is not there was never stored, and is left out": 6,
    "a fence is swept like a slot": 51,
    "a claimant does not ask whether it has read on swept ground": 16,
    "a claimant asks that of its last run only": 25,
    "a run is marked as gone after its slots are deleted": 16,
    "a sweep begins before the commit is confirmed": 51,
    "a root is committed before it is stored": 2,
    "a hint names a root that was never committed": 32,
    "a claimant goes on from a root whose objects may go": 3,
    "one writer is an owner twice": 66,
    "a power cut is taken for a kill": 133,
    "an adopted data path keeps what the store does not have": 7,
    "a continued data path loses what is ahead of the store": 26,
    "a root has bytes that were not proved": 0,
    "an OK does not wait for the store": 0,
    "a slot whose request has failed is never sent again": 0,
    "a claimant goes on without a fence": 0,
    "a claimant passes over the root that the chain goes on from": 21,
    "a copy of the disk from before the root that the chain goes on from is continued": 130,
    "what was dropped counts as confirmed": 4,
    "fsck deletes slots of a run that nobody has marked": 12,
    "fsck deletes what an owner is about to need": 23,
    "the mark is saved before the data path is settled": 4,
    "a root refers to bytes that were never sent": 0,
    "a root is of a later place than its run": 203,
}


def test_random_lives() -> None:
    for seed in unless_quick(sorted({*SEEDS, *FINDS.values()}), quick=[*SEEDS]):
        error, _ = live(seed)
        assert not error, f"{error}\npython -m tests.simulation several-machines --from {seed} --seeds 1 --verbose"


def test_random_lives_with_standbys() -> None:
    counts = Counter[str]()
    for seed in SEEDS:
        error, found = live_with_standbys(seed)
        assert not error, f"{error}\npython -m tests.simulation standbys --from {seed} --seeds 1 --verbose"
        counts += found
    assert counts["standbys take over"]


def test_seed_replays_the_same_life() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        RemoteLife(7, trace.append).run()
    assert traces[0] == traces[1]
    assert traces[0]


def test_lives_name_bugs_that_are_planted() -> None:
    assert FINDS.keys() == {*bugs_for("several machines")}


@pytest.mark.parametrize("bug", bugs_for("several machines"))
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        if live(FINDS[bug])[0]:
            return
        assert IS_LONG, "the lives have changed: see FINDS"
        found = next((seed for seed in range(MOST_LIVES) if live(seed)[0]), None)
    assert found is None, f"now life {found} finds it"
    raise AssertionError(f"no life of {MOST_LIVES} finds it")


def test_lives_have_in_them_what_they_are_about() -> None:
    counts = sum((live(seed)[1] for seed in range(5)), start=live(5)[1])
    wanted = ("acknowledged", "takeovers", "adopt", "continue", "slots", "roots", "jumps", "compactions")
    assert not [it for it in wanted if not counts[it]]
