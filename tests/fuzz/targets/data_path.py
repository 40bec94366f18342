"""A whole data path with one altered file: fsck examines it, and a broker starts on it."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from nsqd.log.data_path import DataPathError
from tests.simulation.data_paths import lay_out, make, outcome, run_fsck, snapshot

SHARED = Path("/dev/shm")


@cache
def sound() -> dict[Path, bytes]:
    with TemporaryDirectory() as folder:
        make(Path(folder), kill=True)
        return snapshot(Path(folder))


def run(data: bytes, random: Random) -> None:
    files = dict(sound())
    name = random.choice(sorted(files))
    files[name] = random.choice((data, files[name] + data, data + files[name], files[name][: len(data)]))
    with TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as folder:
        lay_out(files, Path(folder))
        run_fsck(Path(folder))
        with suppress(DataPathError):  # a refused start, which says why
            outcome(Path(folder))
