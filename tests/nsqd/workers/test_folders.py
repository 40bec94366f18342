"""The folders of workers: made, locked, and refused where messages would be left behind."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqd.workers.folders import owned_folders, refuse_folders_of_workers
from tests.nsqd.log.harness import TroubledFiles


def with_messages(folder: Path) -> None:
    (folder / "topics").mkdir(parents=True)


def test_a_power_cut_takes_no_folder_along(tmp_path: Path) -> None:
    files = TroubledFiles()
    with owned_folders(str(tmp_path), 2, files=files):
        assert sorted(it.name for it in tmp_path.iterdir()) == ["worker-0", "worker-1"]
    assert files.calls[-1] == ("sync folder", tmp_path.name)


def test_nobody_starts_on_folders_that_may_not_last(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fail("sync folder", errno.EIO)
    with (
        pytest.raises(StartupError, match=r"failed to open data-path: .*input/output error"),
        owned_folders(str(tmp_path), 2, files=files),
    ):
        pass


def test_a_second_supervisor_is_refused_before_it_makes_a_folder(tmp_path: Path) -> None:
    with owned_folders(str(tmp_path), 1):
        with (
            pytest.raises(StartupError, match="failed to lock data-path: cannot flock directory"),
            owned_folders(str(tmp_path), 2),
        ):
            pass
        assert not (tmp_path / "worker-1").exists()
    with owned_folders(str(tmp_path), 2):  # when the first one has ended
        pass


def test_messages_of_a_single_nsqd_are_not_mixed_with_those_of_a_worker(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "worker-0", tmp_path / "worker-2"):
        with_messages(folder)
    advice = f"move everything in {tmp_path}, except worker-0, worker-2, into {tmp_path}/worker-1"
    with pytest.raises(StartupError, match=re.escape(advice)), owned_folders(str(tmp_path), 3):
        pass


def test_a_file_with_the_name_of_a_workers_folder_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "worker-1").touch()
    refuse_folders_of_workers(str(tmp_path))
    with owned_folders(str(tmp_path), 1):
        pass
    with (
        pytest.raises(StartupError, match=f"failed to open data-path: mkdir {tmp_path}/worker-1: file exists"),
        owned_folders(str(tmp_path), 2),
    ):
        pass
