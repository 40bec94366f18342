from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_BUILD = Path(__file__).resolve().parents[3] / "build"


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of which the system says what it has in its page cache. Often /tmp is memory, and says nothing."""
    if _says_what_is_cached(tmp_path):
        yield tmp_path
        return
    _BUILD.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=_BUILD) as name:
        if not _says_what_is_cached(Path(name)):
            pytest.skip("neither the folder of temporary files nor build/ is on a disk with a page cache")
        yield Path(name)


def _says_what_is_cached(folder: Path) -> bool:
    file = folder / "probe"
    file.write_bytes(b"x")
    with file.open("rb") as opened:
        try:
            return os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except (AttributeError, OSError):  # not every system can read only what is cached
            return False
        finally:
            file.unlink()
