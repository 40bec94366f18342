"""What goes after a commit, in which order, and what stays for ever."""

from __future__ import annotations

from nsqcommon.remote.marks import decode_gone
from nsqcommon.remote.names import Run, gone_name, root_name, slot_name
from nsqcommon.remote.operations import Commit, Replace
from nsqcommon.remote.root import FileEntry, FilePart, Root
from nsqd.remote.chain import MOST_UNCONFIRMED
from nsqd.remote.claim import RunRead
from nsqd.remote.object_store import Created
from nsqd.remote.sweep import (
    ROOT_BYTES,
    ROOT_SECONDS,
    ROOT_SLOTS,
    UNUSED_FOR,
    CheckMark,
    Delete,
    Roots,
    SetHint,
    SetMark,
    Step,
)
from tests.nsqd.remote.shelf import Owner, Shelf

FENCED, ENDED, NEW = Run(7, "a" * 16), Run(8, "b" * 16), Run(9, "b" * 16)
PATH = [RunRead(FENCED, 2, is_fenced=True)]


def committed(needed: tuple[str, ...] = (), used: tuple[str, ...] = ()) -> Roots:
    roots = Roots(PATH, 0.0)
    roots.begin(RunRead(ENDED, 1, is_fenced=False), NEW, needed)
    entries = {name: FileEntry(1, (FilePart(name, 0, 1, 0),)) for name in used}
    roots.stored(Root("node", NEW, entries))
    assert roots.take_commit() == Commit(NEW)
    roots.confirmed(Commit(NEW), 100.0)
    return roots


def steps(roots: Roots, now: float = 100.0) -> list[Step]:
    found = []
    while (step := roots.next_step(now)) is not None:
        found.append(step)
        if isinstance(step, SetMark):
            roots.marked(step, Created.CREATED)
        elif not isinstance(step, CheckMark):
            roots.done(step)
    return found


def test_all_marks_come_before_the_first_delete() -> None:
    found = steps(committed())
    assert [type(it) for it in found] == [SetMark, SetMark, SetHint, Delete]
    marks = [it for it in found if isinstance(it, SetMark)]
    assert [(it.name, decode_gone(it.data)) for it in marks] == [(gone_name(FENCED), NEW), (gone_name(ENDED), NEW)]


def test_slots_and_roots_go_and_a_fence_stays() -> None:
    (delete,) = [it for it in steps(committed()) if isinstance(it, Delete)]
    ahead = {slot_name(FENCED, 3 + number) for number in range(MOST_UNCONFIRMED)}
    assert set(delete.names) == ahead | {
        *(root_name(FENCED), slot_name(FENCED, 0), slot_name(FENCED, 1)),
        *(root_name(ENDED), slot_name(ENDED, 0), slot_name(ENDED, 1)),
    }
    assert slot_name(FENCED, 2) not in delete.names


def test_an_object_that_the_new_root_does_not_use_goes_an_hour_later() -> None:
    roots = committed(("fold/7/0001", "fold/7/0002"), used=("fold/7/0001",))
    steps(roots)
    assert roots.next_step(100.0 + UNUSED_FOR - 1) is None
    assert [it.names for it in steps(roots, 100.0 + UNUSED_FOR) if isinstance(it, Delete)] == [("fold/7/0002",)]


def test_a_step_is_repeated_until_it_is_done() -> None:
    roots = committed()
    first = roots.next_step(100.0)
    assert isinstance(first, SetMark)
    roots.marked(first, Created.UNKNOWN)
    assert roots.next_step(100.0) is first


def test_a_mark_that_is_said_to_exist_is_looked_at() -> None:
    """S3 answers a conflict when two creates meet, of which neither may have won, and a client takes it for "exists"."""
    roots = committed()
    for found in (None, b"anything"):
        step = roots.next_step(100.0)
        assert isinstance(step, SetMark)
        roots.marked(step, Created.EXISTS)
        check = roots.next_step(100.0)
        assert isinstance(check, CheckMark)
        assert check.name == step.name == gone_name(FENCED)
        roots.checked(check, found)
    last = roots.next_step(100.0)
    assert isinstance(last, SetMark)
    assert last.name == gone_name(ENDED)


def test_a_root_is_committed_once_and_only_when_it_is_stored() -> None:
    roots = Roots(PATH, 0.0)
    roots.begin(RunRead(ENDED, 1, is_fenced=False), NEW, ())
    assert roots.take_commit() is None
    roots.stored(Root("node", NEW, {}))
    assert roots.take_commit() == Commit(NEW)
    assert roots.take_commit() is None
    assert roots.next_step(0.0) is None


def test_a_root_that_was_given_up_lets_nothing_go_and_the_next_one_lets_go_all() -> None:
    roots = Roots(PATH, 0.0)
    roots.begin(RunRead(ENDED, 1, is_fenced=False), NEW, ())
    roots.give_up()
    roots.confirmed(Commit(NEW), 0.0)
    assert roots.next_step(0.0) is None
    later = NEW.following(NEW.writer)
    roots.begin(RunRead(NEW, 0, is_fenced=False), later, ())
    roots.stored(Root("node", later, {}))
    roots.take_commit()
    roots.confirmed(Commit(later), 0.0)
    marks = [it.name for it in steps(roots, 0.0) if isinstance(it, SetMark)]
    assert marks == [gone_name(FENCED), gone_name(ENDED), gone_name(NEW)]


def test_objects_that_a_root_would_have_let_go_before_it_was_given_up_go_with_the_next() -> None:
    roots = Roots(PATH, 0.0)
    roots.begin(RunRead(ENDED, 1, is_fenced=False), NEW, ("fold/7/0001",))
    roots.give_up()
    later = NEW.following(NEW.writer)
    roots.begin(RunRead(NEW, 0, is_fenced=False), later, ())
    roots.stored(Root("node", later, {}))
    roots.take_commit()
    roots.confirmed(Commit(later), 0.0)
    assert ("fold/7/0001",) in [it.names for it in steps(roots, UNUSED_FOR) if isinstance(it, Delete)]


def test_a_root_is_due_after_many_slots_bytes_or_minutes_and_never_without_a_slot() -> None:
    roots = Roots(PATH, 0.0)
    assert not roots.is_due(1.0, slots=1, size=1)
    assert roots.is_due(1.0, slots=ROOT_SLOTS, size=1)
    assert roots.is_due(1.0, slots=1, size=ROOT_BYTES)
    assert roots.is_due(ROOT_SECONDS, slots=1, size=1)
    assert not roots.is_due(ROOT_SECONDS, slots=0, size=0)
    roots.begin(RunRead(ENDED, 1, is_fenced=False), NEW, ())
    assert not roots.is_due(9e9, slots=ROOT_SLOTS, size=1)


def test_a_zombie_that_slept_through_a_sweep_finds_the_fence() -> None:
    shelf = Shelf()
    zombie = Owner(shelf, shelf.claimed("a"))
    following = Owner(shelf, shelf.claimed("b"))
    following.append(Replace("x", 1), body=b"x")
    following.end_run()
    following.sweep()
    zombie.append(Replace("x", 1), body=b"z")
    assert zombie.chain.fenced is not None
