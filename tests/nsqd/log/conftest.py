from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nsqd.log.files import Files

_BUILD = Path(__file__).resolve().parents[3] / "build"


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk, for reads from the page cache. Many systems have /tmp in memory, where there are none."""
    if _can_read_cached(tmp_path):
        yield tmp_path
    else:
        _BUILD.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=_BUILD) as name:
            yield Path(name)


def _can_read_cached(folder: Path) -> bool:
    file = folder / "probe"
    file.write_bytes(b"x")
    with file.open("rb") as opened:
        try:
            return Files().read_cached_at(opened.fileno(), 1, 0) == b"x"
        except OSError:
            return False
        finally:
            file.unlink()
