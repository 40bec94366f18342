"""`nsqd remote status | restore | seed | forget`: what operators get to see, and what is refused."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path

import pytest

from nsqcommon.remote.marks import encode_hint
from nsqcommon.remote.names import HINT
from nsqcommon.startup import StartupError
from nsqd.fsck import cli as fsck
from nsqd.remote.claim import ChainRead
from nsqd.remote.claiming import read_chain
from nsqd.remote.cli import main
from nsqd.remote.fsck import DamagedObject, StoreExamination
from nsqd.remote.kept_slots import SMALLEST
from nsqd.remote.local_mark import Decision
from nsqd.remote.location import StoreLocation
from nsqd.remote.object_store import Names, ObjectStore, OnUnknown, StoreFault, StoreFaultKind, ignore
from nsqd.remote.operating import DONE, FAILED, REFUSED, status_of
from nsqd.remote.owner_call import OwnerAnswer
from nsqd.remote.rate_limit import RateLimit
from nsqd.remote.stores.folder import FolderStore
from nsqd.remote.sweep import ROOT_SECONDS
from tests.nsqd.remote.machines import JOURNAL, LOG, Machine
from tests.support.object_stores import MemoryStore, Objects


def run(
    objects: Objects, command: str, *arguments: str, kind: type[MemoryStore] = MemoryStore
) -> tuple[int, list[str], str]:
    out, err = StringIO(), StringIO()

    def open_store(
        location: StoreLocation, options: Mapping[str, str], *, node: str, on_unknown: OnUnknown
    ) -> ObjectStore:
        assert node == "orders"
        return kind(objects, on_unknown=on_unknown)

    status = main([command, "s3://lake/nsq", "--name=orders", *arguments], out=out, err=err, open_store=open_store)
    return status, out.getvalue().splitlines(), err.getvalue()


def test_status_says_who_owns_what_and_changes_nothing(machine: Machine) -> None:
    before = dict(machine.objects.contents)
    status, lines, err = run(machine.objects, "status")
    assert (status, err) == (DONE, "")
    assert lines[0] == "node       node-of-a"
    assert lines[1].startswith("owner      process ")
    assert lines[3].startswith("files      3 with ")
    assert lines[4].startswith("chain      2 slots since the last root, in 2 runs; now in 0000000001-")
    assert machine.objects.contents == before


@pytest.mark.parametrize(("age_s", "expected"), [(-5, "0s old"), (3, "3s old"), (90_000, "25h0m0s old")])
def test_status_says_how_old_the_last_slot_is(machine: Machine, age_s: int, expected: str) -> None:
    found = read_chain("orders", machine.open_store)
    assert expected in dict(status_of(found, found.latest_ns + age_s * 1_000_000_000))["state"]


def test_status_shows_a_clean_stop(machine: Machine) -> None:
    machine.pump()
    machine.job.close(10.0)
    assert run(machine.objects, "status")[1][2].startswith("state      its owner has stopped, or makes a root;")


def test_a_name_that_is_not_there(machine: Machine) -> None:
    assert run(Objects(), "status") == (FAILED, [], "nsqd remote: the store has no orders\n")


class Denies(MemoryStore):
    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        raise StoreFault("s3://lake/nsq: the secret key is wrong", StoreFaultKind.DENIED)


def test_a_store_that_does_not_let_us_in_has_one_line(machine: Machine) -> None:
    for command in ("status", "forget"):
        assert run(machine.objects, command, kind=Denies) == (
            FAILED,
            [],
            "nsqd remote: s3://lake/nsq: the secret key is wrong\n",
        )


def test_restore_fetches_a_node_that_goes_on(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "restored"
    assert run(machine.objects, "restore", f"--to={folder}") == (
        DONE,
        [f"restored 3 files of node node-of-a to {folder}"],
        "",
    )
    assert (folder / LOG).read_bytes() == b"one"
    assert not (folder / "remote.json").exists()
    machine.append(LOG, b"two")
    machine.send()
    assert machine.owner.fenced is None


def test_restore_keeps_to_its_rate(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(RateLimit, "__init__", lambda limit, rate: rates.append(rate))
    monkeypatch.setattr(RateLimit, "start", lambda limit, size, now: now)
    for number, option in enumerate(([], ["--remote-rate=2MB"], ["--remote-rate=0"])):
        assert run(machine.objects, "restore", f"--to={tmp_path / str(number)}", *option)[0] == DONE
    assert rates == [100_000_000, 2_000_000]


def test_restore_wants_an_empty_folder(machine: Machine) -> None:
    status, lines, err = run(machine.objects, "restore", f"--to={machine.folder}")
    assert (status, lines, err) == (REFUSED, [], f"nsqd remote: {machine.folder} is not empty\n")


def test_restore_reads_again_if_the_owner_has_swept_meanwhile(machine: Machine, tmp_path: Path) -> None:
    class Sweeps(MemoryStore):
        """Makes a root and sweeps when the restore asks for its first part."""

        def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
            if end is not None and not machine.job.stored:
                machine.clock.now += ROOT_SECONDS
                machine.job.step()
                machine.send()
                while machine.job.step():
                    pass
            return super().get(name, start, end)

    folder = tmp_path / "restored"
    assert run(machine.objects, "restore", f"--to={folder}", kind=Sweeps)[0] == DONE
    assert machine.job.stored == 1
    assert (folder / LOG).read_bytes() == b"one"


def test_restore_gets_the_bytes_of_a_large_slot_once(machine: Machine, tmp_path: Path) -> None:
    sent: Counter[str] = Counter()

    class Counts(MemoryStore):
        def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
            found = super().get(name, start, end)
            with self.objects.lock:
                sent[name] += len(found or b"")
            return found

    machine.append(LOG, bytes(SMALLEST))
    machine.send()
    folder = tmp_path / "restored"
    assert run(machine.objects, "restore", f"--to={folder}", kind=Counts)[0] == DONE
    assert (folder / LOG).read_bytes() == b"one" + bytes(SMALLEST)
    [large] = [it for it, data in machine.objects.contents.items() if len(data) > SMALLEST]
    assert sent[large] == len(machine.objects.contents[large])


def test_a_node_without_a_root_is_restored_whole(machine: Machine, tmp_path: Path) -> None:
    machine.unlink(JOURNAL)
    machine.delete_topic("orders")
    machine.send()
    folder = tmp_path / "restored"
    assert run(machine.objects, "restore", f"--to={folder}")[0] == DONE
    out = StringIO()
    assert fsck.main([str(folder)], out=out, err=StringIO()) == fsck.CLEAN, out.getvalue()


def test_a_restored_folder_may_be_another_node(tmp_path: Path, machine: Machine) -> None:
    folder = tmp_path / "restored"
    status, lines, _ = run(machine.objects, "restore", f"--to={folder}", "--new-identity")
    assert status == DONE
    node = lines[1].removeprefix("it is node ").removesuffix(" now")
    assert (len(node), node != "node-of-a") == (32, True)


def test_a_bucket_that_was_emptied_is_seeded_by_the_next_start(machine: Machine) -> None:
    machine.die()
    machine.objects.contents.clear()
    status, lines, _ = run(machine.objects, "seed", f"--data-path={machine.folder}")
    assert (status, lines) == (DONE, [f"the next start with --remote-name=orders stores all of {machine.folder}"])
    assert machine.start().decision is Decision.CONTINUE
    machine.send_difference()
    other = Machine(machine.folder.parent / "b", machine.objects)
    other.start()
    assert other.content() == machine.content()


def test_a_node_that_the_store_has_is_not_seeded(machine: Machine) -> None:
    machine.die()
    status, _, err = run(machine.objects, "seed", f"--data-path={machine.folder}")
    assert (status, err) == (
        REFUSED,
        "nsqd remote: the store has orders, so a start goes on with it; "
        "if it is of no use any more, delete it by nsqd remote forget\n",
    )
    assert (machine.folder / "remote.json").exists()


def test_a_data_path_in_use_is_not_seeded(machine: Machine) -> None:
    machine.objects.contents.clear()
    status, _, err = run(machine.objects, "seed", f"--data-path={machine.folder}")
    assert status == FAILED
    assert "possibly in use by another instance of nsqd" in err


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a claim not watch an owner that doesn't answer."""
    monkeypatch.setattr("nsqd.remote.claiming.WATCH", 0.0)


def kept(objects: Objects) -> list[str]:
    """Return the kinds of what is there, after a look that no message is."""
    assert not [it for it, data in objects.contents.items() if b"journal" in data]
    return sorted(it.partition("/")[0] for it in objects.contents)


@pytest.mark.usefixtures("at_once")
def test_forget_deletes_everything_but_fences_and_marks(machine: Machine) -> None:
    make_root(machine)
    status, lines, _ = run(machine.objects, "forget", "--yes=orders")
    assert (status, lines[0]) == (DONE, "deleted orders and its 6 objects")
    assert lines[1] == "2 fences and the marks of its runs stay, to stop an nsqd that may wake up later"
    assert kept(machine.objects) == ["gone", "gone", "gone", "wal", "wal"]
    assert run(machine.objects, "forget", "--yes=orders") == (FAILED, [], "nsqd remote: the store has no orders\n")


class Breaks(MemoryStore):
    """Deletes some, and then nothing more."""

    def delete(self, names: object) -> None:
        super().delete(list(names)[:2])  # type: ignore[call-overload]
        raise StoreFault("the connection was reset")


@pytest.mark.usefixtures("at_once")
def test_a_name_can_not_be_used_until_forget_has_ended(machine: Machine) -> None:
    status, _, _ = run(machine.objects, "forget", "--yes=orders", kind=Breaks)
    assert (status, "node" in machine.objects.contents) == (FAILED, True)
    other = Machine(machine.folder.parent / "b", machine.objects)
    with pytest.raises(StartupError, match="nsqd remote forget has begun to delete it: run that again"):
        other.start()
    assert run(machine.objects, "forget", "--yes=orders")[0] == DONE
    assert kept(machine.objects) == ["gone", "gone", "wal", "wal"]
    other.start()
    assert other.claimed.node == "node-of-b"


@pytest.mark.usefixtures("at_once")
def test_forget_stops_when_the_name_has_a_new_node(machine: Machine) -> None:
    """Another forget was faster, and then a start. What this one still lists may be the new node's."""

    class IsSlow(MemoryStore):
        def list(self, prefix: str, after: str = "") -> Names:
            names = super().list(prefix, after)
            if not after:
                run(self.objects, "forget", "--yes=orders")
                other.start()
                other.send_difference()
            return names

    other = Machine(machine.folder.parent / "b", machine.objects)
    status, _, err = run(machine.objects, "forget", "--yes=orders", kind=IsSlow)
    assert (status, err) == (REFUSED, "nsqd remote: orders was forgotten by another process meanwhile\n")
    other.append(LOG, b"of the new node")
    other.send()
    assert run(machine.objects, "fsck")[0] == DONE


@pytest.mark.usefixtures("at_once")
def test_an_owner_that_sleeps_gets_nothing_confirmed_when_its_node_is_forgotten(tmp_path: Path) -> None:
    sleeper = MachineWithFolder(tmp_path / "a")
    sleeper.start()
    sleeper.send_difference()
    sleeper.append(LOG, b"one")
    sleeper.send()
    before = sleeper.owner.confirmed
    sleeper.append(LOG, b"two")
    out = StringIO()
    assert main(["forget", f"file://{tmp_path}", "--name=orders", "--yes=orders"], out=out, err=out) == DONE
    sleeper.append(LOG, b"three")
    sleeper.send()
    assert (sleeper.owner.fenced or "").startswith("the name was deleted by process ")
    assert sleeper.owner.confirmed == before
    heir = MachineWithFolder(tmp_path / "b")
    heir.start()
    heir.send_difference()
    heir.die()
    sleeper.open_store().overwrite(HINT, encode_hint(sleeper.claimed.run))
    assert heir.start().node == "node-of-b", "although an owner of the former node has left a hint"


class MachineWithFolder(Machine):
    """Its store is the folder that its own folder is in."""

    def open_store(self, on_unknown: OnUnknown = ignore) -> ObjectStore:  # type: ignore[override]
        return FolderStore(self.folder.parent, node="orders", on_unknown=on_unknown)


@pytest.mark.usefixtures("at_once")
def test_a_node_with_a_damaged_chain_is_forgotten_on_demand(machine: Machine) -> None:
    """Its owner can't be fenced, because where it writes is unknown."""
    slot = min(it for it in machine.objects.contents if it.startswith("wal/"))
    machine.objects.contents[slot] = b"?"
    status, _, err = run(machine.objects, "forget", "--yes=orders")
    assert (status, err.endswith("; if no nsqd owns it any more, add --damaged\n")) == (REFUSED, True)
    assert run(machine.objects, "forget", "--yes=orders", "--damaged")[0] == DONE
    assert "node" not in machine.objects.contents


@pytest.mark.parametrize("answers", ["", "orders\n", "orders\nother\n", "yes\nyes\n"])
def test_forget_asks_for_the_name_twice(machine: Machine, answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    status, _, err = run(machine.objects, "forget")
    assert (status, "node" in machine.objects.contents) == (REFUSED, True)
    assert "the name was not repeated, so nothing was deleted" in err


@pytest.mark.usefixtures("at_once")
def test_forget_takes_the_name_twice(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("orders\norders\n"))
    assert run(machine.objects, "forget")[0] == DONE


def test_a_node_whose_owner_answers_is_not_forgotten(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.remote.claiming.owner_answers", lambda owner, writer: OwnerAnswer.YES)
    status, _, err = run(machine.objects, "forget", "--yes=orders")
    assert (status, "is in use by process" in err, "node" in machine.objects.contents) == (REFUSED, True, True)
    assert run(machine.objects, "forget", "--yes=orders", "--take-over")[0] == DONE


# fsck


def make_root(machine: Machine) -> None:
    machine.clock.now += ROOT_SECONDS
    machine.job.step()
    machine.send()


def test_fsck_of_a_sound_node_counts_what_is_needed_and_what_is_not(machine: Machine) -> None:
    make_root(machine)
    status, lines, err = run(machine.objects, "fsck")
    assert (status, err) == (DONE, "")
    assert lines[0] == "node       node-of-a"
    assert lines[1].startswith("needed     1 slots, 1 other objects; proved ")
    assert lines[2] == "orphans    3 objects of earlier runs, which --sweep deletes"
    assert lines[3] == "others     0 objects of later runs, perhaps of a root in the making"


def test_fsck_names_a_damaged_object(machine: Machine) -> None:
    make_root(machine)
    (fold,) = [it for it in machine.objects.contents if it.startswith("fold/")]
    machine.objects.contents[fold] = machine.objects.contents[fold][:-1] + b"?"
    status, lines, err = run(machine.objects, "fsck")
    assert status == REFUSED
    assert lines[0].startswith(f"damage: {fold} is damaged in [")
    assert err == "nsqd remote: orders can't be taken over as it is\n"


def test_fsck_looks_again_when_the_owner_has_made_a_root_meanwhile(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root(machine)
    looks: list[ChainRead] = []
    damage = StoreExamination.damage

    def damage_after_a_root(examination: StoreExamination, read: ChainRead) -> Iterator[DamagedObject]:
        looks.append(read)
        if len(looks) == 1:
            machine.job.step()  # it hears of the first root's commit
            machine.files.replace(machine.folder / JOURNAL, b"another journal")
            machine.send()
            make_root(machine)
        return damage(examination, read)

    (fold,) = [it for it in machine.objects.contents if it.startswith("fold/")]
    machine.objects.contents[fold] = b""
    monkeypatch.setattr(StoreExamination, "damage", damage_after_a_root)
    run(machine.objects, "fsck")
    assert len(looks) == 2
    assert looks[0].path[0].run < looks[1].path[0].run


def test_fsck_names_a_damaged_slot(machine: Machine) -> None:
    slot = max(it for it in machine.objects.contents if it.startswith("wal/"))
    machine.objects.contents[slot] = machine.objects.contents[slot][:-1] + b"?"
    status, lines, err = run(machine.objects, "fsck")
    assert (status, lines) == (REFUSED, [])
    assert err.startswith(f"nsqd remote: orders can't be read: {slot}: the checksum of the body")


def test_fsck_sweeps_orphans_when_the_root_is_a_day_old(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    make_root(machine)
    status, lines, err = run(machine.objects, "fsck", "--sweep")
    assert status == REFUSED
    assert "the newest root is less than a day old" in err
    monkeypatch.setattr("nsqd.remote.operating.time.time_ns", lambda: 1 << 62)
    status, lines, err = run(machine.objects, "fsck", "--sweep")
    assert (status, lines[-1], err) == (DONE, "deleted    3 objects", "")
    assert run(machine.objects, "fsck")[1][2].startswith("orphans    0 objects")
    assert run(machine.objects, "fsck", "--sweep")[1][-1] == "deleted    0 objects"


def test_fsck_does_not_miss_what_only_roots_have(machine: Machine, tmp_path: Path) -> None:
    machine.unlink(JOURNAL)
    machine.delete_topic("orders")
    machine.send()
    assert run(machine.objects, "fsck", f"--to={tmp_path / 'built'}")[0] == DONE
    (machine.folder / "topology.json").write_bytes(b"{}")
    machine.append(JOURNAL, b"")
    machine.send()
    make_root(machine)
    _, lines, _ = run(machine.objects, "fsck", f"--to={tmp_path / 'again'}")
    assert "damage: topology.json is damaged file=topology.json offset=0" in lines


def test_fsck_builds_the_data_path_and_examines_it(machine: Machine, tmp_path: Path) -> None:
    status, lines, err = run(machine.objects, "fsck", f"--to={tmp_path / 'built'}")
    assert status == REFUSED, "its journal and log are no journal and no log"
    assert f"nsqd fsck {tmp_path / 'built'}:" in lines
    assert (tmp_path / "built" / LOG).read_bytes() == b"one"
    assert "the files of orders are damaged as they were stored" in err
