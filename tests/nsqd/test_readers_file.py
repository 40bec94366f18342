"""The file of readers survives restarts and any fault of the disk, and never prevents a start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import trio

from nsqd.log.data_path import READERS_JSON, DataPath
from nsqd.log.files import Files
from nsqd.readers import Readers, Report
from nsqd.readers_file import ReadersFile

REPORT = Report("land", "a", 5)
INTERVAL = 0.01


@contextmanager
def opened(folder: Path, *topics: str, interval: float = INTERVAL) -> Iterator[tuple[Readers, ReadersFile]]:
    files, readers = Files(), Readers()
    data_path = DataPath(folder, files, new_id=lambda: "0" * 32)
    data_path.open()
    file = ReadersFile(data_path, files, readers, set(topics), interval=interval)
    try:
        file.load()
        yield readers, file
    finally:
        data_path.close()


def keep(file: ReadersFile, until: Callable[[], bool] = lambda: True) -> None:
    """Keep the file until the condition holds, and then end as the process ends."""

    async def kept() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(file.keep)
                await trio.sleep(3 * INTERVAL)
                while not until():  # noqa: ASYNC110  # a file does not tell when it comes
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(kept)


def test_readers_are_there_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, "t") as (readers, file):
        readers.heard("t", REPORT, 7)
        keep(file, (tmp_path / READERS_JSON).exists)
    with opened(tmp_path, "t") as (readers, _):
        assert [it.report for it in readers.of("t")] == [REPORT]


def test_the_end_of_the_process_writes_what_is_left(tmp_path: Path) -> None:
    with opened(tmp_path, "t", interval=3600) as (readers, file):
        readers.heard("t", REPORT, 7)
        keep(file)
    with opened(tmp_path, "t") as (readers, _):
        assert readers.of("t")


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    with opened(tmp_path, "t") as (readers, file):
        keep(file)
        assert not (tmp_path / READERS_JSON).exists()
        readers.heard("t", REPORT, 7)
        keep(file, (tmp_path / READERS_JSON).exists)
        (tmp_path / READERS_JSON).unlink()
        keep(file)
        assert not (tmp_path / READERS_JSON).exists()


def test_readers_of_a_deleted_topic_are_not_kept(tmp_path: Path) -> None:
    with opened(tmp_path, "t") as (readers, file):
        readers.heard("t", REPORT, 7)
        readers.heard("deleted", REPORT, 7)
        keep(file)
    with opened(tmp_path, "t") as (readers, _):
        assert readers.topics == ["t"]


@pytest.mark.parametrize("text", ["", "{}", '{"format":1,"readers":{"t":[{}]},"crc":"00000000"}'])
def test_a_damaged_file_is_kept_aside(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / READERS_JSON).write_text(text)
    with opened(tmp_path, "t") as (readers, file):
        assert not list(readers)
        assert "unknown until their next reports" in caplog.text
        assert (tmp_path / f"{READERS_JSON}.damaged").read_text() == text
        readers.heard("t", REPORT, 7)
        keep(file)
    with opened(tmp_path, "t") as (readers, _):
        assert readers.of("t")


def test_a_later_version_s_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, "t") as (readers, file):
        with patch("nsqd.log.data_path.FORMAT", 2):
            readers.heard("t", REPORT, 7)
            keep(file)
        written = (tmp_path / READERS_JSON).read_bytes()
        file.load()
    assert "has format 2" in caplog.text
    assert (tmp_path / READERS_JSON).read_bytes() == written


def test_a_disk_that_refuses_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, "t") as (readers, file):
        readers.heard("t", REPORT, 7)
        with patch.object(Files, "sync", side_effect=OSError(5, "Input/output error")) as sync:
            keep(file, lambda: sync.call_count >= 3)
        warnings = [it for it in caplog.records if it.levelno == logging.WARNING]
        assert len(warnings) == 1, "once, however often it is tried"
        assert not readers.is_saved
        keep(file)
    with opened(tmp_path, "t") as (readers, _):
        assert readers.of("t")
