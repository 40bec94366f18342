"""The simulated disk keeps what was synced, and forgets, fails and stops as told."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from tests.simulation.disk import CHANGING, DATA_PATH, PAGE, Crash, SimulatedDisk, Stopped

A, B = DATA_PATH / "a", DATA_PATH / "b"
POWER_CUTS = [crash for crash in Crash if crash.is_power_cut]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def outcomes(prepare: object, crash: Crash, path: Path = A) -> set[bytes | None]:
    """Return what may be left of a file, by many random crashes."""
    found: set[bytes | None] = set()
    assert callable(prepare)
    for seed in range(60):
        disk = SimulatedDisk()
        prepare(disk)
        disk.crash(crash, Random(seed))
        found.add(disk.read(path) if disk.exists(path) else None)
    return found


def made_durable(disk: SimulatedDisk, data: bytes = b"old") -> None:
    disk.replace(A, data)


def appended(disk: SimulatedDisk) -> None:
    made_durable(disk)
    descriptor = disk.open_to_write(A)
    disk.write_fully(descriptor, [b"new"], 3)


def test_reads_what_was_written(disk: SimulatedDisk) -> None:
    disk.write_new(A, b"data")
    descriptor = disk.open_to_write(A)
    assert disk.write_at(descriptor, [b"ta", b"da"], 2) == 4
    assert disk.read(A) == b"datada"
    assert disk.size(descriptor) == disk.size_of(A) == 6
    disk.truncate(descriptor, 1)
    assert disk.read(A) == b"d"
    disk.close(descriptor)
    disk.rename(A, B)
    assert disk.names_in(DATA_PATH) == ["b"]
    disk.unlink(B)
    assert not disk.exists(B)


@pytest.mark.parametrize("call", ["open_to_read", "unlink", "size_of", "names_in", "sync_folder"])
def test_calls_on_a_missing_file_fail(disk: SimulatedDisk, call: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(disk, call)(A)


def test_closed_descriptor_is_of_no_use(disk: SimulatedDisk) -> None:
    descriptor = disk.open_to_write(A)
    disk.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.close(descriptor)


def test_folder_is_locked_until_it_is_closed_or_the_process_ends(disk: SimulatedDisk) -> None:
    lock = disk.lock_folder(DATA_PATH)
    with pytest.raises(BlockingIOError):
        disk.lock_folder(DATA_PATH)
    disk.close(lock)
    disk.lock_folder(DATA_PATH)
    disk.crash(Crash.KILL, Random(0))
    disk.lock_folder(DATA_PATH)
    assert disk.open_descriptors() == [DATA_PATH]


# Crashes


def test_everything_outlives_the_process() -> None:
    assert outcomes(appended, Crash.KILL) == {b"oldnew"}


@pytest.mark.parametrize("crash", POWER_CUTS)
def test_what_was_synced_outlives_a_power_cut(crash: Crash) -> None:
    assert outcomes(made_durable, crash) == {b"old"}


def test_unsynced_bytes_are_forgotten_all_or_in_part() -> None:
    assert outcomes(appended, Crash.FORGETS_ALL) == {b"old"}
    assert {b"old", b"oldn", b"oldnew"} <= outcomes(appended, Crash.FORGETS_LATEST)
    assert outcomes(appended, Crash.FORGETS_ANY) == {b"old", b"oldnew", b"old\0\0\0"}


def test_pages_are_kept_in_any_order() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        made_durable(disk, b"a" * 3 * PAGE)
        disk.write_fully(disk.open_to_write(A), [b"b" * 3 * PAGE], 0)

    left = {bytes(data[page] for page in (0, PAGE, 2 * PAGE)) for data in outcomes(prepare, Crash.FORGETS_ANY) if data}
    assert left == {b"aaa", b"aab", b"aba", b"abb", b"baa", b"bab", b"bba", b"bbb"}
    left = {
        bytes(data[page] for page in (0, PAGE, 2 * PAGE)) for data in outcomes(prepare, Crash.FORGETS_LATEST) if data
    }
    assert left == {b"aaa", b"baa", b"bba", b"bbb"}


def test_truncation_may_be_forgotten() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        made_durable(disk)
        disk.truncate(disk.open_to_write(A), 1)

    assert outcomes(prepare, Crash.FORGETS_ALL) == {b"old"}
    assert outcomes(prepare, Crash.FORGETS_ANY) == {b"old", b"o"}


def test_synced_file_without_a_synced_name_may_be_gone() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        disk.write_new(A, b"data")
        disk.sync_path(A)

    assert outcomes(prepare, Crash.FORGETS_ALL) == {None}
    assert outcomes(prepare, Crash.FORGETS_ANY) == {None, b"data"}


def test_rename_is_never_half_done() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        made_durable(disk)
        disk.write_new(B, b"new")
        disk.sync_path(B)
        disk.rename(B, A)

    for crash in POWER_CUTS:
        assert outcomes(prepare, crash) <= {b"old", b"new"}


def test_unlinked_file_may_come_back() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        made_durable(disk)
        disk.unlink(A)

    assert outcomes(prepare, Crash.FORGETS_ANY) == {None, b"old"}


def test_folder_that_is_forgotten_takes_its_files_along() -> None:
    folder = DATA_PATH / "folder"

    def prepare(disk: SimulatedDisk) -> None:
        disk.make_folder(folder)
        disk.replace(folder / "a", b"data")

    assert outcomes(prepare, Crash.FORGETS_ALL, folder / "a") == {None}
    assert outcomes(prepare, Crash.FORGETS_ANY, folder / "a") == {None, b"data"}


def test_killed_process_leaves_unsynced_what_was_unsynced(disk: SimulatedDisk) -> None:
    appended(disk)
    disk.crash(Crash.KILL, Random(0))
    assert disk.read(A) == b"oldnew"
    disk.crash(Crash.FORGETS_ALL, Random(0))
    assert disk.read(A) == b"old"


def test_without_fdatasync_nothing_lasts(disk: SimulatedDisk) -> None:
    disk.syncs_files = False
    made_durable(disk)
    disk.crash(Crash.FORGETS_ALL, Random(0))
    assert disk.read(A) == b""


# Failures


def test_after_a_failed_sync_another_one_brings_nothing_back() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        disk.random = Random(0)  # this seed keeps no page
        appended(disk)
        disk.fail(errno.EIO, "sync")
        with pytest.raises(OSError, match="Input/output error"):
            disk.sync_path(A)
        disk.heal()
        disk.sync_path(A)

    for crash in POWER_CUTS:
        assert outcomes(prepare, crash) == {b"old\0\0\0"}


def test_any_call_fails_by_its_number_or_kind(disk: SimulatedDisk) -> None:
    made_durable(disk)
    calls = len(disk.calls)
    for number in range(1, calls + 1):
        other = SimulatedDisk()
        other.fail_at(number, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            made_durable(other)
    for kind in {call.kind for call in disk.calls}:
        other = SimulatedDisk()
        other.fail(errno.ENOSPC, kind)
        with pytest.raises(OSError, match="No space left"):
            made_durable(other)


def test_failing_write_may_have_written_something(disk: SimulatedDisk) -> None:
    descriptor = disk.open_to_write(A)
    disk.fail(errno.EIO, "write", bytes_written=2)
    with pytest.raises(OSError, match="Input/output error"):
        disk.write_at(descriptor, [b"data"], 0)
    assert disk.read(A) == b"da"


def test_full_disk_takes_what_fits_and_then_says_so(disk: SimulatedDisk) -> None:
    disk.replace(B, b"12345678")
    disk.capacity = 10
    descriptor = disk.open_to_write(A)
    assert disk.write_at(descriptor, [b"data"], 0) == 2
    with pytest.raises(OSError, match="No space left"):
        disk.write_at(descriptor, [b"ta"], 2)
    assert disk.write_at(descriptor, [b"DA"], 0) == 2
    disk.unlink(B)
    assert disk.write_at(descriptor, [b"ta"], 2) == 2


def test_short_writes(disk: SimulatedDisk) -> None:
    disk.most_per_write = 3
    disk.write_new(A, b"0123456789")
    assert disk.read(A) == b"0123456789"
    assert [call.kind for call in disk.calls].count("write") == 4


def test_machine_stops_at_any_call_and_stays_stopped() -> None:
    whole = SimulatedDisk()
    made_durable(whole)
    for call in whole.calls:
        disk = SimulatedDisk(stop_at=call.number, torn=0.5)
        with pytest.raises(Stopped):
            made_durable(disk)
        with pytest.raises(Stopped):
            disk.unlink(A)
        disk.crash(Crash.KILL, Random(0))
        assert not disk.exists(A) or disk.read(A) == b"old"
        assert disk.exists(A) == (call.kind == "sync folder")  # the sync of the folder comes after the rename


def test_calls_that_only_look_change_nothing(disk: SimulatedDisk) -> None:
    made_durable(disk)
    looking = {call.kind for call in disk.calls} - CHANGING
    assert looking == {"close"}


def test_reads_may_need_the_disk(disk: SimulatedDisk) -> None:
    made_durable(disk)
    descriptor = disk.open_to_read(A)
    assert disk.read_cached_at(descriptor, 3, 0) == b"old"
    disk.uncached = 1.0
    with pytest.raises(BlockingIOError):
        disk.read_cached_at(descriptor, 3, 0)
