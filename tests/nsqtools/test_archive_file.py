"""Files of nsq_to_file: where they are opened, their contents, and their final names."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import zlib
from pathlib import Path

import pytest

from nsqtools.archive_file import (
    ArchiveFailed,
    ArchiveFile,
    FileReplaced,
    Layout,
    check_folders,
    gzip_member,
    open_next,
)

LOG = logging.LoggerAdapter(logging.getLogger("nsqtools.test"), {})
NAME = "t<REV>.log"


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsqtools")


def layout(folder: Path, *, work: str = "", gz: bool = False, exclusive: bool = False, rotate_size: int = 0) -> Layout:
    return Layout(
        output_dir=str(folder), work_dir=str(folder / work) if work else str(folder), gzip=gz, gzip_level=6,
        exclusive=exclusive or gz, rotate_size=rotate_size,
    )  # fmt: skip


def open_one(where: Layout, name: str = NAME, revision: int = 0) -> ArchiveFile:
    return open_next(where, name, revision, LOG)


def files(folder: Path) -> list[str]:
    return sorted(str(it.relative_to(folder)) for it in folder.rglob("*") if it.is_file())


def test_plain_files_go_on_where_they_were(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        file = open_one(layout(tmp_path))
        file.write(line)
        file.close()
    assert files(tmp_path) == ["t-000000.log"]
    assert (tmp_path / "t-000000.log").read_bytes() == b"one\ntwo\n"


def test_what_was_torn_does_not_spoil_the_next_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t-000000.log").write_bytes(b"one\ntw")
    file = open_one(layout(tmp_path))
    file.write(b"two\n")
    file.close()
    assert (tmp_path / "t-000000.log").read_bytes() == b"one\ntw\ntwo\n"
    assert f"{tmp_path}/t-000000.log ends within a message" in caplog.messages


def test_a_full_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t-000000.log").write_bytes(b"x" * 101)
    assert open_one(layout(tmp_path, rotate_size=100)).path.name == "t-000001.log"
    assert f"{tmp_path}/t-000000.log currently 101 bytes (> 100), rotating..." in caplog.messages


def test_exclusive_files_are_new_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        open_one(layout(tmp_path, exclusive=True)).close()
    assert files(tmp_path) == ["t-000000.log", "t-000001.log", "t-000002.log"]
    assert f"working file already exists: {tmp_path}/t-000000.log" in caplog.messages


def test_folders_are_made(tmp_path: Path) -> None:
    file = open_one(layout(tmp_path / "a"), "b/c/t")
    assert file.path == tmp_path / "a/b/c/t"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 & 0o007 == 0


def test_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    file = open_one(layout(tmp_path, work="a/work"))
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/work")]
    synced.clear()
    file.close()
    assert synced == [f"{tmp_path}/a/work/t-000000.log", str(tmp_path), str(tmp_path / "a/work")]


def test_two_do_not_append_to_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = open_one(layout(tmp_path))
    assert open_one(layout(tmp_path)).path.name == "t-000001.log"
    assert f"another process writes to {first.path}" in caplog.messages
    open_one(layout(tmp_path), "x")
    with pytest.raises(ArchiveFailed, match=r"unable to open .*/x: another process writes to it"):
        open_one(layout(tmp_path), "x")


# gzip


def test_each_sync_is_a_member_and_the_whole_is_one_file(tmp_path: Path) -> None:
    file = open_one(layout(tmp_path, gz=True), "t<REV>.gz")
    assert file.path.stat().st_size == 0
    for line in (b"one\n", b"two\n", b"three\n"):
        file.write(line)
    file.close()
    data = file.path.read_bytes()
    assert data.count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff") == 3
    assert gzip.decompress(data) == b"one\ntwo\nthree\n"


def test_a_gzip_file_without_messages_is_one_all_the_same(tmp_path: Path) -> None:
    file = open_one(layout(tmp_path, gz=True), "t<REV>.gz")
    file.close()
    assert gzip.decompress(file.path.read_bytes()) == b""


def test_what_was_synced_can_be_read_when_the_rest_is_cut() -> None:
    first, second = gzip_member(b"a" * 1000, 6), gzip_member(os.urandom(1000), 6)
    for cut in range(len(first), len(first + second)):
        reader = zlib.decompressobj(31)
        assert reader.decompress((first + second)[:cut]) == b"a" * 1000
        assert reader.eof


@pytest.mark.parametrize("level", range(1, 10))
def test_levels(level: int) -> None:
    assert gzip.decompress(gzip_member(b"some text " * 100, level)) == b"some text " * 100


# A folder of its own for files that are written to


def test_a_file_is_in_the_output_folder_when_it_is_whole(tmp_path: Path) -> None:
    file = open_one(layout(tmp_path, work="work"))
    file.write(b"x\n")
    assert files(tmp_path) == ["work/t-000000.log"]
    file.close()
    assert files(tmp_path) == ["t-000000.log"]


def test_the_next_one_is_not_called_as_one_that_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t-000000.log").write_bytes(b"old")
    assert open_one(layout(tmp_path, work="work")).path.name == "t-000001.log"
    assert f"output file already exists: {tmp_path}/t-000000.log" in caplog.messages


def test_nothing_is_overwritten_by_a_move(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = open_one(layout(tmp_path, work="work"))
    file.write(b"new\n")
    (tmp_path / "t-000000.log").write_bytes(b"old")
    file.close()
    assert (tmp_path / "t-000000.log").read_bytes() == b"old"
    assert (tmp_path / "t-000001.log").read_bytes() == b"new\n"
    assert f"destination file already exists: {tmp_path}/t-000000.log" in caplog.messages
    assert (
        f"renamed finished file {tmp_path}/t-000000.log to {tmp_path}/t-000001.log to avoid overwrite"
        in caplog.messages
    )


# Failures


@pytest.mark.parametrize("trouble", ["removed", "replaced"])
def test_a_file_that_is_gone_is_noticed_before_anything_is_finished(tmp_path: Path, trouble: str) -> None:
    file = open_one(layout(tmp_path))
    file.path.unlink()
    if trouble == "replaced":
        file.path.write_bytes(b"")
    with pytest.raises(FileReplaced):
        file.write(b"x\n")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveFailed, match=r"unable to create dir: mkdir .*/file: not a directory"):
        check_folders(layout(tmp_path / "file" / "x"))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = open_one(layout(tmp_path))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArchiveFailed, match=r"writing message to disk: write .*t-000000.log: no space left on device"):
        file.write(b"x\n")


def test_a_failed_sync_is_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = open_one(layout(tmp_path))
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ArchiveFailed, match=r"failed syncing messages: .*input/output error"):
        file.write(b"x\n")
    with pytest.raises(ArchiveFailed, match="failed to fsync output file"):
        file.close()
