"""The data path of the last release: an upgrade finds all of it, and what we write now is what it can read.

`python -m tests.simulation released` does the same with that release's own code, which tests cannot rely on to be there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.wire.log_record import HEADERS, KEYS, decode_header
from tests.support.earlier_version import WORDS, journal_words, records
from tests.support.process import Nsqd, run_to_end
from tests.support.released_version import OPTIONS, check, fill

STORED: Final = Path(__file__).parent / "data_paths" / "0.1.0"
KNOWN_WORDS: Final = WORDS | {("keys", 3), ("cancel", 3), ("bury", 5), ("job", 4)}
NEW_WORDS: Final = {("keyless", 3), ("start", 3)}
"""The journal's words that 0.1.0 knows, and those that it does not. It passes over others, so a new one needs a
paragraph in docs/how-to/upgrade.md on what a way back loses, and a place in the list here."""


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    return shutil.copytree(STORED, tmp_path / "data")


def test_all_of_it_is_there_after_an_upgrade(data_path: Path) -> None:
    with Nsqd(data_path, *OPTIONS) as nsqd:
        check(nsqd)


def test_it_is_still_there_after_an_upgraded_nsqd_was_killed(data_path: Path) -> None:
    with Nsqd(data_path, *OPTIONS) as nsqd:
        nsqd.kill()
        nsqd.start()
        check(nsqd)


def test_fsck_finds_nothing_wrong_with_it(data_path: Path) -> None:
    done = run_to_end("fsck", str(data_path))
    assert done.returncode == 0, done


def test_what_is_written_now_is_what_it_reads(tmp_path: Path) -> None:
    with Nsqd(tmp_path, *OPTIONS) as nsqd:
        fill(nsqd)
        nsqd.kill()
    assert journal_words(STORED) <= KNOWN_WORDS
    assert journal_words(tmp_path) <= KNOWN_WORDS | NEW_WORDS
    assert flags_in(STORED) == HEADERS | KEYS
    assert not flags_in(tmp_path) & ~flags_in(STORED)
    assert names(tmp_path) == names(STORED)


def flags_in(data_path: Path) -> int:
    """Return the flags that records have, all together."""
    found = 0
    for folder in (data_path / "topics").iterdir():
        for record in records(folder):
            header = decode_header(record, 0)
            assert header is not None
            found |= header.flags
    return found


def names(data_path: Path) -> set[str]:
    """Return the names of its files, but for one that a kill has left half written.

    Segments are told by their topic alone, as where one ends depends on the turns.
    """
    passing = {".lock", ".tmp"}
    files = [it for it in data_path.rglob("*") if it.is_file() and it.suffix not in passing and it.name != "owner.json"]
    found = {str(it.relative_to(data_path)) for it in files}
    return {str(Path(it).with_stem("segment")) if it.endswith(".log") else it for it in found}
