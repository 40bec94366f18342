"""Short forms of the runs of `python -m tests.faults`. A failure names the command that repeats it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.__main__ import simulate
from tests.faults.plans import ANYTHING, HISTORY, POWER_LOSS, Plan, command_for
from tests.faults.simulation import Simulation, run
from tests.planted.planting import bugs_for, planted

SEEDS = 300
HISTORY_SEEDS = 120
POWER_LOSS_SEEDS = 80
SEEDS_FOR_A_BUG = 100

# Lives that found something in longer runs: a topic's name that nobody had synced, a segment that went before the next one
# had a name to last, a folder that was made twice, positions of a log that had gone, a journal that a failed sync had lost, a
# side file that was made from what was not synced.
FOUND = (
    *(593, 843, 1787, 2035, 2065, 2509, 2716, 3176, 3203, 3639, 3681, 3878, 4211, 4679),
    *(5507, 6770, 7132, 7793, 8342, 9025, 9214, 20050, 600076, 601508, 603108, 606412, 606413),
    *(609948, 610853),
)
FOUND_POWER_LOSS = (
    104,
    1226,
    2300460,
)  # about what is read again after damage in the journal; a deletion that was lost

# The same, since messages can be buried.
FOUND_BURYING = (163, 261, 266, 277)  # a job that nobody went on with after the channel was emptied
FOUND_BURYING_IN_HISTORY = (
    *(63, 162, 586, 748),  # a job that took what was buried after it began; two things that the ledger did not know
    *(174, 241, 786),  # kicked messages that a restored backlog dropped
)


# The same, since messages can be moved.
FOUND_MOVING = (1030, 1864)  # a kicked message was moved, and then the kick was taken back


def check(plan: Plan, seeds: range, name: str) -> None:
    for seed in seeds:
        outcome = run(seed, plan)
        assert not outcome.error, f"{outcome.error}\n{command_for(name, seed, plan)}\n" + "\n".join(outcome.trace[-40:])


@pytest.mark.parametrize("part", range(5))
def test_random_lives(part: int) -> None:
    size = SEEDS // 5
    check(ANYTHING, range(part * size, (part + 1) * size), "simulate")


@pytest.mark.parametrize("seed", FOUND)
def test_life_that_found_something(seed: int) -> None:
    check(replace(ANYTHING, buries=False, limits=False, cancels=False), range(seed, seed + 1), "simulate")


@pytest.mark.parametrize("seed", FOUND_BURYING)
def test_life_with_buried_messages_that_found_something(seed: int) -> None:
    check(replace(ANYTHING, limits=False, cancels=False), range(seed, seed + 1), "simulate")


@pytest.mark.parametrize("seed", FOUND_BURYING_IN_HISTORY)
def test_life_with_buried_messages_and_a_past_that_found_something(seed: int) -> None:
    check(replace(HISTORY, limits=False, cancels=False), range(seed, seed + 1), "history")


@pytest.mark.parametrize("seed", FOUND_MOVING)
def test_life_with_moved_messages_that_found_something(seed: int) -> None:
    check(ANYTHING, range(seed, seed + 1), "simulate")


@pytest.mark.parametrize("part", range(2))
def test_lives_that_go_back_in_history(part: int) -> None:
    size = HISTORY_SEEDS // 2
    check(HISTORY, range(part * size, (part + 1) * size), "history")


def test_nothing_that_was_synced_is_lost_with_the_power() -> None:
    check(POWER_LOSS, range(POWER_LOSS_SEEDS), "power-loss")


@pytest.mark.parametrize("seed", FOUND_POWER_LOSS)
def test_power_loss_that_found_something(seed: int) -> None:
    check(replace(POWER_LOSS, buries=False, limits=False, cancels=False), range(seed, seed + 1), "power-loss")


def test_without_fdatasync_the_same_check_fails() -> None:
    without = Plan(ack=POWER_LOSS.ack, crashes=POWER_LOSS.crashes, fails=False, syncs_files=False)
    failed = [seed for seed in range(20) if run(seed, without).error]
    assert len(failed) > 10


def test_a_life_that_hangs_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def hang(self: Simulation) -> None:
        while True:
            pass

    monkeypatch.setattr(Simulation, "run", hang)
    monkeypatch.setattr("tests.faults.__main__.LONGEST_LIFE", 0.1)
    assert simulate("simulate", ANYTHING, range(1), verbose=False) == 1
    assert "seed 0: still under way after 0.1 s" in capsys.readouterr().out


def test_seed_replays_the_same_life() -> None:
    first, again = run(17), run(17)
    assert first.trace == again.trace
    assert first.trace


@pytest.mark.parametrize("bug", bugs_for("simulation"))
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        lives = ((seed, plan) for seed in range(SEEDS_FOR_A_BUG) for plan in (HISTORY, ANYTHING, POWER_LOSS))
        assert any(run(seed, plan).error for seed, plan in lives)
