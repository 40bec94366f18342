"""The names that have to be written to topology.json."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nsqd.log.data_path import DataPath, Topology
from nsqd.log.faults import FaultKind, Faults
from nsqd.log.files import Files
from nsqd.log.upkeep.topology_file import TopologyFile
from nsqd.log.wakeups import Wakeups


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wakeups = Wakeups()
        self.faults = Faults(self.wakeups)
        data_path = DataPath(folder, Files(), new_id=lambda: "0" * 32)
        self.file = TopologyFile(data_path, {}, self.faults, self.wakeups.topology)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_names_that_change_are_collected_once(node: Node) -> None:
    node.file.names_changed(lambda: [{"a": 1}, {"b": 2}])
    assert node.wakeups.topology.is_set
    assert node.file.take_new_names() == [{"a": 1}, {"b": 2}]
    assert node.file.take_new_names() is None


def test_what_is_taken_is_not_unsaved_any_more(node: Node) -> None:
    node.file.set_names({"a": 1})
    assert node.file.is_unsaved
    assert node.file.take() is not None
    assert not node.file.is_unsaved


def test_a_failed_write_is_a_fault_and_is_tried_again(node: Node) -> None:
    node.file.set_names({"a": 1})
    topology = node.file.take()
    assert topology is not None
    node.file.failed(topology, OSError(errno.ENOSPC, "No space left on device"))
    assert FaultKind.TOPOLOGY in node.faults
    assert node.file.take() is topology
    node.file.saved()
    assert FaultKind.TOPOLOGY not in node.faults


def test_a_failed_write_does_not_replace_newer_names(node: Node) -> None:
    newer = Topology()
    node.file.save(newer)
    node.file.failed(Topology(), OSError(errno.EIO, "Input/output error"))
    assert node.file.take() is newer


def test_at_the_end_the_newest_names_are_written(node: Node) -> None:
    node.file.set_names({"old": 1})
    node.file.names_changed(lambda: [{"new": 2}])
    node.file.write_all()
    written = b"".join(path.read_bytes() for path in node.folder.iterdir())
    assert b'"new"' in written
    assert b'"old"' not in written
