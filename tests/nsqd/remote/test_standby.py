"""When a standby takes over: the table of nsqd/remote/standby.py, line by line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqcommon.remote.names import Run
from nsqd.remote.standby import OwnerSays, Standby, Verdict

AFTER = 10.0
WELL, CUT_OFF, NOTHING, GONE = OwnerSays.WELL, OwnerSays.CUT_OFF, OwnerSays.NOTHING, OwnerSays.GONE
OWNED, IN_DOUBT, TAKE_OVER = Verdict.OWNED, Verdict.IN_DOUBT, Verdict.TAKE_OVER
OUT_OF_REACH, STORE_IS_AWAY = Verdict.OUT_OF_REACH, Verdict.STORE_IS_AWAY
AWAY = -1  # instead of the number of the next slot: the store doesn't answer

Look = tuple[float, OwnerSays, int, Verdict]  # when, what the owner says, where the chain ends, and what follows


def look(standby: Standby, now: float, says: OwnerSays, slot: int, *, is_ended: bool = False) -> Verdict:
    standby.owner_said(says, now)
    if slot == AWAY:
        standby.chain_unread(now)
    else:
        standby.chain_read((Run(1, "a"), slot), now, is_ended=is_ended)
    return standby.decide(now)


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([(0, WELL, 0, OWNED), (60, WELL, 0, OWNED)], id="an idle owner that answers"),
        pytest.param(
            [(0, WELL, 5, OWNED), (1, NOTHING, 9, IN_DOUBT), (10.9, NOTHING, 9, IN_DOUBT), (11, NOTHING, 9, TAKE_OVER)],
            id="gone, after slots that it may have written before",
        ),
        pytest.param(
            [(0, NOTHING, 3, IN_DOUBT), (9, GONE, 3, IN_DOUBT), (10, GONE, 3, TAKE_OVER)],
            id="gone before the standby has begun",
        ),
        pytest.param(
            [
                *((0, NOTHING, 3, IN_DOUBT), (9, NOTHING, 4, OUT_OF_REACH), (18, NOTHING, 5, OUT_OF_REACH)),
                *((27.9, NOTHING, 5, OUT_OF_REACH), (28, NOTHING, 5, TAKE_OVER)),
            ],
            id="its chain moves, and then no more",
        ),
        pytest.param(
            [(0, NOTHING, 3, IN_DOUBT), (9, WELL, 3, OWNED), (10, NOTHING, 3, IN_DOUBT), (19, NOTHING, 3, IN_DOUBT)],
            id="it comes back for a moment",
        ),
        pytest.param(
            [(0, WELL, 3, OWNED), (1, CUT_OFF, 4, IN_DOUBT), (2, CUT_OFF, 5, OUT_OF_REACH), (3, CUT_OFF, 5, TAKE_OVER)],
            id="cut off from the store, by its own account",
        ),
        pytest.param(
            [(0, CUT_OFF, 3, IN_DOUBT), (5, CUT_OFF, 4, OUT_OF_REACH), (6, WELL, 4, OWNED)],
            id="cut off for a while",
        ),
        pytest.param(
            [
                *((0, NOTHING, 3, IN_DOUBT), (5, NOTHING, AWAY, IN_DOUBT), (7, NOTHING, AWAY, STORE_IS_AWAY)),
                *((9, NOTHING, 3, IN_DOUBT), (10, NOTHING, 3, TAKE_OVER)),
            ],
            id="a store that fails now and then",
        ),
        pytest.param(
            [
                *((0, NOTHING, 3, IN_DOUBT), (1, NOTHING, AWAY, IN_DOUBT), (20, NOTHING, 3, IN_DOUBT)),
                *((25, NOTHING, 3, IN_DOUBT), (29.9, NOTHING, 3, IN_DOUBT), (30, NOTHING, 3, TAKE_OVER)),
            ],
            id="the time in which it can't ask doesn't count",
        ),
        pytest.param(
            [(0, WELL, AWAY, OWNED), (9, NOTHING, AWAY, STORE_IS_AWAY)], id="without the store from the start"
        ),
    ],
)
def test_decisions(looks: Sequence[Look]) -> None:
    standby = Standby(AFTER)
    assert [look(standby, now, says, slot) for now, says, slot, _ in looks] == [verdict for *_, verdict in looks]


def test_the_wait_for_an_answer_of_the_store_does_not_count_as_stillness() -> None:
    """The chain may have moved until it was read."""
    standby = Standby(AFTER)
    standby.owner_said(NOTHING, 0)
    standby.chain_read((Run(1, "a"), 3), 8, is_ended=False)
    for now, verdict in ((9, IN_DOUBT), (17.9, IN_DOUBT), (18, TAKE_OVER)):
        assert look(standby, now, NOTHING, 3) is verdict


def test_an_old_answer_of_the_owner_does_not_count() -> None:
    """The store was away meanwhile, perhaps for the owner too."""
    standby = Standby(AFTER)
    look(standby, 0, NOTHING, 3)
    standby.owner_said(NOTHING, 5)
    standby.chain_unread(6)
    standby.chain_read((Run(1, "a"), 3), 60, is_ended=False)
    assert standby.decide(60) is IN_DOUBT


@pytest.mark.parametrize(
    ("says", "is_ended", "verdict"),
    [(GONE, True, TAKE_OVER), (GONE, False, IN_DOUBT), (NOTHING, True, IN_DOUBT), (CUT_OFF, True, IN_DOUBT)],
)
def test_a_clean_stop_leaves_nothing_to_wait_for(says: OwnerSays, is_ended: bool, verdict: Verdict) -> None:
    assert look(Standby(AFTER), 0, says, 0, is_ended=is_ended) is verdict


def test_it_asks_for_the_chain_while_it_is_in_doubt() -> None:
    standby = Standby(AFTER)
    assert not standby.is_in_doubt
    standby.owner_said(GONE, 0)
    assert standby.is_in_doubt
