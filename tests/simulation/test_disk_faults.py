"""A real nsqd on a failing disk. The long version: `python -m tests.simulation disk-faults`."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import disk_faults
from tests.simulation.shim import Effect, Op, Rule, Shim
from tests.support.lengths import sized

pytestmark = pytest.mark.needs("C compiler")

LIVES = sized(short=2, long=4)


@pytest.mark.slow
def test_nothing_is_lost_on_a_disk_that_fails(tmp_path: Path) -> None:
    outcome = disk_faults.Outcome()
    disk_faults.run(tmp_path, outcome, seed=random.randrange(1 << 32), lives=LIVES)
    assert outcome.acknowledged >= 120 * LIVES + 300
    assert outcome.faults.total() > 10


# The shim itself


def does(shim: Shim, folder: Path, call: str) -> str:
    """Return the result of a Python call in a process on this disk, which has a file of ten bytes open: `f`."""
    script = (
        "import errno, os\n"
        "try:\n"
        "    f = os.open('file', os.O_RDWR)\n"
        f"    print({call})\n"
        "except OSError as error:\n"
        "    print(errno.errorcode[error.errno])\n"
    ).replace("'file'", repr(str(folder / "file")))
    process = subprocess.run(
        [sys.executable, "-c", script.replace("FOLDER", str(folder))],
        env={**os.environ, **shim.environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return process.stdout.strip()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").write_bytes(b"0123456789")
    return folder


@pytest.mark.parametrize(
    ("op", "call"),
    [
        (Op.OPEN, "1"),
        (Op.READ, "os.pread(f, 10, 0)"),
        (Op.READ, "os.read(f, 10)"),
        (Op.READ, "os.preadv(f, [bytearray(10)], 0)"),
        (Op.CACHED_READ, "os.preadv(f, [bytearray(10)], 0, os.RWF_NOWAIT)"),
        (Op.WRITE, "os.write(f, b'x')"),
        (Op.WRITE, "os.writev(f, [b'x'])"),
        (Op.WRITE, "os.pwrite(f, b'x', 0)"),
        (Op.WRITE, "os.pwritev(f, [b'x'], 0)"),
        (Op.TRUNCATE, "os.ftruncate(f, 3)"),
        (Op.SYNC, "os.fsync(f)"),
        (Op.SYNC, "os.fdatasync(f)"),
        (Op.ALLOCATE, "__import__('nsqd.log.files').log.files.Files().allocate(f, 0, 4096)"),
        (Op.RENAME, "os.rename('file', 'FOLDER/other')"),
        (Op.UNLINK, "os.unlink('file')"),
        (Op.MKDIR, "os.mkdir('FOLDER/new')"),
        (Op.RMDIR, "os.rmdir('FOLDER')"),
        (Op.LIST, "os.listdir('FOLDER')"),
    ],
)
def test_call_fails_and_changes_nothing(tmp_path: Path, disk: Path, op: Op, call: str) -> None:
    with Shim(tmp_path, disk) as shim:
        shim.apply(Rule(op, Effect.FAIL, errno.ENOSPC))
        assert does(shim, disk, call) == "ENOSPC"
        assert [it.op for it in shim.injected] == [str(op.name).lower()]
    assert (disk / "file").read_bytes() == b"0123456789"


def test_torn_write_leaves_a_part(tmp_path: Path, disk: Path) -> None:
    with Shim(tmp_path, disk) as shim:
        shim.apply(Rule(Op.WRITE, Effect.TORN))
        assert does(shim, disk, "os.pwritev(f, [b'abcd', b'efgh'], 10)") == "EIO"
    left = (disk / "file").read_bytes()
    assert b"0123456789abcdefgh".startswith(left)
    assert 10 < len(left) < 18


def test_short_calls_say_how_much_they_did(tmp_path: Path, disk: Path) -> None:
    with Shim(tmp_path, disk) as shim:
        shim.apply(Rule(Op.WRITE | Op.READ, Effect.SHORT))
        assert int(does(shim, disk, "os.pwrite(f, b'abcd', 10)")) == len((disk / "file").read_bytes()) - 10
        assert 0 < len(does(shim, disk, "os.pread(f, 10, 0).decode()")) < 10


def test_rules_have_bounds(tmp_path: Path, disk: Path) -> None:
    four = "[os.pread(f, 1, 0) for _ in range(4)] and 4"
    with Shim(tmp_path, disk) as shim:
        shim.apply(Rule(Op.READ, Effect.SHORT, most=3))
        assert does(shim, disk, four) == "4"
        assert shim.counts == {"read short": 3}
        shim.apply(Rule(Op.READ, Effect.FAIL, pattern="others/*"))
        assert does(shim, disk, four) == "4"
        shim.apply(Rule(Op.READ, Effect.FAIL, seconds=0.0))
        assert does(shim, disk, four) == "4"
        shim.apply(Rule(Op.READ, Effect.FAIL))
        shim.heal()
        assert does(shim, disk, four) == "4"


def test_seed_chooses_the_same_calls(tmp_path: Path, disk: Path) -> None:
    drawn: list[str] = []
    for seed in (1, 1, 2):
        folder = tmp_path / str(len(drawn))
        folder.mkdir()
        with Shim(folder, disk, seed=seed) as shim:
            shim.apply(Rule(Op.READ, Effect.SHORT, share=0.5))
            drawn.append(does(shim, disk, "[len(os.pread(f, 10, 0)) for _ in range(40)]"))
    assert drawn[0] == drawn[1] != drawn[2]


def test_process_elsewhere_notices_nothing(tmp_path: Path, disk: Path) -> None:
    with Shim(tmp_path, tmp_path / "elsewhere") as shim:
        shim.apply(Rule(Op(4095), Effect.FAIL))
        assert does(shim, disk, "os.pread(f, 10, 0).decode()") == "0123456789"
        assert not shim.injected
