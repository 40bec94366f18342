from __future__ import annotations

import pytest
from google_crc32c import value as crc32c

from nsqcommon.remote.names import Run, slot_name
from nsqcommon.remote.root import FileEntry, Part, Root
from nsqd.remote.catalog import Catalog, Piece
from nsqd.remote.local_mark import Decision
from nsqd.remote.reconciliation import Fate, first_difference, plan

RUN = Run(7, "a" * 16)


def new_catalog() -> Catalog:
    """Return a catalog in which `old` is in the root, `appended` has a slot's bytes as well, and `gone` was removed."""
    fold = Part("fold/7/0001", 0, 10, 0)
    entries = dict.fromkeys(("old", "appended"), FileEntry(10, (fold,)))
    catalog = Catalog(Root("node", RUN, entries))
    catalog.files["appended"].write(10, Part(slot_name(RUN, 0), 0, 5, 0))
    catalog.removed.add("gone")
    return catalog


@pytest.mark.parametrize("same_boot", [True, False])
def test_an_adopted_data_path_is_what_the_store_has(same_boot: bool) -> None:
    fates = plan(Decision.ADOPT, new_catalog(), {"old": 10, "mine": 3}, same_boot=same_boot)
    assert fates == {"old": Fate.FETCH, "appended": Fate.FETCH, "mine": Fate.ASIDE}


def test_after_a_kill_everything_stays_also_what_was_never_shipped() -> None:
    local = {"old": 10, "appended": 22, "mine": 3}
    assert set(plan(Decision.CONTINUE, new_catalog(), local, same_boot=True).values()) == {Fate.KEEP}


def test_after_a_power_cut_what_slots_have_is_compared() -> None:
    local = {"old": 10, "appended": 22, "mine": 3}
    fates = plan(Decision.CONTINUE, new_catalog(), local, same_boot=False)
    assert fates == {"old": Fate.KEEP, "appended": Fate.COMPARE, "mine": Fate.KEEP}


@pytest.mark.parametrize("local", [{"old": 9, "appended": 15}, {"appended": 15}])
def test_what_is_shorter_or_missing_is_fetched_and_then_nothing_is_believed_unseen(local: dict[str, int]) -> None:
    fates = plan(Decision.CONTINUE, new_catalog(), local, same_boot=True)
    assert fates == {"old": Fate.FETCH, "appended": Fate.COMPARE}


def test_a_file_that_was_removed_since_the_root_does_not_come_back_from_an_older_copy() -> None:
    local = {"old": 10, "appended": 15, "gone": 8}
    assert plan(Decision.CONTINUE, new_catalog(), local, same_boot=True)["gone"] is Fate.ASIDE


@pytest.mark.parametrize(
    ("local", "expected"),
    [(b"onetwo", 6), (b"onetwothree", 6), (b"onetwp", 3), (b"onet", 3), (b"", 0), (b"One", 0)],
)
def test_what_has_to_be_shipped_is_found_by_content(local: bytes, expected: int) -> None:
    pieces = [Piece(Part("x", 0, 3, crc32c(it)), 0, 3) for it in (b"one", b"two")]
    assert first_difference(pieces, local) == expected
    cut = [pieces[0], Piece(Part("x", 0, 6, crc32c(b"twotwo")), 0, 3)]
    assert first_difference(cut, local) == min(expected, 3), "a part of a part can't be proved"
