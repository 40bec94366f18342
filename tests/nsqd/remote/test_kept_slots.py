"""How often a store is asked for the bytes of a slot, and what the copy on the disk may cost."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pytest
from google_crc32c import value as crc32c

from nsqcommon.remote.names import Run, root_name, slot_name
from nsqcommon.remote.root import FilePart
from nsqd.log.files import Buffers, Files
from nsqd.remote.fetching import Fetch
from nsqd.remote.kept_slots import SMALLEST, KeptSlots
from nsqd.remote.object_store import OnUnknown, ignore
from tests.nsqd.remote.machines import JOURNAL, LOG, Machine
from tests.support.object_stores import MemoryStore, Objects
from tests.support.open_files import descriptors

KB = 1 << 10
RUN = Run(7, "a" * 16)


def slot(number: int, run: Run = RUN) -> str:
    return slot_name(run, number)


def data_of(number: int, size: int = SMALLEST) -> bytes:
    return bytes([number % 256]) * size


@pytest.fixture
def kept(tmp_path: Path) -> KeptSlots:
    return KeptSlots(tmp_path, Files())


# Taking a node over


class Counting(MemoryStore):
    """Counts the bytes that it sends of each object."""

    def __init__(self, objects: Objects, sent: Counter[str], *, on_unknown: OnUnknown = ignore) -> None:
        super().__init__(objects, on_unknown=on_unknown)
        self.sent = sent

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        found = super().get(name, start, end)
        with self.objects.lock:
            self.sent[name] += len(found or b"")
        return found


def counted(machine: Machine) -> Counter[str]:
    """Return the bytes of each object that this machine gets from now on."""
    sent: Counter[str] = Counter()
    machine.open_store = lambda on_unknown=ignore: Counting(machine.objects, sent, on_unknown=on_unknown)  # type: ignore[method-assign]
    return sent


def fill(machine: Machine, slots: int = 3) -> None:
    for number in range(slots):
        machine.append(LOG, data_of(number, 2 * SMALLEST))
        machine.append(JOURNAL, b", and more")
        machine.send()


def another(machine: Machine) -> Machine:
    return Machine(machine.folder.parent / "b", machine.objects)


def large_slots(objects: Objects) -> dict[str, int]:
    sizes = {name: len(data) for name, data in objects.contents.items()}
    return {name: size for name, size in sizes.items() if name.startswith("wal/") and size >= SMALLEST}


def test_a_takeover_gets_the_bytes_of_each_large_slot_once(machine: Machine) -> None:
    fill(machine)
    new = another(machine)
    sent = counted(new)
    new.start()
    assert new.content() == machine.content()
    large = large_slots(machine.objects)
    assert len(large) == 3
    assert {name: sent[name] for name in large} == large


def test_a_takeover_from_an_owner_that_sweeps_meanwhile_has_what_the_owner_had(machine: Machine) -> None:
    fill(machine)
    new = another(machine)
    lock = Lock()

    class Sweeps(MemoryStore):
        """Lets the owner write, make a root and sweep when the first part is asked for, of a slot that wasn't kept."""

        def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
            with lock:
                if end is not None and not machine.job.stored:
                    machine.append(LOG, b"the end")
                    machine.send()
                    machine.make_root()
                    while machine.job.step():
                        machine.send()
            return super().get(name, start, end)

    before = large_slots(machine.objects)
    new.open_store = lambda on_unknown=ignore: Sweeps(machine.objects, on_unknown=on_unknown)  # type: ignore[method-assign]
    claimed = new.start()
    assert new.content() == machine.content()
    assert machine.job.stored == 1
    assert not before.keys() & machine.objects.contents.keys(), "swept"
    assert {it.run.number for it in claimed.path} == {2}


class Unnamed(Files):
    """Counts the files without a name."""

    opened = 0

    def open_unnamed(self, folder: Path) -> int:
        self.opened += 1
        return super().open_unnamed(folder)


def test_a_restart_keeps_nothing_of_what_its_disk_has(machine: Machine) -> None:
    fill(machine)
    machine.die()
    machine.disk = disk = Unnamed()
    machine.start()
    assert disk.opened == 0
    other = another(machine)
    other.start()
    fill(other)
    machine.die()
    machine.start()
    assert disk.opened == 1
    assert machine.content() == other.content()


def test_nothing_of_it_is_left_in_the_data_path(machine: Machine) -> None:
    fill(machine)
    before = descriptors()
    new = another(machine)
    new.start()
    assert sorted(os.listdir(new.folder)) == [JOURNAL, "node.json", "remote.json", "topics"]
    held = [os.readlink(f"/proc/self/fd/{it}") for it in descriptors() - before]
    assert not [it for it in held if it.endswith("(deleted)")]


class Spoils(Files):
    """Changes a byte of whatever has no name."""

    def open_unnamed(self, folder: Path) -> int:
        self.unnamed = super().open_unnamed(folder)
        return self.unnamed

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        data = super().read_at(descriptor, size, offset)
        return data[:-1] + b"!" if descriptor == self.unnamed else data


def test_a_copy_that_the_disk_has_damaged_is_asked_for_again(tmp_path: Path) -> None:
    objects = Objects()
    objects.contents[slot(0)] = data = data_of(1)
    kept = KeptSlots(tmp_path, Spoils())
    kept.keep(slot(0), data)
    sent: Counter[str] = Counter()
    fetch = Fetch(Counting(objects, sent), kept=kept)
    part = FilePart(slot(0), 10, 20, crc32c(data[10:30]))
    assert fetch.part(part) == fetch.part(part) == data[10:30]
    assert sent == {slot(0): 40}
    assert kept.get(slot(0), 0, 1) is None


class Full(Files):
    """A disk with room for so many bytes, which it doesn't know before. What has no name is given back when it is closed."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.used: Counter[int] = Counter()

    def open_unnamed(self, folder: Path) -> int:
        descriptor = super().open_unnamed(folder)
        self.used[descriptor] = 0
        return descriptor

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        size = sum(map(len, buffers))
        if self.used.total() + size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.used[descriptor if descriptor in self.used else -1] += size
        return super().write_at(descriptor, buffers, offset)

    def close(self, descriptor: int) -> None:
        self.used.pop(descriptor, None)
        super().close(descriptor)


def test_a_disk_with_room_for_the_files_only_gets_the_room_of_the_copy_back(machine: Machine) -> None:
    fill(machine)
    new = another(machine)
    sent = counted(new)
    new.disk = disk = Full(500 * KB)
    new.start()
    assert new.content() == machine.content()
    large = large_slots(machine.objects)
    assert sum(large.values()) < sum(sent[name] for name in large) < 2 * sum(large.values())
    assert disk.used.keys() == {-1}


def test_a_full_disk_keeps_nothing_more(tmp_path: Path) -> None:
    disk = Full(2 * SMALLEST)
    kept = KeptSlots(tmp_path, disk)
    for number in range(4):
        kept.keep(slot(number), data_of(number))
    disk.room *= 10
    kept.keep(slot(9), data_of(9))
    assert [kept.get(slot(it), 0, 1) for it in (0, 1, 2, 3, 9)] == [None] * 5
    assert disk.used.total() == 0


class Small(Files):
    """A disk with so many bytes free, of which open files without a name need some."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    def free_bytes(self, folder: Path) -> int:
        return self.free


def test_a_copy_never_has_more_bytes_than_the_disk_has_left(tmp_path: Path) -> None:
    disk = Small(5 * SMALLEST)
    kept = KeptSlots(tmp_path, disk, file_size=2 * SMALLEST)
    for number in range(4):
        kept.keep(slot(number), data_of(number))
        disk.free -= SMALLEST if kept.get(slot(number), 0, 1) else 0
    assert (kept.size, disk.free) == (2 * SMALLEST, 3 * SMALLEST)


def test_a_disk_that_cannot_be_read_means_to_ask_the_store(tmp_path: Path) -> None:
    class Fails(Files):
        def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    kept = KeptSlots(tmp_path, Fails())
    kept.keep(slot(0), data_of(0))
    assert kept.get(slot(0), 0, 10) is None


# What is kept


def test_bytes_of_kept_slots_come_back(kept: KeptSlots) -> None:
    for number in range(3):
        kept.keep(slot(number), data_of(number) + b"the end")
    assert kept.get(slot(1), SMALLEST - 1, SMALLEST + 3) == b"\1the"
    assert kept.get(slot(2), SMALLEST + 4, SMALLEST + 100) == b"end"
    assert kept.get(slot(3), 0, 1) is None


def test_small_slots_and_other_objects_are_not_kept(kept: KeptSlots) -> None:
    kept.keep(slot(0), data_of(0, SMALLEST - 1))
    kept.keep(root_name(RUN), data_of(0))
    kept.keep("node", data_of(0))
    assert kept.size == 0


def test_threads_of_a_claim_do_not_disturb_each_other(tmp_path: Path) -> None:
    kept = KeptSlots(tmp_path, Files(), most=20 * SMALLEST, file_size=2 * SMALLEST)

    def keep_and_get(number: int) -> set[int]:
        kept.keep(slot(number), data_of(number))
        return set(kept.get(slot(number), 0, SMALLEST) or b"")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(keep_and_get, range(60)))
    assert all(it in ({number}, set()) for number, it in enumerate(found)), "a slot may be dropped before it is got"
    assert 18 * SMALLEST <= kept.size <= 20 * SMALLEST


def test_a_slot_that_is_read_again_is_kept_once(kept: KeptSlots) -> None:
    for _ in range(3):
        kept.keep(slot(0), data_of(0))
    assert kept.size == SMALLEST


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    kept = KeptSlots(tmp_path, Files(), most=6 * SMALLEST, file_size=2 * SMALLEST)
    for number in range(9):
        kept.keep(slot(number), data_of(number))
        assert kept.size <= 6 * SMALLEST
    assert [kept.get(slot(it), 0, 1) is not None for it in range(9)] == [False] * 4 + [True] * 5


def test_one_slot_may_be_larger_than_a_file_but_not_than_all(tmp_path: Path) -> None:
    kept = KeptSlots(tmp_path, Files(), most=6 * SMALLEST, file_size=2 * SMALLEST)
    kept.keep(slot(0), data_of(0, 5 * SMALLEST))
    kept.keep(slot(1), data_of(1, 7 * SMALLEST))
    assert kept.get(slot(0), 5 * SMALLEST - 1, 5 * SMALLEST) == b"\0"
    assert kept.get(slot(1), 0, 1) is None


def test_a_standby_that_reads_on_has_what_came_since_the_newest_root(tmp_path: Path) -> None:
    disk = Full(1 << 30)
    kept = KeptSlots(tmp_path, disk, file_size=2 * SMALLEST)
    for number in range(7, 20):
        run = Run(number, "a" * 16)
        kept.keep(root_name(run), b"a root")
        assert kept.size == 0
        for at in range(3):
            kept.keep(slot(at, run), data_of(number))
        assert [kept.get(slot(it, run), 0, 1) for it in range(3)] == [bytes([number])] * 3
    assert disk.used.total() == kept.size == 3 * SMALLEST


def test_a_file_stays_while_a_slot_in_it_is_needed(kept: KeptSlots) -> None:
    later = Run(8, "a" * 16)
    for run in (RUN, later):
        kept.keep(slot(0, run), data_of(run.number))
    kept.keep(root_name(later), b"a root")
    assert (kept.get(slot(0), 0, 1), kept.get(slot(0, later), 0, 1)) == (None, b"\x08")


def test_nothing_is_kept_by_a_thread_of_the_claim_that_comes_late(tmp_path: Path) -> None:
    disk = Full(1 << 30)
    kept = KeptSlots(tmp_path, disk)
    kept.keep(slot(0), data_of(0))
    assert kept.close()
    kept.keep(slot(1), data_of(1))
    assert (kept.size, kept.close(), disk.used) == (0, False, {})


def test_kept_bytes_are_not_in_memory(kept: KeptSlots) -> None:
    kept.keep(slot(0), data_of(0))
    tracemalloc.start()
    for number in range(1, 20):
        kept.keep(slot(number), data_of(number, 1 << 20))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.size > 19 << 20
    assert used < 1 << 20
