"""Roots of an owner that goes on: what they have, when they count, and what may be deleted then."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import Event

import pytest

from nsqcommon.remote.names import Run
from nsqd.log.files import Files
from nsqd.remote.claiming import read_chain
from nsqd.remote.fetching import Abandoned
from nsqd.remote.fsck import StoreExamination
from nsqd.remote.local_files import LocalFiles
from nsqd.remote.local_mark import Decision, decode_mark
from nsqd.remote.object_store import Created, StoreFault
from nsqd.remote.rate_limit import RateLimit
from nsqd.remote.root_job import NAME, PAUSE, RootJob, begin_chain
from nsqd.remote.root_making import Storing
from nsqd.remote.second_names import SecondNames
from nsqd.remote.sweep import ROOT_SECONDS, UNUSED_FOR
from tests.nsqd.remote.machines import JOURNAL, LOG, Machine
from tests.support.object_stores import MemoryStore

LIMIT = 100.0  # seconds until a test gives up waiting


def make_root(machine: Machine) -> None:
    """Make the root that is due after five minutes, and have its commit confirmed."""
    machine.clock.now += ROOT_SECONDS
    assert machine.job.step()
    machine.send()
    machine.job.step()


def sweep(machine: Machine) -> None:
    while machine.job.step():
        pass


def names(machine: Machine, prefix: str) -> list[str]:
    return sorted(it for it in machine.objects.contents if it.startswith(prefix))


def adopted(machine: Machine, name: str = "b") -> Machine:
    other = Machine(machine.folder.parent / name, machine.objects)
    assert other.start().decision is Decision.ADOPT
    return other


def test_a_root_has_the_files_and_the_next_owner_reads_no_slots_before_it(machine: Machine) -> None:
    make_root(machine)
    machine.append(LOG, b", two")
    machine.send()
    other = adopted(machine)
    assert other.content() == {JOURNAL: b"journal", LOG: b"one, two"}
    assert [it.run.number for it in other.claimed.path] == [2]


def test_nothing_is_made_while_nothing_was_written(machine: Machine) -> None:
    make_root(machine)
    machine.clock.now += 10 * ROOT_SECONDS
    sweep(machine)
    assert not machine.job.step(), "the commit is no reason for another root"
    machine.append(LOG, b", two")
    machine.send()
    assert machine.job.step()


def test_what_a_commit_replaces_is_swept_but_for_fences_and_marks(machine: Machine) -> None:
    make_root(machine)
    sweep(machine)
    assert [len(it) for it in (names(machine, "wal/"), names(machine, "gone/"))] == [2, 2], "a fence and the commit"
    assert names(machine, "hint") == ["hint"]
    assert adopted(machine).content() == {JOURNAL: b"journal", LOG: b"one"}


def test_folds_that_no_root_needs_go_an_hour_later(machine: Machine) -> None:
    make_root(machine)
    first = names(machine, "fold/")
    machine.append(LOG, Random(1).randbytes(1000))
    for path in (JOURNAL, "node.json"):
        machine.files.replace(machine.folder / path, b"x" * 100)
    machine.send()
    make_root(machine)
    sweep(machine)
    assert set(first) <= set(names(machine, "fold/"))
    machine.clock.now += UNUSED_FOR
    sweep(machine)
    assert not set(first) & set(names(machine, "fold/"))
    assert adopted(machine).content() == machine.content()


def test_a_fold_that_is_mostly_dead_is_written_again_by_the_next_owner_too(machine: Machine) -> None:
    machine.append("topics/t.small/00000000.log", b"small")
    machine.append("topics/t.large/00000000.log", Random(1).randbytes(1000))
    machine.send()
    make_root(machine)
    first = names(machine, "fold/")
    other = adopted(machine)
    other.send_difference()
    other.unlink("topics/t.large/00000000.log")
    other.send()
    assert other.job.step()
    other.send()
    sweep(other)
    other.clock.now += UNUSED_FOR
    sweep(other)
    assert not set(first) & set(names(machine, "fold/"))
    assert adopted(other, "c").content()["topics/t.small/00000000.log"] == b"small"


def test_a_root_that_is_stored_and_not_committed_does_not_count(machine: Machine) -> None:
    machine.clock.now += ROOT_SECONDS
    machine.job.step()
    other = adopted(machine)
    assert other.content() == {JOURNAL: b"journal", LOG: b"one"}
    assert [it.run.number for it in other.claimed.path] == [0, 1]


def test_the_mark_says_which_root_is_on_the_disk_before_its_commit(machine: Machine) -> None:
    machine.clock.now += ROOT_SECONDS
    machine.job.step()
    assert decode_mark((machine.folder / "remote.json").read_bytes()).root == Run(2, machine.claimed.run.writer)
    machine.die()
    assert machine.start().decision is Decision.CONTINUE


def test_a_bit_that_the_disk_has_flipped_never_gets_into_a_root(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    (machine.folder / LOG).write_bytes(b"onf")
    make_root(machine)
    assert "topics/t.orders/00000000.log has other bytes than were written at 0" in caplog.text
    sweep(machine)
    assert adopted(machine).content()[LOG] == b"one"


def test_a_file_that_was_removed_since_comes_from_the_slots(machine: Machine) -> None:
    end_run = machine.owner.end_run

    def end_run_and_remove() -> object:
        ended = end_run()
        machine.unlink(LOG)
        return ended

    machine.owner.end_run = end_run_and_remove  # type: ignore[method-assign, assignment]
    make_root(machine)
    sweep(machine)
    assert adopted(machine).content() == {JOURNAL: b"journal"}


def test_a_disk_that_refuses_to_sync_puts_the_root_off(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(machine.job.local.files, "sync_path", refuse)
        machine.clock.now += ROOT_SECONDS
        assert not machine.job.step()
        assert not machine.job.step(), "not at once again"
    machine.send()
    assert adopted(machine).claimed.path[0].run.number == 0
    machine.clock.now += ROOT_SECONDS
    assert machine.job.roots.is_busy is False


def test_after_an_adoption_a_root_is_made_at_once(machine: Machine) -> None:
    other = adopted(machine)
    other.send_difference()
    assert other.job.step()
    other.send()
    other.job.step()
    assert names(machine, "root/") == [f"root/{other.owner.run}"]


def test_topology_json_is_in_roots_only(machine: Machine) -> None:
    (machine.folder / "topology.json").write_bytes(b"names")
    make_root(machine)
    other = adopted(machine)
    assert (other.folder / "topology.json").read_bytes() == b"names"
    other.send_difference()
    other.die()
    (other.folder / "topology.json").write_bytes(b"")
    other.start()
    assert (other.settled.fetched, (other.folder / "topology.json").read_bytes()) == (0, b""), "its own are newer"


def test_after_a_clean_stop_the_next_owner_reads_no_slots(machine: Machine) -> None:
    machine.append(LOG, b", two")
    machine.pump()
    assert machine.job.close(timeout=10.0)
    other = Machine(machine.folder.parent / "b", machine.objects)
    other.start(takes_over=False)
    assert other.content() == {JOURNAL: b"journal", LOG: b"one, two"}
    assert [(it.run.number, it.end) for it in other.claimed.path] == [(2, 1), (3, 0)], "the commit, and an empty run"
    assert other.pauses == 0


class Noted(RateLimit):
    """Notes what is limited, and lets it start."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.sizes: list[int] = []

    def start(self, size: int, now: float) -> float:
        self.sizes.append(size)
        return now


def test_roots_are_limited_unless_somebody_waits_for_them(machine: Machine) -> None:
    machine.job = RootJob(
        *(machine.owner, machine.claimed, machine.open_store(), machine.job.local),
        clock=machine.clock,
        limit=(limit := Noted()),
    )
    make_root(machine)
    stored = [*names(machine, "fold/"), *names(machine, "root/")]
    assert limit.sizes == [len(machine.objects.contents[it]) for it in stored]
    limit.sizes.clear()
    machine.append(LOG, b", two")
    machine.owner.drop()
    assert machine.job.step(), "publishers wait for what was dropped"
    machine.append(LOG, b", three")
    machine.pump()
    assert machine.job.close(timeout=10.0), "and the next owner for this"
    assert limit.sizes == []


def test_a_node_that_somebody_has_deleted_from_the_store_gets_no_more_roots(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    del machine.objects.contents["node"]
    machine.clock.now += ROOT_SECONDS
    assert not machine.job.step()
    assert machine.job.fault.startswith(
        "a root could not be made, trying again later: the store has no such node any more"
    )
    assert names(machine, "root/") == []
    machine.append(LOG, b", two")
    machine.pump()
    assert not machine.job.close(timeout=10.0)
    assert "stopped without a last root" in caplog.text


def test_a_store_that_cannot_say_whether_it_has_the_node_puts_the_root_off(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: MemoryStore, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        raise StoreFault("no answer")

    machine.clock.now += ROOT_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "get", refuse)
        assert not machine.job.step()
    machine.clock.now += PAUSE
    assert machine.job.step()
    assert machine.job.fault == ""


def test_a_stop_at_a_store_that_is_away_ends_in_time(machine: Machine) -> None:
    machine.append(LOG, b", two")
    assert not machine.job.close(timeout=0.0)
    machine.die()
    machine.start()
    machine.send_difference()
    assert adopted(machine).content()[LOG] == b"one, two"


class Hanging(MemoryStore):
    """A store that hangs as soon as an object of this kind is created."""

    kind = "fold/"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.objects)
        self.hangs, self.ends = Event(), Event()

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if name.startswith(self.kind):
            self.hangs.set()
            self.ends.wait()
        return super().create(name, data)


class HangingAtRoots(Hanging):
    kind = "root/"


def job_with(machine: Machine, store: MemoryStore) -> RootJob:
    local = LocalFiles(machine.folder, Files())
    return RootJob(machine.owner, machine.claimed, store, local, clock=machine.clock)


def ends(thread: threading.Thread) -> bool:
    thread.join(LIMIT)
    return not thread.is_alive()


def test_a_stop_does_not_wait_for_a_store_that_hangs_while_the_last_root_is_stored(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqd.remote.root_job._LAST_REQUEST", 0.01)
    machine.pump()
    store = Hanging(machine)
    done: list[bool] = []
    job = job_with(machine, store)
    closing = threading.Thread(target=lambda: done.append(job.close(timeout=0.1)), daemon=True)
    closing.start()
    assert store.hangs.wait(LIMIT)
    assert ends(closing)
    assert done == [False]
    store.ends.set()


def test_a_start_can_be_stopped_while_its_last_object_is_stored(machine: Machine) -> None:
    machine.die()
    (machine.folder / LOG).write_bytes(Random(1).randbytes(9 << 20))
    machine.start()
    store, is_stopped = HangingAtRoots(machine), Event()
    job = job_with(machine, store)

    def begin() -> None:
        with pytest.raises(Abandoned):
            begin_chain(machine.owner, machine.claimed, job, is_stopped=is_stopped.is_set)

    beginning = threading.Thread(target=begin, daemon=True)
    beginning.start()
    assert store.hangs.wait(LIMIT)
    is_stopped.set()
    assert ends(beginning)
    store.ends.set()


def test_a_start_that_stores_all_of_a_data_path_can_be_stopped(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqd.remote.difference.MOST_BODY", 1)
    machine.append(LOG, b", two")
    machine.die()
    machine.start()
    job = RootJob(machine.owner, machine.claimed, machine.open_store(), machine.job.local, clock=machine.clock)
    with pytest.raises(Abandoned):
        begin_chain(machine.owner, machine.claimed, job, is_stopped=lambda: True)
    assert names(machine, "root/") == []
    machine.die()
    machine.start()
    machine.send_difference()
    assert adopted(machine).content()[LOG] == b"one, two"


def test_a_fenced_owner_leaves_nothing(machine: Machine) -> None:
    other = adopted(machine)
    machine.append(LOG, b", two")
    machine.send()
    before = dict(machine.objects.contents)
    assert not machine.job.close(timeout=10.0)
    assert machine.objects.contents == before
    assert other.owner.fenced is None


# After the store was away for long


def test_what_the_owner_has_dropped_gets_into_the_store_by_a_root(machine: Machine) -> None:
    machine.append(LOG, b", two")
    machine.owner.drop()
    assert machine.job.step()
    machine.append(LOG, b", three")
    machine.send()
    other = adopted(machine)
    assert other.content() == {JOURNAL: b"journal", LOG: b"one, two, three"}
    assert other.claimed.catalog.root.run == machine.owner.run
    machine.job.step()
    sweep(machine)
    assert len(names(machine, "root/")) == 1


def test_a_copy_of_the_disk_from_before_such_a_root_is_not_continued(machine: Machine) -> None:
    copy = (machine.folder / "remote.json").read_bytes()
    machine.append(LOG, b", two")
    machine.owner.drop()
    machine.job.step()
    machine.send()
    machine.die()
    (machine.folder / "remote.json").write_bytes(copy)
    assert machine.start().decision is Decision.ADOPT


@pytest.fixture
def small_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a fold for each file of a few bytes, one stored after the other."""
    monkeypatch.setattr("nsqd.remote.root_job.FOLDS_AT_ONCE", 1)
    for module in ("catalog", "root_making"):
        monkeypatch.setattr(f"nsqd.remote.{module}.MOST_FOLD", 8)


def when_stored(machine: Machine, monkeypatch: pytest.MonkeyPatch, prefix: str, action: Callable[[], None]) -> None:
    """Do something when the root in the making has stored the first object with this prefix."""
    create = Storing.create
    pending = [action]

    def create_and_act(storing: Storing, name: str, data: bytes | Sequence[bytes]) -> None:
        create(storing, name, data)
        if name.startswith(prefix) and pending:
            pending.pop()()

    monkeypatch.setattr(Storing, "create", create_and_act)


def test_a_store_that_takes_what_was_dropped_is_not_silent(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled_since: list[float] = []
    machine.append(LOG, b", two")
    machine.owner.drop()
    when_stored(machine, monkeypatch, "fold/", lambda: stalled_since.append(machine.owner.stalled_since))
    machine.clock.now += 60.0
    assert machine.job.step()
    assert stalled_since == [machine.clock.now]


@pytest.mark.usefixtures("small_folds")
def test_a_root_in_the_making_gives_way_to_one_that_the_chain_waits_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit could not be sent before that one is stored, and until then the store would seem to be silent."""

    def write_too_much() -> None:
        machine.append(LOG, b", two")
        machine.owner.drop()

    when_stored(machine, monkeypatch, "fold/", write_too_much)
    machine.clock.now += ROOT_SECONDS
    assert machine.job.step()
    assert names(machine, "root/") == []
    machine.send()
    assert machine.job.step()
    machine.send()
    machine.job.step()
    other = adopted(machine)
    assert other.content()[LOG] == b"one, two"
    assert len(names(machine, "root/")) == 1


@pytest.mark.usefixtures("small_folds")
def test_a_file_that_is_removed_while_that_root_is_made_is_in_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy node some file is removed each second, and the chain can't go on before there is a root."""
    machine.append("journal.000002", b"a later one")
    machine.append(LOG, b", two")
    machine.owner.drop()
    when_stored(machine, monkeypatch, "fold/", lambda: machine.unlink(LOG))
    assert machine.job.step()
    machine.messenger.send_some(1)
    assert read_chain("orders", machine.open_store).catalog.files[LOG].size == len(b"one, two")
    machine.send()
    assert LOG not in adopted(machine).content()
    assert not (machine.folder / "unsent").exists()


def test_a_disk_without_links_does_without_second_names(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(files: Files, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Files, "link", refuse)
    machine.append(LOG, b", two")
    machine.owner.drop()
    assert machine.job.step()
    machine.send()
    assert adopted(machine).content()[LOG] == b"one, two"


def test_files_that_are_removed_before_that_root_is_begun_are_not_in_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that stay get one second name each, or that would take so long that the next file is removed meanwhile."""
    paths = [f"topics/t.orders/carried.00000{number}" for number in range(5)]
    for path in [*paths, LOG]:
        machine.append(path, b", two")
    machine.owner.drop()
    begin_jump, link = machine.owner.begin_jump, Files.link
    removed, linked = [paths[0], paths[1]], list[str]()

    def begin_jump_and_remove() -> object:
        jump = begin_jump()
        if removed:
            machine.unlink(removed.pop())
        return jump

    def note_link(files: Files, source: Path, target: Path) -> None:
        link(files, source, target)
        linked.append(machine.job.local.name(source))

    monkeypatch.setattr(Files, "link", note_link)
    monkeypatch.setattr(machine.owner, "begin_jump", begin_jump_and_remove)
    assert machine.job.step()
    machine.send()
    assert sorted(linked) == sorted([paths[0], *paths[2:], LOG])
    assert adopted(machine).content() == {JOURNAL: b"journal", LOG: b"one, two", **dict.fromkeys(paths[2:], b", two")}


@pytest.mark.usefixtures("small_folds")
def test_folds_of_a_root_that_is_given_up_go_when_the_next_one_is_committed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.append("journal.000002", b"a later one")
    machine.append(LOG, b", two")
    machine.owner.drop()
    when_stored(machine, monkeypatch, "fold/", lambda: machine.cut(LOG, 1))
    assert not machine.job.step(), "its last write has failed, so it was cut"
    given_up = names(machine, "fold/")
    assert given_up
    machine.clock.now += PAUSE
    assert machine.job.step()
    machine.send()
    sweep(machine)
    assert names(machine, "fold/")[: len(given_up)] == given_up
    leftovers = StoreExamination(machine.open_store()).leftovers(read_chain("orders", machine.open_store))
    assert {*leftovers.orphans} >= {*given_up}, "so fsck --sweep deletes them if the owner dies before"
    machine.clock.now += UNUSED_FOR
    sweep(machine)
    assert not {*given_up} & {*names(machine, "fold/")}
    assert adopted(machine).content() == {JOURNAL: b"journal", "journal.000002": b"a later one", LOG: b"o"}


@pytest.mark.usefixtures("small_folds")
def test_second_names_that_a_killed_process_has_left_go_at_the_next_start(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        monkeypatch.setattr(SecondNames, "take_away", lambda names: None)
        raise Killed

    machine.append(LOG, b", two")
    machine.owner.drop()
    when_stored(machine, monkeypatch, "fold/", kill)
    with pytest.raises(Killed):
        machine.job.step()
    monkeypatch.undo()
    assert (machine.folder / "unsent").exists()
    machine.die()
    machine.start()
    assert not (machine.folder / "unsent").exists()


def test_a_clean_stop_leaves_in_the_store_what_was_dropped(machine: Machine) -> None:
    machine.pump()
    machine.append(LOG, b", two")
    machine.owner.drop()
    assert machine.job.close(timeout=10.0)
    assert adopted(machine).content()[LOG] == b"one, two"


def test_a_clean_stop_while_that_root_is_made_makes_another_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise Abandoned

    machine.pump()
    machine.append(LOG, b", two")
    machine.owner.drop()
    when_stored(machine, monkeypatch, "fold/", stop)
    with pytest.raises(Abandoned):
        machine.job.step()
    assert machine.owner.may_jump
    assert machine.job.close(timeout=10.0)
    assert adopted(machine).content()[LOG] == b"one, two"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_root_job_that_was_given_up_changes_the_data_path_no_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    syncs, disk_answers = Event(), Event()

    def hang(self: LocalFiles, paths: object) -> None:
        syncs.set()
        disk_answers.wait(30)

    monkeypatch.setattr(LocalFiles, "sync", hang)
    before = (machine.folder / "remote.json").read_bytes()
    machine.clock.now += ROOT_SECONDS
    others = {*threading.enumerate()}  # nodes of other tests, which were killed, have threads of that name
    machine.job.start()
    (thread,) = (it for it in threading.enumerate() if it.name == NAME and it not in others)
    assert syncs.wait(30)
    if is_lost:
        machine.job.leave()
    else:
        assert not machine.job.close(0.0)
    disk_answers.set()
    thread.join(30)
    assert not thread.is_alive()
    assert (machine.folder / "remote.json").read_bytes() == before
    assert machine.job.bug is None


def test_an_owner_that_is_overtaken_while_its_files_are_synced_leaves_the_mark_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(self: LocalFiles, paths: object) -> None:
        monkeypatch.undo()
        adopted(machine)
        machine.append(LOG, b", two")
        machine.send()
        assert machine.owner.fenced is not None

    before = (machine.folder / "remote.json").read_bytes()
    machine.clock.now += ROOT_SECONDS
    monkeypatch.setattr(LocalFiles, "sync", sync)
    with pytest.raises(Abandoned):
        machine.job.step()
    assert (machine.folder / "remote.json").read_bytes() == before
