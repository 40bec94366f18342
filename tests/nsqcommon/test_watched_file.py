"""A watched file: read at the start and after each change; what is invalid leaves what was."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from nsqcommon.startup import StartupError
from nsqcommon.watched_file import UNREADABLE, FileStatus, WatchedFile, look
from tests.support.jumping import run_with_threads


def number(text: str) -> int:
    return int(text)


def watched(path: Path, what: Callable[[WatchedFile[int], trio.MemoryReceiveChannel[int]], Awaitable[None]]) -> None:
    """Run this while the file is followed. Each content that is taken over is sent to it."""

    async def main() -> None:
        file = WatchedFile("number file", str(path), number)
        news, heard = trio.open_memory_channel[int](10)

        async def changed() -> None:
            await news.send(file.now)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.follow, changed)
            await what(file, heard)
            nursery.cancel_scope.cancel()

    run_with_threads(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # the file tells nobody of a mistake
        await trio.sleep(0.5)


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_a_change_is_taken_over_and_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")

    async def what(file: WatchedFile[int], heard: trio.MemoryReceiveChannel[int]) -> None:
        assert file.now == 1
        write(path, "2")
        assert await heard.receive() == 2
        assert (file.now, file.error) == (2, "")

    watched(path, what)


def test_while_the_content_is_invalid_the_former_one_holds_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("1")

    async def what(file: WatchedFile[int], heard: trio.MemoryReceiveChannel[int]) -> None:
        write(path, "two")
        await until(lambda: bool(file.error))
        assert (file.now, file.error) == (1, "invalid literal for int() with base 10: 'two'")
        path.unlink()
        await until(lambda: "literal" not in file.error)
        assert (file.now, file.error) == (1, "no such file or directory")
        await trio.sleep(10)
        write(path, "3")
        assert await heard.receive() == 3
        assert file.error == ""

    watched(path, what)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [
        f"failed to reload number file {path} - invalid literal for int() with base 10: 'two'; keeping the previous version",
        f"failed to reload number file {path} - no such file or directory; keeping the previous version",
    ]


def test_a_named_file_is_watched_too_and_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file has the name of another one, which has the number."""
    path, first, second = tmp_path / "file", tmp_path / "first", tmp_path / "second"
    path.write_text(str(first))
    first.write_text("1")

    def parse(text: str) -> tuple[str, FileStatus, int]:
        status = look(text)
        if status is UNREADABLE:
            raise ValueError(f"there is no {text}")
        return text, status, int(Path(text).read_text())

    async def main() -> None:
        file = WatchedFile("list", str(path), parse, named=lambda content: {content[0]: content[1]})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.follow)
            await trio.sleep(3)
            assert "reloaded" not in caplog.text
            write(first, "2")
            await until(lambda: file.now[2] == 2)
            write(path, str(second))
            await until(lambda: "there is no" in file.error)
            await trio.sleep(3)
            assert file.now[2] == 2
            second.write_text("3")
            await until(lambda: file.now[2] == 3)
            assert file.error == ""
            nursery.cancel_scope.cancel()

    caplog.set_level("INFO")
    run_with_threads(main)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


@pytest.mark.parametrize(("content", "text"), [
    (b"one", "invalid literal for int"),
    (b"\xff", "can't decode"),
    (None, "no such file or directory"),
])  # fmt: skip
def test_a_start_needs_a_valid_file(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=f"failed to read number file {path} - .*{text}"):
        WatchedFile("number file", str(path), number)
