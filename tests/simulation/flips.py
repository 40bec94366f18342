"""One flipped bit anywhere in a data path: is it found, and what does it cost?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from random import Random

from nsqd.fsck.examination import Examination
from nsqd.fsck.finding import FsckSeverity
from tests.simulation.data_paths import BODIES, FINISHED, FastFiles, Outcome, make, outcome, records_of, snapshot

LATE = b"late"
T = Path("topics/t.t")


def positions_in(files: dict[Path, bytes], count: int, random: Random) -> Iterator[tuple[Path, int, int]]:
    """Yield (file, offset, bit): one of each file, the others spread over all files by their size, and none twice."""
    everywhere = [
        (name, offset, bit) for name, data in files.items() for offset in range(len(data)) for bit in range(8)
    ]
    random.shuffle(everywhere)
    first = {name: (name, offset, bit) for name, offset, bit in everywhere}
    others = [place for place in everywhere if first[place[0]] != place]
    yield from islice(chain(first.values(), others), count)


def flips(folder: Path, count: int, seed: int) -> int:
    """Flip this many bits, one at a time. AssertionError names the one that was not found, or cost too much."""
    make(folder / "original")
    files = snapshot(folder / "original")
    path = folder / "flipped"
    tried = 0
    for name, offset, bit in positions_in(files, count, Random(seed)):
        shutil.copytree(folder / "original", path)
        data = bytearray(files[name])
        data[offset] ^= 1 << bit
        (path / name).write_bytes(data)
        where = f"seed {seed}: bit {bit} of byte {offset} of {name}"
        assert is_found(path), f"{where} is not found"
        check(outcome(path), lost=message_at(name, files[name], offset), where=where)
        shutil.rmtree(path)
        tried += 1
    return tried


def is_found(path: Path) -> bool:
    examination = Examination(FastFiles(), path, new_id=lambda: "")
    return any(finding.severity is not FsckSeverity.NOTE for finding in examination.run())


def message_at(name: Path, data: bytes, offset: int) -> set[bytes]:
    """Return the message in whose record this offset is."""
    if name.parent != T or name.suffix != ".log":
        return set()
    place = next(n for n, (start, end) in enumerate(records_of(data)) if start <= offset < end)
    return {[*BODIES, LATE][int(name.stem) + place]}


def check(got: Outcome, *, lost: set[bytes], where: str, more: Sequence[bytes] = ()) -> None:
    everything = [*BODIES, LATE, *more]
    waiting = {everything[sequence] for sequence in got.waiting}
    for consumed, owed in ((got.c, everything[len(FINISHED) :]), (got.d, everything)):
        assert set(consumed) <= set(everything), f"{where}: something was consumed that nobody has published"
        missing = set(owed) - set(consumed) - waiting - lost - {LATE}
        assert not missing, f"{where}: {sorted(missing)} are lost"
        assert len(consumed) == len(set(consumed)), f"{where}: something comes twice at once"
