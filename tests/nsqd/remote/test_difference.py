"""What a continued data path has to tell the store before it serves anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from nsqd.log.files import Files
from nsqd.remote.catalog import Catalog
from nsqd.remote.claim import Claimed
from nsqd.remote.difference import Difference, find_difference
from nsqd.remote.local_files import LocalFiles
from tests.nsqd.remote.machines import JOURNAL, LOG, Machine

NEXT = "topics/t.orders/00000100.log"


def difference_of(machine: Machine) -> Difference:
    return find_difference(machine.claimed.catalog, LocalFiles(machine.folder, Files()))


def paths(machine: Machine) -> list[str]:
    return [it.path for it in difference_of(machine).changed]


def in_store(machine: Machine) -> dict[str, bytes]:
    """Return what another machine gets of these files."""
    other = Machine(machine.folder.parent / "another", machine.objects)
    other.start()
    found = other.content()
    other.die()
    machine.claimed = Claimed(
        machine.claimed.node,
        machine.claimed.claimant,
        other.claimed.run,
        (),
        other.claimed.catalog,
        machine.claimed.mark,
        machine.claimed.decision,
    )
    return found


def test_nothing_differs_after_everything_was_sent(machine: Machine) -> None:
    machine.die()
    machine.start()
    assert difference_of(machine) == Difference((), ())


def test_a_new_node_begins_with_its_node_json(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a")
    machine.start()
    assert paths(machine) == ["node.json"]


def test_a_tail_that_was_never_sent_is_sent_now(machine: Machine) -> None:
    machine.append(LOG, b"two")
    machine.append(NEXT, b"three")
    machine.append("journal.000002", b"more")
    machine.die()
    machine.start()
    machine.unlink(JOURNAL)  # as the recovery may
    found = difference_of(machine)
    assert [(it.path, it.same, it.size) for it in found.changed] == [
        ("journal.000002", 0, 4),
        (LOG, 3, 6),
        (NEXT, 0, 5),
    ]
    assert found.removed == (JOURNAL,)
    machine.send_difference()
    assert in_store(machine) == {"journal.000002": b"more", LOG: b"onetwo", NEXT: b"three"}


def test_what_was_removed_while_the_store_was_away_is_removed_there_too(machine: Machine) -> None:
    machine.append(NEXT, b"two")
    machine.send()
    machine.unlink(LOG)
    machine.die()
    machine.start()
    assert difference_of(machine) == Difference((), (LOG,))
    machine.send_difference()
    assert in_store(machine) == {JOURNAL: b"journal", NEXT: b"two"}


def test_a_file_that_was_cut_and_written_again_is_sent_from_there(machine: Machine) -> None:
    machine.append(LOG, b"two")
    machine.append(LOG, b"three")
    machine.send()
    machine.die()
    (machine.folder / LOG).write_bytes(b"onetwoTHREE!")
    machine.start()
    machine.send_difference()
    assert in_store(machine)[LOG] == b"onetwoTHREE!"


def test_a_file_that_is_shorter_now_is_cut(machine: Machine) -> None:
    machine.append(LOG, b" torn")
    machine.send()
    machine.die()
    machine.start()
    (machine.folder / LOG).write_bytes(b"one")  # by the recovery
    machine.send_difference()
    assert in_store(machine)[LOG] == b"one"


def test_the_contents_of_deleted_topics_are_not_sent(machine: Machine) -> None:
    machine.append("topics/t.gone/log.json", b"{}")
    machine.append("topics/t.gone/00000000.log", b"gone")
    machine.die()
    (machine.folder / "topics/t.gone").rename(machine.folder / "topics/x.0123")
    machine.start()
    assert paths(machine) == ["topics/x.0123/log.json"]


def test_what_recovery_has_recorded_itself_is_not_sent_twice(machine: Machine) -> None:
    machine.die()
    machine.start()
    descriptor = machine.files.open_to_write(machine.folder / JOURNAL)  # as the recovery does
    machine.files.write_fully(descriptor, [b" and its checkpoint"], 7)
    machine.send_difference()
    machine.files.write_fully(descriptor, [b", and more"], 26)
    machine.files.close(descriptor)
    machine.send()
    assert in_store(machine)[JOURNAL] == b"journal and its checkpoint, and more"


@pytest.mark.parametrize("is_large", [False, True])
def test_a_difference_that_is_too_large_for_a_slot_becomes_a_root(
    machine: Machine, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr("nsqd.remote.difference.MOST_BODY", 100)
    machine.append(LOG, Random(1).randbytes(500))
    machine.append(NEXT, b"three")
    machine.die()
    machine.start()
    machine.unlink(JOURNAL)
    before = machine.content()
    machine.send_difference()
    assert any(it.startswith("root/") for it in machine.objects.contents) is is_large
    machine.append(NEXT, b", four")
    machine.send()
    assert in_store(machine) == {LOG: before[LOG], NEXT: b"three, four"}


def test_what_is_in_folds_already_is_not_stored_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.remote.difference.MOST_BODY", 100)
    machine.append(LOG, Random(1).randbytes(10_000))
    machine.die()
    machine.start()
    machine.send_difference()
    machine.append(LOG, Random(2).randbytes(500))
    machine.die()
    machine.start()
    assert isinstance(machine.claimed.catalog, Catalog)
    stored = sum(map(len, machine.objects.contents.values()))
    machine.send_difference()
    assert sum(map(len, machine.objects.contents.values())) - stored < 2_000
    assert in_store(machine)[LOG] == machine.content()[LOG]


@pytest.mark.parametrize("placed", range(4))
def test_a_start_that_dies_while_it_fetches_removes_nothing(
    machine: Machine, placed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing then must not look as if its owner had removed it. Here a snapshot of the disk was restored."""
    machine.append(NEXT, b"th")
    copy = {path: (machine.folder / path).read_bytes() for path in (JOURNAL, LOG, NEXT)}
    machine.append(JOURNAL, b", more")
    machine.append(LOG, b", two")
    machine.append(NEXT, b"ree")
    machine.append("topics/t.new/00000000.log", b"new")
    machine.send()
    stored = machine.content()
    machine.die()
    shutil.rmtree(machine.folder / "topics")
    for path, data in copy.items():
        (machine.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (machine.folder / path).write_bytes(data)
    finish = LocalFiles.finish_fetched
    done: list[str] = []

    def finish_some(local: LocalFiles, path: str) -> None:
        if len(done) == placed:
            raise KeyboardInterrupt
        done.append(path)
        finish(local, path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "finish_fetched", finish_some)
        with pytest.raises(KeyboardInterrupt):
            machine.start()
    machine.start()
    assert machine.content() == stored
