"""What fsck of a store finds, and what it may delete."""

from __future__ import annotations

import pytest

from nsqcommon.remote.names import Run, fold_name, gone_name, root_name, slot_name
from nsqd.remote.claim import ChainRead
from nsqd.remote.claiming import read_chain
from nsqd.remote.fsck import DAY_NS, Leftovers, StoreExamination
from nsqd.remote.object_store import Created, StoreFault
from nsqd.remote.sweep import ROOT_SECONDS
from tests.nsqd.remote.machines import JOURNAL, LOG, Machine
from tests.support.object_stores import MemoryStore

STRAY = Run(1, "e" * 16)  # a run that was in no chain


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """Return an owner that has made a root, and died before it had swept anything."""
    machine.clock.now += ROOT_SECONDS
    machine.job.step()
    machine.append(LOG, b", two")
    machine.send()
    return machine


def read(machine: Machine) -> ChainRead:
    return read_chain("orders", machine.open_store)


def damage(machine: Machine, *, quick: bool = False) -> list[str]:
    return [str(it) for it in StoreExamination(machine.open_store(), quick=quick).damage(read(machine))]


def leftovers(machine: Machine) -> Leftovers:
    return StoreExamination(machine.open_store()).leftovers(read(machine))


def sweep(machine: Machine) -> list[str]:
    chain = read(machine)
    examination = StoreExamination(machine.open_store())
    return list(examination.sweep(chain, examination.leftovers(chain)))


def only(machine: Machine, prefix: str) -> str:
    (name,) = [it for it in machine.objects.contents if it.startswith(prefix)]
    return name


# Damage


@pytest.mark.parametrize("quick", [False, True])
def test_nothing_is_found_in_a_sound_store(machine: Machine, quick: bool) -> None:
    assert damage(machine, quick=quick) == []


@pytest.mark.parametrize("quick", [False, True])
def test_a_fold_that_is_missing_is_named_with_what_needs_it(machine: Machine, quick: bool) -> None:
    fold = only(machine, "fold/")
    del machine.objects.contents[fold]
    assert damage(machine, quick=quick) == [f"{fold} is missing, and {JOURNAL} and 3 other files need it"]


@pytest.mark.parametrize("quick", [False, True])
def test_a_fold_that_was_cut_short_is_found(machine: Machine, quick: bool) -> None:
    fold = only(machine, "fold/")
    machine.objects.contents[fold] = machine.objects.contents[fold][:-1]
    assert len(damage(machine, quick=quick)) == 1


def test_a_flipped_bit_is_found_and_not_by_a_quick_look(machine: Machine) -> None:
    fold = only(machine, "fold/")
    machine.objects.contents[fold] = b"?" + machine.objects.contents[fold][1:]
    assert damage(machine) == [f"{fold} is damaged in [0, 7), which is of {JOURNAL}"]
    assert damage(machine, quick=True) == []


# Leftovers


def test_what_an_owner_had_not_swept_when_it_died_are_orphans_but_for_fences(machine: Machine) -> None:
    found = leftovers(machine)
    first, second = Run(0, machine.claimed.path[0].run.writer), machine.claimed.run
    ended = [it for it in machine.objects.contents if it.startswith(f"wal/{second}/")]
    assert set(found.orphans) == set(ended)
    assert found.unmarked == (first, second)
    assert (found.recent, found.unknown) == ((), ())


def test_what_a_fenced_owner_has_left_of_a_root_is_an_orphan_when_the_chain_is_further(machine: Machine) -> None:
    stray, recent = fold_name(STRAY, 1), fold_name(Run(99, "f" * 16), 1)
    machine.objects.contents |= {stray: b"fold", root_name(STRAY): b"root", recent: b"fold"}
    found = leftovers(machine)
    assert {stray, root_name(STRAY)} < set(found.orphans)
    assert found.recent == (recent,), "it may be in the making"


def test_names_that_are_not_ours_are_left_alone(machine: Machine) -> None:
    damaged = slot_name(STRAY, 0)
    machine.objects.contents |= {"readme.txt": b"", damaged: b"perhaps a fence"}
    assert set(leftovers(machine).unknown) == {"readme.txt", damaged}


def test_runs_are_marked_before_anything_is_deleted_and_the_node_goes_on_from_anywhere(machine: Machine) -> None:
    deleted = sweep(machine)
    assert deleted
    assert not machine.objects.contents.keys() & set(deleted)
    for run in (it.run for it in machine.claimed.path):
        assert gone_name(run) in machine.objects.contents
    assert damage(machine) == []
    assert leftovers(machine).orphans == ()
    other = Machine(machine.folder.parent / "b", machine.objects)
    other.start()
    assert other.content() == {JOURNAL: b"journal", LOG: b"one, two"}


def test_nothing_is_deleted_if_a_mark_can_not_be_set(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(machine.objects.contents)
    monkeypatch.setattr(MemoryStore, "create", lambda *_: Created.UNKNOWN)
    with pytest.raises(StoreFault, match=r"gone/.* can't be created"):
        sweep(machine)
    assert machine.objects.contents == before


def test_the_age_of_a_root_is_that_of_the_first_slot_after_it(machine: Machine) -> None:
    chain = read(machine)
    examination = StoreExamination(machine.open_store())
    assert 0 <= examination.age_ns(chain, chain.latest_ns + DAY_NS) - DAY_NS < DAY_NS
