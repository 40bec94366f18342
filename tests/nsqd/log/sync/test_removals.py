"""Removing files and folders: what a sync takes, holds back, and puts back."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqd.log.data_path import DataPath
from nsqd.log.faults import FaultKind, Faults
from nsqd.log.files import DiskError, Files
from nsqd.log.sync.removals import Removals
from nsqd.log.sync.sync import Sync, SyncResult
from nsqd.log.wakeups import Wakeups

A, B = Path("/data/topics/a/1.log"), Path("/data/topics/b/1.log")


class Node:
    def __init__(self, folder: Path) -> None:
        self.wakeups = Wakeups()
        self.faults = Faults(self.wakeups)
        data_path = DataPath(folder, Files(), new_id=lambda: "0" * 32)
        self.removals = Removals(data_path, Files(), self.faults, self.wakeups.sync.set)

    def begin(self, *, files_may_go: bool = True, doubtful: tuple[Path, ...] = ()) -> Sync:
        sync = Sync(SyncResult())
        self.removals.begin_sync(sync, files_may_go=files_may_go, doubtful=doubtful)
        return sync


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_is_to_be_removed_wakes_the_syncer(node: Node) -> None:
    node.removals.remove([A])
    assert node.wakeups.sync.is_set
    assert node.begin().files == [A]


def test_nothing_goes_before_the_journal_says_why(node: Node) -> None:
    node.removals.remove([A])
    assert node.begin(files_may_go=False).files == []
    assert node.begin().files == [A]


def test_files_of_doubtful_folders_are_held_back(node: Node) -> None:
    node.removals.remove([A, B])
    sync = node.begin(doubtful=(A.parent,))
    assert (sync.files, sync.held) == ([B], [A])


def test_a_folder_made_anew_keeps_its_files(node: Node) -> None:
    node.removals.remove([A, B])
    node.removals.spare(A.parent)
    assert node.begin().files == [B]


def test_what_could_not_be_removed_is_a_fault_until_it_is(node: Node) -> None:
    node.removals.remove([A])
    sync = node.begin()
    sync.error = DiskError("remove: no")
    node.removals.end_sync(sync)
    assert FaultKind.REMOVAL in node.faults
    assert node.faults.texts() == ["remove: no"]
    again = node.begin()
    assert again.files == [A]
    again.files.clear()
    node.removals.end_sync(again)
    assert FaultKind.REMOVAL not in node.faults
