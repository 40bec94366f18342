from __future__ import annotations

from collections.abc import Sequence

import pytest
from google_crc32c import value as crc32c

from nsqcommon.remote.names import Run, slot_name
from nsqcommon.remote.root import FileEntry, FilePart, Root
from nsqd.remote.catalog import Catalog, CatalogFile, Piece
from nsqd.remote.local_mark import Decision
from nsqd.remote.reconciliation import Fate, first_difference, plan

RUN = Run(7, "a" * 16)


def new_catalog() -> Catalog:
    """Return a catalog in which `old` is in the root, `appended` has a slot's bytes as well, and `gone` was removed."""
    fold = FilePart("fold/7/0001", 0, 10, 0)
    entries = dict.fromkeys(("old", "appended"), FileEntry(10, (fold,)))
    catalog = Catalog(Root("node", RUN, entries))
    catalog.files["appended"].write(10, FilePart(slot_name(RUN, 0), 0, 5, 0))
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
def test_after_a_kill_what_is_shorter_or_missing_is_fetched_and_the_rest_stays(local: dict[str, int]) -> None:
    fates = plan(Decision.CONTINUE, new_catalog(), local, same_boot=True)
    assert fates == {"old": Fate.FETCH, "appended": Fate.KEEP}


def test_files_that_were_replaced_are_compared_if_this_may_be_an_older_copy() -> None:
    catalog = files_of("cut", since=["node.json", "log"])
    local = {"cut": 10, "node.json": 10, "log": 10}
    assert set(plan(Decision.CONTINUE, catalog, local, same_boot=True).values()) == {Fate.KEEP}
    fates = plan(Decision.CONTINUE, catalog, local | {"cut": 9}, same_boot=True)
    assert fates == {"cut": Fate.FETCH, "node.json": Fate.COMPARE, "log": Fate.KEEP}


def test_a_file_that_was_cut_and_is_finished_is_no_older_copy() -> None:
    catalog = files_of(since=[f"{TOPIC}/000.log"])
    local = {f"{TOPIC}/000.log": 9, f"{TOPIC}/100.log": 5}
    assert set(plan(Decision.CONTINUE, catalog, local, same_boot=True).values()) == {Fate.KEEP}
    catalog = files_of(since=[f"{TOPIC}/000.log", f"{TOPIC}/100.log"])
    fates = plan(Decision.CONTINUE, catalog, local, same_boot=True)
    assert set(fates.values()) == {Fate.FETCH}, "the store has heard of the next one, and of no cut before"


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_file_that_was_not_complete_is_not_missing(same_boot: bool) -> None:
    catalog = files_of("journal.000001", since=[f"{TOPIC}/carried.000001.tmp"])
    fates = plan(Decision.CONTINUE, catalog, {"journal.000001": 10}, same_boot=same_boot)
    assert fates == {"journal.000001": Fate.KEEP}


def test_a_file_that_was_removed_since_the_root_does_not_come_back_from_an_older_copy() -> None:
    local = {"old": 10, "appended": 15, "gone": 8, "journal.000001": 9}
    catalog = new_catalog()
    catalog.files["journal.000001"] = CatalogFile(size=10)
    assert plan(Decision.CONTINUE, catalog, local, same_boot=True)["gone"] is Fate.ASIDE


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_was_removed_and_is_here_again_stays_if_the_journal_here_is_as_new_as_in_the_store(
    same_boot: bool,
) -> None:
    local = {"old": 10, "appended": 15, "gone": 8, "journal.000001": 10}
    catalog = new_catalog()
    catalog.files["journal.000001"] = CatalogFile(size=10)
    assert plan(Decision.CONTINUE, catalog, local, same_boot=same_boot)["gone"] is Fate.KEEP


@pytest.mark.parametrize(
    ("local", "expected"),
    [(b"onetwo", 6), (b"onetwothree", 6), (b"onetwp", 3), (b"onet", 3), (b"", 0), (b"One", 0)],
)
def test_what_has_to_be_shipped_is_found_by_content(local: bytes, expected: int) -> None:
    pieces = [Piece(FilePart("x", 0, 3, crc32c(it)), 0, 3) for it in (b"one", b"two")]
    assert first_difference(pieces, local) == expected
    cut = [pieces[0], Piece(FilePart("x", 0, 6, crc32c(b"twotwo")), 0, 3)]
    assert first_difference(cut, local) == min(expected, 3), "a part of a part can't be proved"


FOLD = FilePart("fold/7/0001", 0, 10, 0)
TOPIC = "topics/t.a"


def files_of(*in_root: str, since: Sequence[str] = ()) -> Catalog:
    catalog = Catalog(Root("node", RUN, dict.fromkeys(in_root, FileEntry(10, (FOLD,)))))
    for path in since:
        catalog.files[path] = CatalogFile()
        catalog.files[path].write(0, FilePart(slot_name(RUN, 0), 0, 10, 0))
    return catalog


def fetched(catalog: Catalog, *local: str, same_boot: bool = True, journal: int = 10) -> set[str]:
    sizes = dict.fromkeys(local, 10) | {it: journal for it in local if it.startswith("journal")}
    fates = plan(Decision.CONTINUE, catalog, sizes, same_boot=same_boot)
    return {path for path, fate in fates.items() if fate is Fate.FETCH}


@pytest.mark.parametrize("same_boot", [True, False])
def test_segments_that_were_removed_while_the_store_was_away_stay_removed(same_boot: bool) -> None:
    catalog = files_of("journal.000001", f"{TOPIC}/000.log", f"{TOPIC}/100.log", f"{TOPIC}/200.log")
    local = ("journal.000003", f"{TOPIC}/200.log", f"{TOPIC}/300.log")
    assert fetched(catalog, *local, same_boot=same_boot) == set()


def test_a_segment_that_is_missing_between_others_is_fetched() -> None:
    catalog = files_of(f"{TOPIC}/000.log", f"{TOPIC}/100.log", f"{TOPIC}/200.log")
    assert fetched(catalog, f"{TOPIC}/000.log", f"{TOPIC}/200.log") == {f"{TOPIC}/100.log"}
    assert fetched(catalog, f"{TOPIC}/000.log", f"{TOPIC}/100.log") == {f"{TOPIC}/200.log"}


def test_a_power_cut_may_have_taken_the_name_of_a_segment_that_is_newer_than_the_root() -> None:
    catalog = files_of(since=[f"{TOPIC}/100.log", f"{TOPIC}/200.log"])
    assert fetched(catalog, f"{TOPIC}/200.log", same_boot=False) == {f"{TOPIC}/100.log"}
    assert fetched(catalog, f"{TOPIC}/200.log", same_boot=True) == set()


def test_a_topic_that_was_deleted_while_the_store_was_away_stays_deleted() -> None:
    paths = (f"{TOPIC}/log.json", f"{TOPIC}/000.log")
    assert fetched(files_of("journal.000001", *paths), "journal.000001") == set()
    assert fetched(files_of("journal.000001", *paths), "journal.000001", same_boot=False) == set()


def test_a_topic_that_is_newer_than_this_copy_of_the_disk_is_fetched() -> None:
    paths = (f"{TOPIC}/log.json", f"{TOPIC}/000.log")
    catalog = files_of("journal.000001", since=paths)
    assert fetched(catalog, "journal.000001", journal=9) >= set(paths)
    assert fetched(catalog, "journal.000001", same_boot=False) == set(paths)


def test_removals_do_not_make_a_data_path_incomplete() -> None:
    catalog = files_of(f"{TOPIC}/000.log", f"{TOPIC}/100.log", since=[f"{TOPIC}/200.log"])
    local = {f"{TOPIC}/100.log": 10, f"{TOPIC}/200.log": 30}
    fates = plan(Decision.CONTINUE, catalog, local, same_boot=True)
    assert fates == {f"{TOPIC}/100.log": Fate.KEEP, f"{TOPIC}/200.log": Fate.KEEP}


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("size", [3, 10, 30])
def test_all_files_of_a_topic_that_was_created_again_count(same_boot: bool, size: int) -> None:
    paths = f"{TOPIC}/log.json", f"{TOPIC}/000.log"
    catalog = files_of("journal.000001", since=(*paths, f"{TOPIC}/100.log"))
    local = {"journal.000001": 10, paths[0]: 10, paths[1]: size}
    fates = plan(Decision.CONTINUE, catalog, local, same_boot=same_boot, other_logs={TOPIC})
    assert fates == dict.fromkeys(("journal.000001", *paths), Fate.KEEP)


def test_an_older_copy_of_the_disk_has_the_log_before_the_topic_was_created_again() -> None:
    catalog = files_of("journal.000001", f"{TOPIC}/log.json", f"{TOPIC}/000.log")
    local = {"journal.000001": 9, f"{TOPIC}/log.json": 10, f"{TOPIC}/000.log": 10, f"{TOPIC}/100.log": 10}
    fates = plan(Decision.CONTINUE, catalog, local, same_boot=True, other_logs={TOPIC})
    assert fates == dict.fromkeys(catalog.files, Fate.FETCH) | {f"{TOPIC}/100.log": Fate.ASIDE}


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_log_that_the_store_had_before_is_older_although_the_journal_here_is_whole(same_boot: bool) -> None:
    catalog = files_of("journal.000001", since=[f"{TOPIC}/log.json", f"{TOPIC}/000.log"])
    local = {"journal.000001": 10, f"{TOPIC}/log.json": 10, f"{TOPIC}/000.log": 30, f"{TOPIC}/100.log": 10}
    logs = {TOPIC, "topics/t.b"}
    fates = plan(Decision.CONTINUE, catalog, local, same_boot=same_boot, other_logs=logs, older_logs={TOPIC})
    fetched = dict.fromkeys((f"{TOPIC}/log.json", f"{TOPIC}/000.log"), Fate.FETCH)
    assert fates == {"journal.000001": Fate.KEEP, f"{TOPIC}/100.log": Fate.ASIDE} | fetched


def test_a_file_that_was_cut_and_written_again_is_no_older_copy() -> None:
    catalog = files_of(since=["old", "cut"])
    local = {"old": 30, "cut": 9}
    assert set(plan(Decision.CONTINUE, catalog, local, same_boot=True, rewritten=["cut"]).values()) == {Fate.KEEP}
    assert plan(Decision.CONTINUE, catalog, local, same_boot=True) == {"old": Fate.KEEP, "cut": Fate.FETCH}


def test_a_journal_that_was_cut_and_written_again_is_whole() -> None:
    catalog = files_of(since=["journal.000001", "again"])
    catalog.removed.add("again")
    del catalog.files["again"]
    local = {"journal.000001": 9, "again": 10}
    assert plan(Decision.CONTINUE, catalog, local, same_boot=True)["again"] is Fate.ASIDE
    assert plan(Decision.CONTINUE, catalog, local, same_boot=True, rewritten=["journal.000001"])["again"] is Fate.KEEP
