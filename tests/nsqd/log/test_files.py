"""Files without a name, on systems that have them and on others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nsqd.log import files as module
from nsqd.log.files import Files


@pytest.mark.parametrize("flag", [module._UNNAMED, 0, os.O_DIRECTORY])
def test_a_file_without_a_name_is_empty_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int
) -> None:
    """A file system that knows no such flag opens the folder, which can't be written to."""
    monkeypatch.setattr(module, "_UNNAMED", flag)
    (tmp_path / "unnamed.tmp").write_bytes(b"left by a process that died")
    if flag == module._UNNAMED != 0:
        (tmp_path / "unnamed.tmp").unlink()
    files = Files()
    descriptor = files.open_unnamed(tmp_path)
    assert (files.size(descriptor), os.listdir(tmp_path)) == (0, [])
    files.write_fully(descriptor, [b"kept"], 0)
    assert files.read_fully(descriptor, 10, 0) == b"kept"
    files.close(descriptor)


def test_a_folder_that_is_not_there_is_no_place_for_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as raised:
        Files().open_unnamed(tmp_path / "gone")
    assert raised.value.errno == errno.ENOENT
