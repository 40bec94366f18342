"""Bits that are not what they were."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.log.segment import INDEX_SUFFIX
from tests.faults.data_paths import FastFiles, run_fsck, snapshot
from tests.faults.flips import flips
from tests.integration.log.harness import opened

# NSQ_FLIPS=100000 NSQ_SEED=7 is the long form.
POSITIONS = int(os.environ.get("NSQ_FLIPS", "5000"))
PARTS = 5
SEED = int(os.environ.get("NSQ_SEED", "1"))


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """Files in memory where there are such: hundreds of thousands are made and removed."""
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
    for bit in range(0, len(index) * 8, 3):
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
