"""What becomes of a data path when a start has claimed its name: on the same disk, on another one, and on none."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from threading import Lock

import pytest

from nsqcommon.remote.names import Run, slot_name
from nsqcommon.startup import StartupError, TakenOver
from nsqd.log.data_path import JournalEnd, NodeFile, write_node
from nsqd.remote.local_files import LocalFiles
from nsqd.remote.local_mark import Decision, decode_mark, encode_mark
from nsqd.remote.object_store import OnUnknown, StoreFault, ignore
from nsqd.remote.reconciliation import PAGE
from nsqd.remote.settling import IDS_AHEAD, Settling
from tests.nsqd.log.harness import opened, texts
from tests.nsqd.remote.machines import JOURNAL, LOG, Machine
from tests.support.object_stores import MemoryStore


def another(machine: Machine, name: str = "b") -> Machine:
    return Machine(machine.folder.parent / name, machine.objects)


def test_a_new_name_gets_the_data_path_as_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a")
    claimed = machine.start()
    assert (claimed.decision, claimed.node) == (Decision.CONTINUE, "node-of-a")
    assert decode_mark((machine.folder / "remote.json").read_bytes()) == claimed.mark


def test_after_a_kill_the_same_data_path_is_continued_with_what_was_never_sent(machine: Machine) -> None:
    machine.append(LOG, b"two")
    machine.die()
    before = machine.content()
    assert machine.start().decision is Decision.CONTINUE
    assert (machine.content(), machine.settled.fetched, machine.settled.aside) == (before, 0, None)


def test_an_empty_disk_gets_everything_that_was_sent(machine: Machine) -> None:
    machine.append(LOG, b"never sent")
    new = another(machine)
    assert new.start().decision is Decision.ADOPT
    assert new.content() == {JOURNAL: b"journal", LOG: b"one"}
    assert new.settled.aside is None, "a new data path has nothing to keep"


def test_an_adopted_node_keeps_its_id_and_moves_its_message_ids_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a")
    machine.start()
    write_node(machine.files, machine.folder, NodeFile("node-of-a", 1000, JournalEnd()))
    machine.send()
    new = another(machine)
    new.start()
    assert new.node_json() == ("node-of-a", 1000 + IDS_AHEAD)
    assert new.data_path.node == "node-of-a"


def test_an_adopted_node_moves_its_message_ids_on_although_its_node_json_is_the_one_in_the_store(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path / "a")
    machine.start()
    write_node(machine.files, machine.folder, NodeFile("node-of-a", 1000, JournalEnd()))
    machine.send()
    machine.die()
    (machine.folder / "remote.json").unlink()
    assert machine.start().decision is Decision.ADOPT
    assert machine.node_json() == ("node-of-a", 1000 + IDS_AHEAD), "another machine may have handed out the next ones"


def test_a_node_that_was_never_shipped_has_its_id_in_the_store(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a")
    machine.start()
    new = another(machine)
    new.start()
    assert new.node_json() == ("node-of-a", IDS_AHEAD)


def test_what_another_owner_has_changed_meanwhile_is_right_and_the_rest_goes_aside(machine: Machine) -> None:
    machine.append(LOG, b"written, and never sent")
    machine.append("topics/t.mine/00000000.log", b"mine")
    (machine.folder / "topology.json").write_bytes(b"as it was")
    machine.die()
    new = another(machine)
    new.start()
    new.append(LOG, b" and two")
    new.send()
    assert machine.start().decision is Decision.ADOPT
    assert machine.content() == {JOURNAL: b"journal", LOG: b"one and two"}
    assert not (machine.folder / "topics/t.mine").exists(), "an empty folder would be a topic"
    aside = machine.settled.aside
    assert aside is not None
    assert (aside / LOG).read_bytes() == b"onewritten, and never sent"
    assert (aside / "topics/t.mine/00000000.log").read_bytes() == b"mine"
    assert (aside / "topology.json").read_bytes() == b"as it was"
    assert not (aside / JOURNAL).exists(), "it is what the store has, so it was not fetched"


def test_an_adopted_log_has_no_tail_that_was_never_sent(machine: Machine) -> None:
    machine.append(LOG, b"written, and never sent")
    machine.die()
    new = another(machine)
    new.start()
    new.append(JOURNAL, b", and more")
    new.send()
    machine.start()
    assert machine.content()[LOG] == b"one"
    assert machine.settled.aside is not None
    assert (machine.settled.aside / LOG).read_bytes() == b"onewritten, and never sent"


def test_a_data_path_has_no_new_mark_before_it_is_settled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.append(LOG, b"never sent")
    machine.die()
    new = another(machine)
    new.start()
    new.append(LOG, b"two")
    new.send()

    def fail(self: LocalFiles, path: str) -> None:
        raise OSError(28, "No space left on device", path)

    before = (machine.folder / "remote.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "finish_fetched", fail)
        with pytest.raises(StartupError, match="no space left on device"):
            machine.start()
    assert (machine.folder / "remote.json").read_bytes() == before
    assert machine.start().decision is Decision.ADOPT
    assert machine.content()[LOG] == b"onetwo"


def test_files_of_other_programs_stay(machine: Machine) -> None:
    machine.die()
    (machine.folder / "nsqd.dat").write_bytes(b"of a Go nsqd")
    (machine.folder / "policy.json").write_bytes(b"the last policy")
    another(machine).start()
    machine.start()
    assert (machine.folder / "nsqd.dat").exists()
    assert (machine.folder / "policy.json").exists()


def test_after_a_power_cut_what_the_disk_has_lost_comes_from_the_store(machine: Machine) -> None:
    machine.append(LOG, b"two")
    machine.append("topics/t.late/00000000.log", b"late")
    machine.send()
    machine.append(JOURNAL, b" and a tail that was synced")
    machine.die()
    (machine.folder / LOG).write_bytes(b"on\0\0\0\0")
    (machine.folder / "topics/t.late/00000000.log").unlink()
    reboot(machine)
    assert machine.start().decision is Decision.CONTINUE
    assert machine.content() == {
        JOURNAL: b"journal and a tail that was synced",
        LOG: b"onetwo",
        "topics/t.late/00000000.log": b"late",
    }


def test_a_segment_of_which_a_power_cut_has_left_the_name_makes_no_gap_behind_what_the_store_has(
    tmp_path: Path,
) -> None:
    written = tmp_path / "written"
    written.mkdir()
    with opened(written, max_bytes_per_file=122) as store:
        for body in (b"a", b"b", b"c"):
            store.publish(body)
        first, second = (str(it.relative_to(written)) for it in store.segments())
        log_id = store.log().log_id
    machine = Machine(tmp_path / "a")
    machine.start()
    machine.send_difference()
    machine.append(JOURNAL, (written / JOURNAL).read_bytes())
    machine.create_topic("t", log_id)
    machine.append(first, (written / first).read_bytes()[:61])
    machine.send()
    machine.append(first, (written / first).read_bytes()[61:])
    machine.append(second, (written / second).read_bytes())
    machine.die()
    (machine.folder / first).write_bytes(bytes(122))
    (machine.folder / second).write_bytes(bytes(61))
    reboot(machine)
    assert machine.start().decision is Decision.CONTINUE
    assert (machine.content()[first], machine.content()[second]) == ((written / first).read_bytes()[:61], bytes(61))
    machine.die()
    with opened(machine.folder) as store:
        assert (texts(store.read()), store.log().tail, store.log().log_id) == ("a", 1, log_id)
        assert [it.name for it in store.segments()] == [Path(first).name]


def reboot(machine: Machine) -> None:
    path = machine.folder / "remote.json"
    mark = decode_mark(path.read_bytes())
    path.write_bytes(encode_mark(type(mark)(mark.node, mark.writers, mark.root, "an earlier boot")))


def test_a_file_that_was_cut_in_the_store_is_compared_by_the_bytes_that_are_left(machine: Machine) -> None:
    machine.append(LOG, b"torn")
    machine.cut(LOG, 5)
    machine.send()
    machine.die()
    reboot(machine)
    machine.start()
    assert (machine.content()[LOG], machine.settled.fetched) == (b"oneto", 0)


def test_a_start_that_died_while_it_fetched_is_repeated(machine: Machine) -> None:
    new = another(machine)
    for name in ("node.json.fetched", f"{LOG}.fetched"):
        path = new.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    (new.folder / "topics/t.gone").mkdir()
    (new.folder / "topics/t.gone/00000000.log.fetched").write_bytes(b"half")
    new.start()
    assert new.content() == {JOURNAL: b"journal", LOG: b"one"}
    assert not (new.folder / "topics/t.gone").exists()


def test_the_data_path_of_another_node_is_refused(machine: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path / "other")
    other.start()
    other.append(JOURNAL, b"of another node")
    other.die()
    (other.folder / "remote.json").unlink()
    stranger = Machine(tmp_path / "other", machine.objects)
    with pytest.raises(StartupError, match="it belongs to node node-of-a, and this data path to node node-of-other"):
        stranger.start()
    assert stranger.content() == {JOURNAL: b"of another node"}
    machine.append(LOG, b"two")
    machine.send()
    assert machine.owner.fenced is None


def test_a_data_path_that_does_not_know_its_node_cannot_give_a_name_to_it(machine: Machine, tmp_path: Path) -> None:
    machine.die()
    (machine.folder / "node.json").unlink()
    stranger = Machine(machine.folder)
    (machine.folder / "remote.json").unlink()
    with pytest.raises(StartupError, match="the data path doesn't say whose it is"):
        stranger.start()
    assert stranger.objects.contents == {}


def test_a_mark_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a")
    (machine.folder / "remote.json").write_bytes(b"\xf3\x4e\x52\x02" + bytes(20))
    with pytest.raises(StartupError, match=r"remote\.json has format 2, this version reads 1"):
        machine.start()


def test_a_damaged_mark_leaves_the_decision_to_the_store(machine: Machine) -> None:
    machine.append(LOG, b"two")
    machine.die()
    (machine.folder / "remote.json").write_bytes(b"garbage")
    assert machine.start().decision is Decision.ADOPT
    assert machine.content()[LOG] == b"one"


class Silent(MemoryStore):
    """Answers a claim, and then no more."""

    asked = False

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if end is None:
            return super().get(name, start, end)
        self.asked = True
        raise StoreFault("no answer")


def test_a_start_that_waits_for_the_store_while_it_fetches_can_be_stopped(machine: Machine) -> None:
    new = another(machine)
    store = Silent(machine.objects)
    new.open_store = lambda on_unknown=ignore: store  # type: ignore[method-assign]
    new.is_stopped = lambda: store.asked
    with pytest.raises(StartupError, match="stopped while fetching orders from the store"):
        new.start()


class LosesRanges(MemoryStore):
    """Has lost the slots when they are needed again, after the claim has read them."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        return None if name.startswith("wal/") and (end or 0) > 1 else super().get(name, start, end)


class Robbed(Machine):
    def open_store(self, on_unknown: OnUnknown = ignore) -> MemoryStore:
        return LosesRanges(self.objects, on_unknown=on_unknown)


def test_a_machine_that_could_not_go_on_leaves_the_owner_alone(machine: Machine) -> None:
    new = Robbed(machine.folder.parent / "b", machine.objects)
    with pytest.raises(StartupError, match=r"orders can't be restored from the store: wal/\S+ is missing") as raised:
        new.start()
    assert (raised.value.exit_status, (new.folder / "remote.json").exists()) == (1, False)
    machine.append(LOG, b"two")
    machine.send()
    assert machine.owner.fenced is None
    intact = another(machine)
    intact.start()
    assert intact.content() == {JOURNAL: b"journal", LOG: b"onetwo"}


def test_what_was_fetched_before_the_fence_is_only_added_to(machine: Machine) -> None:
    new = another(machine)
    ranges: list[str] = []
    lock = Lock()  # the first two objects are fetched at the same time

    class GoesOn(MemoryStore):
        """Lets the owner write on after the first fetch, and notes what is fetched."""

        def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
            if end is not None:
                with lock:
                    if not ranges:
                        machine.append(LOG, b"two")
                        machine.append("topics/t.late/00000000.log", b"late")
                        machine.unlink(JOURNAL)
                        machine.send()
                    ranges.append(name)
            return super().get(name, start, end)

    new.open_store = lambda on_unknown=ignore: GoesOn(machine.objects, on_unknown=on_unknown)  # type: ignore[method-assign]
    new.start()
    assert new.content() == {LOG: b"onetwo", "topics/t.late/00000000.log": b"late"}
    assert len(ranges) == len(set(ranges)) == 3


def test_an_object_that_the_next_owner_has_swept_means_that_there_is_a_next_owner(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settling, "prepare", lambda self, read: None)
    new = Robbed(machine.folder.parent / "b", machine.objects)
    machine.objects.contents[slot_name(Run(2, "0" * 16), 0)] = b"a slot"
    new.writers = ["1" * 16, "0" * 16]
    with pytest.raises(TakenOver, match="orders was taken over by another process during this start") as raised:
        new.start()
    assert raised.value.exit_status == 3


def test_a_copy_of_the_data_path_from_before_does_not_count(machine: Machine, tmp_path: Path) -> None:
    machine.die()
    shutil.copytree(machine.folder, tmp_path / "copy")
    another(machine).start()
    copy = Machine(tmp_path / "copy", machine.objects)
    assert copy.start().decision is Decision.CONTINUE, "the other owner has written nothing"


TOPIC_LOG = "topics/t.again/00000000.log"


def test_a_copy_of_a_deleted_log_from_before_is_put_aside(machine: Machine, tmp_path: Path) -> None:
    machine.create_topic("again", "old")
    machine.append(TOPIC_LOG, b"old1old2old3")
    machine.send()
    shutil.copytree(machine.folder, tmp_path / "copy")
    machine.append(JOURNAL, b", deleted, created")
    machine.delete_topic("again")
    machine.create_topic("again", "new")
    machine.append(TOPIC_LOG, b"NEW1")
    machine.send()
    machine.die()
    copy = Machine(tmp_path / "copy", machine.objects)
    assert copy.start().decision is Decision.CONTINUE
    assert copy.content() == machine.content()


@pytest.mark.parametrize("new", [b"NEW1", b"NEW1NEW2NEW3NEW4NEW5"])
@pytest.mark.parametrize("told", ["nothing", "the deletion"])
@pytest.mark.parametrize("is_rooted", [False, True])
@pytest.mark.parametrize("is_rebooted", [False, True])
def test_a_topic_that_was_deleted_and_created_again_while_the_store_was_away_has_its_messages(
    machine: Machine, new: bytes, told: str, is_rooted: bool, is_rebooted: bool
) -> None:
    machine.send_difference()
    machine.create_topic("again", "old")
    for message in (b"old1", b"old2old3"):
        machine.append(TOPIC_LOG, message)
        machine.send()
        if is_rooted:
            machine.make_root()
    machine.append(JOURNAL, b", deleted")
    machine.delete_topic("again")
    if told == "the deletion":
        machine.send()
    machine.create_topic("again", "new")
    machine.append(TOPIC_LOG, new)
    before = machine.content()
    machine.die()
    if is_rebooted:
        reboot(machine)
    assert machine.start().decision is Decision.CONTINUE
    assert (machine.content(), machine.settled.aside) == (before, None)
    machine.send_difference()
    other = another(machine)
    other.start()
    assert other.content() == before


@pytest.mark.parametrize("is_rooted", [False, True])
def test_a_deleted_log_that_a_power_cut_brings_back_does_not_replace_the_one_that_was_created_after_it(
    machine: Machine, tmp_path: Path, is_rooted: bool
) -> None:
    machine.send_difference()
    machine.create_topic("again", "old")
    machine.append(TOPIC_LOG, b"old1")
    machine.send()
    if is_rooted:
        machine.make_root()
    durable = tmp_path / "durable"
    shutil.copytree(machine.folder / "topics/t.again", durable)
    machine.append(JOURNAL, b", deleted, created")  # is synced before the new names of folders are
    machine.delete_topic("again")
    machine.create_topic("again", "new")
    machine.append(TOPIC_LOG, b"NEW1NEW2")
    machine.send()
    before = machine.content()
    machine.die()
    shutil.rmtree(machine.folder / "topics/t.again")
    shutil.copytree(durable, machine.folder / "topics/t.again")
    reboot(machine)
    assert machine.start().decision is Decision.CONTINUE
    assert machine.content() == before
    machine.send_difference()
    other = another(machine)
    other.start()
    assert other.content() == before


def test_what_was_written_after_a_failed_write_was_cut_stays_although_the_store_has_more(machine: Machine) -> None:
    machine.append(LOG, b"a short write")
    machine.send()
    machine.cut(LOG, 3)
    machine.append(LOG, b"two")
    before = machine.content()
    machine.die()
    machine.start()
    assert (machine.content(), machine.settled.aside) == (before, None)
    machine.send_difference()
    other = another(machine)
    other.start()
    assert other.content() == before


def reserve_ids(machine: Machine, ids: int) -> None:
    write_node(machine.files, machine.folder, NodeFile("node-of-a", ids, JournalEnd()))


@pytest.mark.parametrize("size", [3, 5000, 9000])
def test_pages_that_are_lost_without_a_reboot_come_from_the_store(machine: Machine, size: int) -> None:
    """As in a snapshot of the running disk that is put back, or on a shared folder whose server has lost power."""
    written = Random(1).randbytes(9000)
    machine.append(LOG, written)
    machine.send()
    machine.append(LOG, b"never sent")
    machine.die()
    lost = bytearray((machine.folder / LOG).read_bytes()[:size])
    lost[: min(PAGE, size)] = bytes(min(PAGE, size))
    (machine.folder / LOG).write_bytes(lost)
    assert machine.start().decision is Decision.CONTINUE
    assert machine.content()[LOG] == b"one" + written


def test_a_file_that_was_cut_takes_nothing_from_one_that_was_written_again(machine: Machine) -> None:
    machine.append("topics/t.full/00000000.log", b"first")
    for path in (LOG, "topics/t.full/00000000.log"):
        machine.append(path, b"-half of a batch")  # the disk is full
    machine.send()
    machine.cut("topics/t.full/00000000.log", 5)
    machine.cut(LOG, 3)
    machine.append(LOG, b"acknowledged, and longer than the half")
    before = machine.content()
    machine.die()
    machine.start()
    assert machine.content() == before | {"topics/t.full/00000000.log": b"first-half of a batch"}
    machine.send_difference()
    other = another(machine)
    other.start()
    assert other.content() == machine.content()


def test_a_compaction_that_was_finished_while_the_store_was_away_is_none_that_is_missing(machine: Machine) -> None:
    carried = machine.folder / "topics/t.orders/carried.000001"
    machine.append("topics/t.orders/carried.000001.tmp", b"carried")
    reserve_ids(machine, 1000)
    machine.send()
    machine.files.rename(carried.with_name("carried.000001.tmp"), carried)
    reserve_ids(machine, 2000)
    before = machine.content()
    machine.die()
    machine.start()
    assert (machine.content(), machine.settled.aside) == (before, None)
    assert machine.node_json() == ("node-of-a", 2000)


def test_a_copy_from_before_in_the_same_boot_gets_what_it_lacks_and_moves_its_message_ids_on(
    machine: Machine, tmp_path: Path
) -> None:
    reserve_ids(machine, 1000)
    machine.send()
    shutil.copytree(machine.folder, tmp_path / "copy")
    machine.append(LOG, b"two")
    reserve_ids(machine, 2000)
    machine.send()
    machine.die()
    copy = Machine(tmp_path / "copy", machine.objects)
    assert copy.start().decision is Decision.CONTINUE
    assert copy.content() == machine.content()
    assert copy.node_json() == ("node-of-a", 2000 + IDS_AHEAD)
