"""A script of edits is cut at calls of the disk: exactly one of a message and its copy is there, in one channel."""

from __future__ import annotations

import pytest

from tests.planted.planting import bugs_for, planted
from tests.simulation import editing
from tests.simulation.disk import Call, Crash
from tests.simulation.editing import Chain
from tests.simulation.promise import Violation
from tests.simulation.steps import ACKS
from tests.support.lengths import IS_LONG, new_chance
from tests.support.quick import unless_quick

SHORT = unless_quick(60, quick=12)  # cuts of each script
# The calls at which cuts find a planted bug. They come first; a bug that another one finds now only takes longer.
FINDS = {
    "an edit leaves what it replaces": 141,
    "a crash brings back what an edit has replaced": 83,
    "an edit that a crash has interrupted loses the message": 82,
    "a copy runs in each channel that comes to it": 152,
}


@pytest.mark.parametrize("ack", ACKS)
def test_exactly_one_of_a_message_and_its_copy_is_left(ack: str) -> None:
    """The long form cuts the script at each call in each way."""
    cuts = editing.cuts(ack)
    for call, crash, torn in cuts if IS_LONG else new_chance().sample(cuts, SHORT):
        editing.cut(ack, call.number, crash, torn)


def test_the_script_without_a_cut_keeps_its_promises() -> None:
    editing.cut("written", -1, Crash.KILL, 0.0)


@pytest.mark.parametrize("bug", bugs_for("edits cut"))
def test_a_planted_bug_is_found(bug: str) -> None:
    cuts = [cut for cut in editing.cuts("written") if cut[0].number > 40]  # by then, all is prepared
    cuts.sort(key=lambda cut: cut[0].number != FINDS.get(bug))
    with planted(bug), pytest.raises((Violation, AssertionError)):
        _cut_until_it_shows(cuts)


def _cut_until_it_shows(cuts: list[tuple[Call, Crash, float]]) -> None:
    editing.cut("written", -1, Crash.KILL, 0.0)
    for call, crash, torn in cuts:
        editing.cut("written", call.number, crash, torn)


# Does the check notice?


@pytest.mark.parametrize(
    ("chain", "got"),
    [
        (Chain(), []),
        (Chain(begun=1), [0, 1]),
        (Chain(begun=1, answered=1), [0]),
        (Chain(begun=1, answered=1), []),
        (Chain(begun=1, answered=1, is_finished=True), []),
        (Chain(begun=1, is_finished=True), [0]),
        (Chain(begun=2, answered=1, is_finished=True), [1, 2]),
    ],
)
def test_what_is_wrong_is_noticed(chain: Chain, got: list[int]) -> None:
    with pytest.raises(Violation):
        chain.check(0, got)
