"""Single flipped bits in files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.log.reading.compacted import number_of_name, scan_compacted
from nsqd.log.record import decode_header
from nsqd.log.segment import INDEX_SUFFIX
from tests.nsqd.log.harness import opened
from tests.simulation.data_paths import BODIES, WAITING, FastFiles, make_compacted, run_fsck, snapshot
from tests.simulation.flips import flips
from tests.support.lengths import sized
from tests.support.quick import unless_quick

# NSQ_FLIPS=100000 NSQ_SEED=7 tries so many, with this seed.
POSITIONS = int(os.environ.get("NSQ_FLIPS") or sized(short=150, long=5000))
PARTS = 5 if POSITIONS >= 1000 else 1
SEED = int(os.environ.get("NSQ_SEED", "1"))


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if there is one, as hundreds of thousands of files are made and removed."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_flipped_bit_is_found_and_costs_at_most_its_record(part: int, quick_path: Path) -> None:
    assert flips(quick_path, POSITIONS // PARTS, PARTS * SEED + part) == POSITIONS // PARTS


def test_flipped_bit_of_a_compacted_file_is_found_and_costs_at_most_its_message(quick_path: Path) -> None:
    """Tries one bit of every byte; scripts/test-quick, of every fifth."""
    path = quick_path / "original"
    make_compacted(path)
    assert run_fsck(path)[:2] == (0, [])
    files = snapshot(path)
    ((name, side),) = ((n, data) for n, data in files.items() if number_of_name(n.name) is not None)
    records = records_of_compacted_file(side)
    assert sorted(records) == sorted(BODIES.index(it) for it in WAITING)
    for offset in range(0, len(side), unless_quick(1, quick=5)):
        data = bytearray(side)
        data[offset] ^= 1 << offset % 8
        (path / name).write_bytes(data)
        assert [it["file"] for it in run_fsck(path).serious][:1] == [name.name], f"byte {offset} is not found"
        (costs,) = (sequence for sequence, (start, end) in records.items() if start <= offset < end)
        found, _ = scan_compacted(FastFiles(), path / name.parent, 1)
        left = {sequence for sequence in records if found.place_of(sequence) >= 0}
        assert left >= records.keys() - {costs}, f"byte {offset} costs more than message {costs}"


def records_of_compacted_file(data: bytes) -> dict[int, tuple[int, int]]:
    """Return where each message's record starts and ends."""
    found = {}
    position = 0
    while (header := decode_header(data, position)) is not None:
        found[header.base_sequence] = (position, position + header.size)
        position += header.size
    return found


def test_flipped_bit_of_an_index_is_found_and_never_gives_a_wrong_message(tmp_path: Path) -> None:
    bodies = [b"%d" % number + bytes(70_000) for number in range(4)]
    (tmp_path / "original").mkdir()
    with opened(tmp_path / "original", FastFiles(), mem_queue_size=0) as store:
        for body in bodies:
            store.publish(body)
        store.store.close()
    ((name, index),) = ((n, data) for n, data in snapshot(tmp_path / "original").items() if n.suffix == INDEX_SUFFIX)
    assert len(index) == 3 * 16
    path = tmp_path / "flipped"
    for bit in range(0, len(index) * 8, 7):  # each bit of a byte has its turn
        shutil.copytree(tmp_path / "original", path)
        data = bytearray(index)
        data[bit // 8] ^= 1 << bit % 8
        (path / name).write_bytes(data)
        assert [finding["file"] for finding in run_fsck(path).serious] == [name.name]
        with opened(path, FastFiles(), mem_queue_size=0) as store:
            for sequence in (3, 1, 2, 0):
                batch = store.batch_at(store.log(), sequence)
                assert batch is not None
                assert batch.payload[4:] == bodies[sequence]
        run_fsck(path, "--repair")
        assert run_fsck(path).status == 0
        shutil.rmtree(path)
