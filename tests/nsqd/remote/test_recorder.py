"""What is recorded, and that repeating it gives the same folder."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.operations import Cut, MakeFolder, OpenFile, Remove, Rename, Replace, Write
from nsqd.log.files import Files
from nsqd.remote.recorder import Closed, Recorded, RecordedFiles, is_shipped
from tests.nsqd.log.harness import TroubledFiles
from tests.nsqd.remote.changes import random_changes
from tests.simulation.remote.mirror import Mirror


class Recording:
    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder = folder
        self.changes: list[Recorded] = []
        self.files = RecordedFiles(files or Files(), folder, self.changes.append)

    @property
    def operations(self) -> list[object]:
        return [it.operation for it in self.changes]


def test_appends_are_recorded_with_their_bytes_and_a_number_for_the_file(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    files = recording.files
    files.make_folder(tmp_path / "t.x")
    descriptor = files.open_to_write(tmp_path / "t.x" / "00000000.log")
    files.write_fully(descriptor, [b"one", b"two"], 0)
    files.truncate(descriptor, 3)
    files.close(descriptor)
    assert recording.operations == [
        MakeFolder("t.x"),
        OpenFile(1, "t.x/00000000.log"),
        Write(1, 0, 6),
        Cut(1, 3),
        Closed(1),
    ]
    assert recording.changes[2].data == b"onetwo"


def test_a_file_that_is_closed_while_another_one_is_open_has_its_own_number(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    first, _ = (recording.files.open_to_write(tmp_path / name) for name in ("a.log", "b.log"))
    recording.files.close(first)
    assert recording.operations == [OpenFile(1, "a.log"), OpenFile(2, "b.log"), Closed(1)]


def test_large_buffers_are_recorded_without_a_copy(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    descriptor = recording.files.open_to_write(tmp_path / "a.log")
    header, payload = b"header", bytes(100_000)
    recording.files.write_fully(descriptor, [header, b"", payload, header, header], 5)
    assert recording.operations[1:] == [Write(1, 5, 100_018)]
    change = recording.changes[1]
    assert [change.data, *change.rest] == [header, payload, header + header]
    assert change.rest[0] is payload


def test_a_large_write_that_is_cut_short_is_recorded_as_far_as_it_went(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.most_per_write = 70_000
    recording = Recording(tmp_path, files)
    descriptor = recording.files.open_to_write(tmp_path / "a.log")
    recording.files.write_fully(descriptor, [bytes(100_000)], 0)
    assert recording.operations[1:] == [Write(1, 0, 70_000), Write(1, 70_000, 30_000)]


def test_a_small_file_is_recorded_whole_when_it_has_its_name(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.files.replace(tmp_path / "node.json", b"{}\n")
    recording.files.write_new(tmp_path / "log.json", b"[]\n")
    assert recording.operations == [Replace("node.json", 3), Replace("log.json", 3)]
    assert [it.data for it in recording.changes] == [b"{}\n", b"[]\n"]


def test_names_that_change_and_go_are_recorded(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    files = recording.files
    files.make_folder(tmp_path / "t.x")
    files.rename(tmp_path / "t.x", tmp_path / "x.1")
    files.remove_folder(tmp_path / "x.1")
    files.close(files.open_to_write(tmp_path / "journal.000001"))
    files.unlink(tmp_path / "journal.000001")
    assert recording.operations[1:3] == [Rename("t.x", "x.1"), Remove("x.1")]
    assert recording.operations[-1] == Remove("journal.000001")


def test_a_call_that_fails_is_not_recorded(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    for call in (recording.files.unlink, recording.files.remove_folder):
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "missing")
    assert recording.operations == []


@pytest.mark.parametrize(
    "name",
    [
        "go-import.json",
        "topology.json",
        "topology.json.tmp",
        "owner.json.1a2b-7.tmp",
        "00000000.index",
        "00000000.log.damaged.4096",
        "node.json.damaged",
        "remote.json",
    ],
)
def test_what_can_be_made_anew_is_not_recorded(name: str, tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.files.write_new(tmp_path / name, b"x")
    assert recording.operations == []
    assert not is_shipped(tmp_path / name)


@pytest.mark.parametrize("name", ["t.orders.index", "t.orders.damaged", "t.orders.torn", "t.topology.json", "x.1.torn"])
def test_folders_of_topics_are_recorded_whatever_their_names(name: str, tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.files.make_folder(tmp_path / name)
    recording.files.rename(tmp_path / name, tmp_path / "x.0")
    recording.files.remove_folder(tmp_path / "x.0")
    assert recording.operations == [MakeFolder(name), Rename(name, "x.0"), Remove("x.0")]


def test_what_lies_elsewhere_is_not_recorded(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "data")
    recording.files.write_new(tmp_path / "else", b"x")
    assert recording.operations == []


@given(st.integers(0, 2**32))
def test_repeating_what_was_recorded_gives_the_same_folder(seed: int) -> None:
    random = Random(seed)
    changes, expected = random_changes(random)
    files, _ = Mirror({}).files_after(changes, random)
    assert files == expected
