"""Short forms of the runs of `python -m tests.simulation`. A failure names the command that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from tests.planted.planting import bugs_for, planted
from tests.simulation import disk
from tests.simulation.__main__ import simulate
from tests.simulation.plans import ANYTHING, HISTORY, POWER_LOSS, Plan, command_for
from tests.simulation.simulation import Simulation, run
from tests.support.examples import examples
from tests.support.lengths import IS_LONG, sized
from tests.support.quick import unless_quick
from tests.support.slices import slices_of

PLANS: Final = {"simulate": ANYTHING, "history": HISTORY, "power-loss": POWER_LOSS}
SEEDS: Final[dict[str, Sequence[int]]] = sized(
    short=unless_quick(
        {"simulate": range(25), "history": range(12), "power-loss": range(8)},
        quick={"simulate": range(5), "history": range(3), "power-loss": range(2)},
    ),
    long={"simulate": range(300), "history": range(120), "power-loss": range(80)},
)
# Lives that find planted bugs, and which. They come first, and with a bug the one that finds it: a life takes 0.1 s, and
# without this each bug would need five of them. A bug that another life finds now only takes longer. When lives have
# changed, and a bug is not found any more, run `python -m tests.simulation simulate` with the bug, and put the seed here.
FINDS: Final[dict[tuple[str, int], tuple[str, ...]]] = {
    ("history", 0): (
        "a kick goes to all channels of the topic",
        "a buried message does not pin the log",
        "a crash forgets buried messages",
        "a cursor that goes back does not pass over buried messages",
        "a kick is not told to the journal",
        "a bound that refuses is off by one",
        "the time to live is judged by another clock",
        "what was taken back stays in the heap",
        "OK comes before the write",
        "OK comes before the sync, with --ack=synced",
        "the first channel of a topic misses what waited for it",
        "a crash forgets a channel",
    ),
    ("history", 14): (
        "drop-oldest drops one too many",
        "drop-oldest drops what is to be tried again",
        "drop-oldest drops what was deferred before",
        "a bound buries what is to be tried again",
        "what overflows is buried without the journal",
        "what is dropped is not counted",
        "what waits for its time is taken back without the journal",
        "deferred messages come early",
        "a new segment's folder is not synced",
    ),
    ("history", 4): ("a redelivery is not told to the journal",),
    ("history", 100): (
        "messages expire after half of their time",
        "a bound that drops is off by one",
        "the breaker never trips",
        "a failed sync counts as a sync",
        "the breaker trips at each burial",
        "a crash forgets that something was taken back which no channel had got yet",
        "a crash forgets that it was moved",
    ),
    ("simulate", 0): (
        "the message is dropped instead of buried at the limit",
        "the limit of attempts is off by one",
        "what was taken back is handed over",
        "what times out does not come again",
    ),
    ("simulate", 13): ("what overflows is lost instead of buried",),
    ("simulate", 6): ("the journal does not know what was delivered before a crash",),
    ("simulate", 21): (
        "the neighbour of what is taken back goes as well",
        "the journal hears of a cancel later",
    ),
    ("simulate", 22): ("a discard is told to the journal later",),
    ("simulate", 32): ("a crash forgets a delay that a consumer has asked for",),
    ("history", 197): ("drop-oldest drops what is in flight",),
    ("power-loss", 41): ("the name that a power cut has left of a segment says that there were messages",),
}

# In the short form, lives in which a bound needs several slices to drop what is too much, and some others.
SMALL_SLICES: Final[dict[str, Sequence[int]]] = sized(
    short=unless_quick(
        {"simulate": (32, 38, 0, 1, 2), "history": (19, 46, 0), "power-loss": (6, 14, 0)},
        quick={"simulate": (32,), "history": (19,), "power-loss": (6,)},
    ),
    long={"simulate": range(300), "history": range(120), "power-loss": range(80)},
)

# Lives on a disk whose pages have 128 bytes.
SMALL_PAGES: Final[dict[str, Sequence[int]]] = sized(
    short={"power-loss": (497,)},
    long={"simulate": range(300), "history": range(300, 600), "power-loss": (*range(300), 497)},
)

# Lives that found something in longer runs: a topic's name that nobody had synced, a segment that went before the next one
# had a name to last, a folder that was made twice, positions of a log that had gone, a journal that a failed sync had lost, a
# compacted file that was made from what was not synced.
PLAIN: Final = replace(ANYTHING, buries=False, limits=False, cancels=False)
FOUND: Final = (
    (
        "simulate",
        PLAIN,
        (
            *(593, 843, 1787, 2035, 2065, 2509, 2716, 3176, 3203, 3639, 3681, 3878, 4211, 4679),
            *(5507, 6770, 7132, 7793, 8342, 9025, 9214, 20050, 600076, 601508, 603108, 606412, 606413),
            *(609948, 610853),
        ),
    ),
    # What is read again after damage in the journal; a deletion that was lost.
    ("power-loss", replace(POWER_LOSS, buries=False, limits=False, cancels=False), (104, 1226, 2300460)),
    # Since messages can be buried: a job that nobody went on with after the channel was emptied.
    ("simulate", replace(ANYTHING, limits=False, cancels=False), (163, 261, 266, 277)),
    # A job that took what was buried after it began; two things that the ledger did not know; kicked messages that a
    # restored backlog dropped.
    ("history", replace(HISTORY, limits=False, cancels=False), (63, 162, 586, 748, 174, 241, 786)),
    # Since messages can be moved: a kicked message was moved, and then the kick was taken back.
    ("simulate", ANYTHING, (1030, 1864)),
)


def lives() -> list[tuple[str, int]]:
    """Return what the tests here live, as kinds and seeds."""
    return [*FINDS, *((kind, seed) for kind, seeds in SEEDS.items() for seed in seeds if (kind, seed) not in FINDS)]


def check(kind: str, seed: int, plan: Plan) -> None:
    outcome = run(seed, plan)
    assert not outcome.error, f"{outcome.error}\n{command_for(kind, seed, plan)}\n" + "\n".join(outcome.trace[-40:])


@pytest.mark.parametrize("kind", PLANS)
def test_random_lives(kind: str) -> None:
    """In the lives of `power-loss` nothing that was synced is lost; in those of `history` channels go back."""
    seeds = [seed for other, seed in lives() if other == kind]
    for seed in seeds[: examples(len(seeds))]:
        check(kind, seed, PLANS[kind])


@pytest.mark.parametrize("size", [1, 2])
def test_random_lives_in_which_slices_are_as_small_as_can_be(size: int) -> None:
    with slices_of(size):
        for kind, seeds in SMALL_SLICES.items():
            for seed in seeds:
                check(kind, seed, PLANS[kind])


@pytest.mark.parametrize(("kind", "plan", "seeds"), FOUND)
def test_lives_that_found_something(kind: str, plan: Plan, seeds: Sequence[int]) -> None:
    """The short form has one of each kind: the code has changed since, and the lives with it."""
    for seed in seeds if IS_LONG else seeds[:1]:
        check(kind, seed, plan)


def test_what_an_operator_has_emptied_stays_so_when_the_journal_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal of a life is shorter than a page; with small ones, a power cut loses some in the middle of it."""
    monkeypatch.setattr(disk, "PAGE", 128)
    for seed in sized(short=(233,), long=range(300)):
        check("history", seed, HISTORY)
    with planted("a command is answered before its checkpoint is on disk"):
        assert "was emptied, and is back" in run(233, HISTORY).error


def test_random_lives_with_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses the middle of files. In the life of the short form, a bound drops a message that was lost so."""
    monkeypatch.setattr(disk, "PAGE", 128)
    for kind, seeds in SMALL_PAGES.items():
        for seed in seeds:
            check(kind, seed, PLANS[kind])


def test_without_fdatasync_the_same_check_fails() -> None:
    without = Plan(ack=POWER_LOSS.ack, crashes=POWER_LOSS.crashes, fails=False, syncs_files=False)
    failed = [seed for seed in range(20) if run(seed, without).error]
    assert len(failed) > 10


def test_a_life_that_hangs_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def hang(self: Simulation) -> None:
        while True:
            pass

    monkeypatch.setattr(Simulation, "run", hang)
    monkeypatch.setattr("tests.simulation.__main__.LONGEST_LIFE", 0.1)
    assert simulate("simulate", ANYTHING, range(1), verbose=False) == 1
    assert "seed 0: still under way after 0.1 s" in capsys.readouterr().out


def test_seed_replays_the_same_life() -> None:
    first, again = run(17), run(17)
    assert first.trace == again.trace
    assert first.trace


def test_lives_name_bugs_that_are_planted() -> None:
    assert {bug for bugs in FINDS.values() for bug in bugs} <= {*bugs_for("simulation")}


@pytest.mark.parametrize("bug", bugs_for("simulation"))
def test_a_planted_bug_is_found(bug: str) -> None:
    found_by_first = sorted(lives(), key=lambda life: bug not in FINDS.get(life, ()))
    with planted(bug):
        assert any(run(seed, PLANS[kind]).error for kind, seed in found_by_first)
