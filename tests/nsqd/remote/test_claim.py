"""How a name gets its next owner, and what may not be taken for the end of a chain."""

from __future__ import annotations

from itertools import groupby

import pytest

from nsqcommon.remote.marks import encode_hint
from nsqcommon.remote.names import Run, root_name, slot_name
from nsqcommon.remote.operations import Replace
from nsqcommon.remote.root import Root, encode_root
from nsqcommon.remote.slot import SlotKind
from nsqd.remote.claim import BARRIER, Claim, RunRead
from nsqd.remote.local_mark import Decision, LocalMark
from nsqd.remote.object_store import Created
from tests.nsqd.remote.shelf import FIRST, Owner, Shelf, writer


def put(owner: Owner, path: str, content: bytes = b"x") -> None:
    owner.append(Replace(path, len(content)), body=content)


def test_the_first_start_creates_the_node_and_its_first_run() -> None:
    shelf = Shelf()
    claimed = shelf.claimed("a")
    assert (claimed.node, claimed.run) == ("node", Run(1, writer("a")))
    assert claimed.path == (RunRead(FIRST, 0, is_fenced=True),)
    assert claimed.decision is Decision.CONTINUE, "a data path that exists already is the truth"


def test_the_data_path_is_marked_before_the_node_is_created() -> None:
    shelf = Shelf()
    shelf.claimed("a")
    done = [it for it in shelf.asked if not it.startswith("get")]
    assert done == ["save", "create node", f"create {slot_name(FIRST, 0)}"]


def test_of_two_first_starts_one_creates_the_node_and_the_other_adopts_it() -> None:
    shelf = Shelf()
    late = shelf.new_claim("b")
    request = shelf.go_on(late, until="create node")
    shelf.claimed("a")
    assert request is not None
    shelf.answer(late, request)
    shelf.go_on(late)
    assert late.claimed is not None
    assert late.claimed.run == Run(2, writer("b"))
    assert late.claimed.decision is Decision.ADOPT


def test_the_next_owner_has_all_slots_and_fences_the_first_that_does_not_exist() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    for number in range(7):
        put(owner, f"file-{number}")
    claimed = shelf.claimed("b")
    assert set(claimed.catalog.files) == {f"file-{number}" for number in range(7)}
    fence = shelf.slot(owner.chain.run, 7)
    assert (fence.kind, fence.writer, fence.next) == (SlotKind.FENCE, writer("b"), claimed.run)
    put(owner, "late")
    assert owner.chain.fenced == "the name was taken over by process 1 on machine-b"


def test_an_end_is_followed_into_the_next_run() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "before")
    ended = owner.chain.run
    owner.chain.end_run(0, 1)
    owner.send()
    put(owner, "after")
    claimed = shelf.claimed("b")
    assert set(claimed.catalog.files) == {"before", "after"}
    assert [(it.run.number, it.is_fenced) for it in claimed.path] == [(0, True), (ended.number, False), (2, True)]


def test_a_fence_that_comes_first_is_read_and_followed() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    late = shelf.new_claim("c")
    request = shelf.go_on(late, until="create wal")
    between = Owner(shelf, shelf.claimed("b"))
    put(between, "between")
    assert request is not None
    shelf.answer(late, request)
    shelf.go_on(late)
    assert late.claimed is not None
    assert "between" in late.claimed.catalog.files
    assert owner.chain.run != between.chain.run


def test_a_fence_without_an_answer_is_sent_again_and_recognized() -> None:
    shelf = Shelf()
    claim = shelf.new_claim("a")
    request = shelf.go_on(claim, until="create wal")
    assert request is not None
    shelf.create(request.name, request.data)
    claim.answered(request, Created.UNKNOWN)
    again = shelf.go_on(claim, until="create wal")
    assert again is not None
    assert again.data == request.data
    shelf.answer(claim, again)
    shelf.go_on(claim)
    assert claim.claimed is not None
    assert claim.claimed.run == Run(1, writer("a"))


def test_a_claim_that_slept_while_its_run_was_swept_begins_again() -> None:
    """Its fence is created, because the slot was deleted, and stops no owner."""
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    late = shelf.new_claim("b")
    request = shelf.go_on(late, until=f"get {slot_name(owner.chain.run, 0)}")
    put(owner, "two")
    owner.end_run()
    owner.sweep()
    put(owner, "three")
    assert request is not None
    late.failed(request)
    shelf.go_on(late)
    assert late.claimed is not None
    assert late.claimed.path[0].run.number == 2, "it has read from the new root"
    assert "three" in late.claimed.catalog.files
    assert shelf.slot(Run(1, writer("a")), 0).kind is SlotKind.FENCE, "the one that stops no owner"


def test_all_runs_of_the_path_are_asked_for() -> None:
    """A fence on swept ground leads the next one that slept into a run that no owner ever sweeps."""
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    swept = owner.chain.run
    first_slot = f"get {slot_name(swept, 0)}"
    early, late = shelf.new_claim("b"), shelf.new_claim("c")
    asked_early, asked_late = shelf.go_on(early, until=first_slot), shelf.go_on(late, until=first_slot)
    following = owner.end_run()
    owner.sweep()
    put(owner, "two")
    assert asked_early is not None
    shelf.answer(early, asked_early)
    shelf.go_on(early, until="get gone")  # and dies
    assert shelf.slot(swept, 0).next == Run(2, writer("b"))
    assert asked_late is not None
    shelf.answer(late, asked_late)
    shelf.go_on(late)
    assert shelf.slot(Run(2, writer("b")), 0).writer == writer("c")
    assert late.claimed is not None
    assert late.claimed.path[0].run == following
    assert "two" in late.claimed.catalog.files


def test_a_claim_begins_again_at_the_newest_root_that_it_has_read_the_commit_of() -> None:
    """The objects of an older root may go at any moment, when its owner wakes up and sweeps."""
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    following = owner.end_run()
    claimed = shelf.claimed("b")
    assert claimed.path[0].run == following
    assert claimed.catalog.root.run == following
    owner.sweep()
    assert root_name(following) in shelf.objects


def test_a_hint_saves_the_way_and_may_be_wrong() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    following = owner.end_run()
    owner.sweep()
    unknown = Run(9, writer("z"))  # of a node that was forgotten, or in a bucket that was copied in parts
    for hint in (encode_hint(following), encode_hint(FIRST), encode_hint(unknown), b"nonsense", None):
        shelf.objects.pop("hint", None)
        if hint is not None:
            shelf.objects["hint"] = hint
        assert shelf.claimed("b").catalog.root.run == following


def test_without_leave_a_claim_stops_before_the_fence() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    claim = shelf.new_claim("b", may_leap=False)
    shelf.go_on(claim)
    assert claim.is_looking
    place = claim.place
    put(owner, "one")
    claim.look_again()
    shelf.go_on(claim)
    assert claim.place > place, "the chain moves: its owner is alive"
    assert owner.chain.fenced is None
    claim.leap()
    shelf.go_on(claim)
    assert claim.claimed is not None
    assert "one" in claim.claimed.catalog.files


def test_a_claim_that_looks_does_not_stand_on_swept_ground() -> None:
    """There the chain would never move, and its owner would seem to be dead."""
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    claim = shelf.new_claim("b", may_leap=False)
    request = shelf.go_on(claim, until=f"get {slot_name(owner.chain.run, 0)}")
    following = owner.end_run()
    owner.sweep()
    assert request is not None
    claim.failed(request)
    shelf.go_on(claim)
    assert claim.is_looking
    assert claim.place[0] == following


def test_an_end_that_says_so_is_followed_by_a_root() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "only in a slot")
    following = owner.chain.run.following(writer("a"))
    shelf.objects[root_name(following)] = encode_root(Root("node", following, {}))
    owner.chain.end_run(0, 1, reads_root=True)
    owner.send()
    assert shelf.claimed("b").catalog.files == {}


# An owner that lives


def go_on_beside(owner: Owner, claim: Claim, *, slots: int, rounds: int) -> None:
    """Let the owner store so many slots in each round trip of the claim."""
    for _ in range(rounds):
        requests = claim.next_requests()
        for _ in range(slots):
            if owner.chain.fenced is None:
                put(owner, "file")
        for request in requests:
            owner.shelf.answer(claim, request)


@pytest.mark.parametrize("slots", [1, 2])
def test_an_owner_that_is_always_faster_is_stopped_by_a_fence_ahead(slots: int) -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    claim = shelf.new_claim("b")
    stops_owner_later = []
    for _ in range(60):
        go_on_beside(owner, claim, slots=slots, rounds=1)
        stops_owner_later.append(claim.stops_owner_later)
    assert claim.claimed is not None
    assert [it for it, _ in groupby(stops_owner_later)] == [False, True, False]
    put(owner, "late")
    assert owner.chain.fenced == "the name was taken over by process 1 on machine-b"


def test_a_start_that_was_not_asked_to_take_over_does_not_stop_an_owner_that_is_faster() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    claim = shelf.new_claim("b", may_leap=False)
    shelf.go_on(claim)
    claim.leap(stops_owner=False)
    go_on_beside(owner, claim, slots=1, rounds=20)
    assert claim.is_looking
    put(owner, "late")
    assert owner.chain.fenced is None


def test_a_fence_ahead_of_one_that_counts_is_in_no_chain() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    claim = shelf.new_claim("b")
    request = shelf.go_on(claim, until=f"create {slot_name(owner.chain.run, 0)}")
    assert request is not None
    put(owner, "file")
    shelf.answer(claim, request)
    shelf.go_on(claim)
    assert slot_name(owner.chain.run, BARRIER) in shelf.objects
    assert claim.claimed is not None
    assert claim.claimed.path[-1] == RunRead(owner.chain.run, 1, is_fenced=True)
    following = shelf.claimed("c")
    assert following.path[-2:] == (*claim.claimed.path[-1:], RunRead(claim.claimed.run, 0, is_fenced=True))


# What can't be read


def test_a_damaged_slot_is_named() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    name = slot_name(owner.chain.run, 0)
    shelf.objects[name] = shelf.objects[name][:-1] + b"?"
    claim = shelf.new_claim("b")
    shelf.go_on(claim)
    assert claim.fault == f"{name}: the checksum of the body of slot 0 of {owner.chain.run} is wrong"


def test_a_root_that_is_missing_without_a_mark_is_named() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    following = owner.end_run()
    owner.sweep()
    del shelf.objects[root_name(following)]
    claim = shelf.new_claim("b")
    shelf.go_on(claim)
    assert claim.fault is not None
    assert claim.fault.startswith(f"{root_name(following)} is missing")


def test_a_bucket_that_somebody_emptied_is_not_taken_for_a_new_one() -> None:
    shelf = Shelf()
    mark = shelf.claimed("a").mark
    shelf.objects.clear()
    claim = shelf.new_claim("b", mark=mark)
    shelf.go_on(claim)
    assert claim.fault is not None
    assert claim.fault.startswith("node: is missing, and this data path was in the store: has somebody emptied it")
    assert "nsqd remote seed" in claim.fault


# Whose data path it is


@pytest.mark.parametrize("dies_before", ["create node", "create wal"])
def test_a_first_start_that_dies_is_continued_by_the_next(dies_before: str) -> None:
    shelf = Shelf()
    shelf.go_on(shelf.new_claim("a"), until=dies_before)
    assert shelf.claimed("b", mark=shelf.saved[-1]).decision is Decision.CONTINUE


@pytest.mark.parametrize("was_created", [False, True])
def test_a_restart_continues_also_when_the_start_before_died_around_its_fence(was_created: bool) -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    claim = shelf.new_claim("b", mark=owner.claimed.mark)
    request = shelf.go_on(claim, until="create wal")
    assert request is not None
    if was_created:
        shelf.create(request.name, request.data)
    assert shelf.claimed("c", mark=owner.claimed.mark).decision is Decision.CONTINUE


def test_a_claimant_that_died_before_it_wrote_anything_came_between_in_no_way() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    assert shelf.claimed("b").decision is Decision.ADOPT
    assert shelf.claimed("c", mark=owner.claimed.mark).decision is Decision.CONTINUE


def test_an_owner_that_has_only_ended_its_run_came_between() -> None:
    """It may have shipped all it had by the root of the next run."""
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    between = Owner(shelf, shelf.claimed("b"))
    between.chain.end_run(0, 1)
    between.send()
    assert shelf.claimed("c", mark=owner.claimed.mark).decision is Decision.ADOPT
    assert shelf.claimed("d", mark=between.claimed.mark).decision is Decision.CONTINUE


def test_a_data_path_is_adopted_after_another_owner_and_until_that_is_done() -> None:
    shelf = Shelf()
    mine = shelf.claimed("a").mark
    put(Owner(shelf, shelf.claimed("b")), "one")
    for letter in "cd":
        assert shelf.claimed(letter, mark=mine).decision is Decision.ADOPT, "also the second time: c has not settled it"
    settled = shelf.claimed("e", mark=mine).mark
    assert shelf.claimed("f", mark=settled).decision is Decision.CONTINUE


def test_a_copy_of_a_data_path_from_before_the_newest_root_is_adopted() -> None:
    shelf = Shelf()
    claimed = shelf.claimed("a")
    owner = Owner(shelf, claimed)
    following = owner.end_run()
    copy, current = claimed.mark, claimed.mark.proved(following)
    assert shelf.claimed("b", mark=copy).decision is Decision.ADOPT
    assert Shelf().claimed("b", mark=None).decision is Decision.CONTINUE
    assert current.root == following


def test_a_copy_of_a_data_path_from_before_the_root_that_the_chain_goes_on_from_is_adopted() -> None:
    """The slots don't have everything that was written between the copy and that root."""
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    put(owner, "one")
    following = owner.chain.run.following(writer("a"))
    shelf.objects[root_name(following)] = encode_root(Root("node", following, {}))
    owner.chain.end_run(0, 1, reads_root=True)
    owner.send()
    copy, current = owner.claimed.mark, owner.claimed.mark.proved(following)
    assert shelf.claimed("b", mark=current).decision is Decision.CONTINUE
    claimed = shelf.claimed("c", mark=copy)
    assert claimed.decision is Decision.ADOPT
    assert claimed.mark.root == following


def test_a_root_that_was_never_committed_makes_no_copy_newer_than_later_roots() -> None:
    """The runs of roots that were given up have numbers that the next owner may use for its own roots."""
    shelf = Shelf()
    claimed = shelf.claimed("a")
    given_up = Run(7, claimed.run.writer)
    owner = Owner(shelf, shelf.claimed("b", mark=claimed.mark.proved(given_up)))
    assert owner.claimed.decision is Decision.CONTINUE
    copy = owner.claimed.mark
    following = owner.end_run()
    assert following.number < given_up.number
    assert shelf.claimed("c", mark=copy).decision is Decision.ADOPT


def test_another_node_s_data_path_is_not_continued() -> None:
    shelf = Shelf()
    mark = shelf.claimed("a").mark
    other = LocalMark("another", mark.writers, mark.root)
    assert shelf.claimed("b", mark=other).decision is Decision.ADOPT


def test_what_is_under_way_is_not_asked_again() -> None:
    shelf = Shelf()
    shelf.claimed("a")
    claim = shelf.new_claim("b")
    shelf.go_on(claim, until="get hint")
    assert claim.next_requests() == []


def test_a_damaged_slot_is_named_in_whatever_order_the_slots_come() -> None:
    shelf = Shelf()
    owner = Owner(shelf, shelf.claimed("a"))
    for path in ("one", "two"):
        put(owner, path)
    damaged = slot_name(owner.chain.run, 1)
    shelf.objects[damaged] = shelf.objects[damaged][:-1] + b"?"
    claim = shelf.new_claim("b")
    while requests := claim.next_requests():
        for request in reversed(requests):
            shelf.answer(claim, request)
    assert claim.fault is not None
    assert claim.fault.startswith(f"{damaged}: ")
