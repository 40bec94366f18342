"""nsq_to_file's writer: when it writes, and that no message is finished before it is on disk."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from nsqtools.archive_file import Layout
from nsqtools.command import ToolFailed
from nsqtools.rotation import FileNames, Rotation
from nsqtools.topic_archive import TopicArchive
from tests.support.folder_contents import contents_of

LIMIT: Final = 100.0  # seconds for a thread to sync a file, on a machine whose disk is busy


class FakeMessage:
    def __init__(self, body: bytes, on_finish: Callable[[bytes], None]) -> None:
        self.body = body
        self._on_finish = on_finish

    def finish(self) -> bool:
        self._on_finish(self.body)
        return True


class FakeConsumer:
    """Yields the messages that it is given. `starved` is its own report."""

    def __init__(self) -> None:
        self.starved = False
        self.finished: list[bytes] = []
        self.check: Callable[[bytes], None] = lambda body: None
        self._send, self._receive = trio.open_memory_channel[FakeMessage](1000)

    def give(self, *bodies: bytes) -> None:
        for body in bodies:
            self._send.send_nowait(FakeMessage(body, self._finished))

    def _finished(self, body: bytes) -> None:
        self.check(body)
        self.finished.append(body)

    def __aiter__(self) -> FakeConsumer:
        return self

    async def __anext__(self) -> FakeMessage:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def stop(self) -> None:
        self._send.close()

    def is_starved(self) -> bool:
        return self.starved


class Scene:
    """A writer, its input, and a clock that stands still until a test moves it."""

    def __init__(self, folder: Path, nursery: trio.Nursery, clock: MockClock, **settings: object) -> None:
        self.folder = folder
        self.clock = clock
        self.consumer = FakeConsumer()
        self.when = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
        work = str(settings.pop("work", folder))
        gzip = bool(settings.pop("gzip", False))
        interval = float(settings.pop("interval", 0.0))  # type: ignore[arg-type]
        size = int(settings.pop("size", 0))  # type: ignore[call-overload]
        self.archive = TopicArchive(
            self.consumer,
            names=FileNames("t<REV>.<DATETIME>" if work != str(folder) or gzip or interval or size else "t", "%H"),
            layout=Layout(
                output_dir=str(folder), work_dir=work, gzip=gzip, gzip_level=6,
                exclusive=gzip or interval > 0, rotate_size=size,
            ),
            rotation=Rotation(size=size, interval=interval),
            capacity=int(settings.pop("capacity", 200)),  # type: ignore[call-overload]
            sync_interval=1.0,
            skip_empty_files=bool(settings.pop("skip_empty_files", False)),
            wall=lambda: self.when,
            threads=trio.CapacityLimiter(4),
            log=logging.LoggerAdapter(logging.getLogger("nsqtools.test"), {}),
        )  # fmt: skip
        nursery.start_soon(self.archive.run)

    async def settle(self, condition: Callable[[], object], *, ticking: bool = False) -> None:
        """Wait until the condition is true, as threads give no event. `ticking`: tick until then."""
        deadline = time.monotonic() + LIMIT
        for attempt in itertools.count():
            if condition():
                return
            if time.monotonic() >= deadline:
                break
            if ticking and attempt % 100 == 99:
                self.clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(os.sched_yield)
        raise AssertionError(f"did not come true: finished {self.consumer.finished}, files {self.files()}")

    def files(self) -> dict[str, bytes]:
        """Return the text of each file. One that a thread moves away meanwhile is not among them."""
        return contents_of(self.folder)


def play(folder: Path, act: Callable[[Scene], Awaitable[None]], **settings: object) -> None:
    clock = MockClock()

    async def main() -> None:
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                scene = Scene(folder, nursery, clock, **settings)
                await act(scene)
                scene.archive.stop()

    trio.run(main, clock=clock)


def test_the_first_is_synced_at_once_and_the_others_with_the_tick(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(b"1", b"2", b"3")
        await scene.settle(lambda: scene.consumer.finished)
        await trio.testing.wait_all_tasks_blocked()
        assert (scene.consumer.finished, scene.files()) == ([b"1"], {"t": b"1\n"})
        await scene.settle(lambda: len(scene.consumer.finished) == 3, ticking=True)
        assert (scene.consumer.finished, scene.files()) == ([b"1", b"3", b"2"], {"t": b"1\n2\n3\n"})

    play(tmp_path, act)


def test_nothing_is_finished_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = b""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal synced
        real(descriptor)
        if (tmp_path / "t").exists():
            synced = (tmp_path / "t").read_bytes()

    def check(body: bytes) -> None:
        assert body + b"\n" in synced

    async def act(scene: Scene) -> None:
        scene.consumer.check = check
        scene.consumer.give(*(b"%d" % number for number in range(50)))
        await scene.settle(lambda: len(scene.consumer.finished) == 50, ticking=True)

    monkeypatch.setattr(os, "fsync", fsync)
    play(tmp_path, act, capacity=7)


def test_nearly_as_many_as_may_be_in_flight_are_synced_together(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(b"0", *(b"%d" % number for number in range(1, 9)))
        await scene.settle(lambda: len(scene.consumer.finished) == 9)
        assert scene.consumer.finished == [b"0", b"4", b"3", b"2", b"1", b"8", b"7", b"6", b"5"]

    play(tmp_path, act, capacity=5)


def test_who_is_starved_is_synced_for(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.starved = True
        for number in range(3):
            scene.consumer.give(b"%d" % number)
            await scene.settle(lambda number=number: len(scene.consumer.finished) == number + 1)  # type: ignore[misc]

    play(tmp_path, act)


def test_the_end_finishes_what_there_is(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(b"1", b"2", b"3")
        await scene.settle(lambda: scene.consumer.finished)
        scene.archive.stop()
        await scene.settle(lambda: len(scene.consumer.finished) == 3)

    play(tmp_path, act)
    assert (tmp_path / "t").read_bytes() == b"1\n2\n3\n"


def test_no_file_where_neither_message_nor_tick_comes(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await trio.testing.wait_all_tasks_blocked()

    play(tmp_path, act)
    assert list(tmp_path.iterdir()) == []


def test_files_end_at_the_first_size_above_the_limit(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(*(b"x" * 29 for _ in range(9)))
        await scene.settle(lambda: len(scene.consumer.finished) == 9, ticking=True)

    play(tmp_path, act, size=100)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {"t-000000.12": 120, "t-000001.12": 120, "t-000002.12": 30}


def test_a_new_hour_is_a_new_file(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(b"1", b"2")
        await scene.settle(lambda: scene.consumer.finished)
        await trio.testing.wait_all_tasks_blocked()
        scene.when = scene.when.replace(hour=13)
        scene.consumer.give(b"3")
        await scene.settle(lambda: len(scene.consumer.finished) == 3)
        assert scene.files() == {"t-000000.12": b"1\n2\n", "t-000000.13": b"3\n"}

    play(tmp_path, act, size=10**6)


@pytest.mark.parametrize(("skip", "names"), [(False, ["t-000000.12", "t-000001.12"]), (True, [])])
def test_quiet_topics_have_empty_files_unless_these_are_skipped(tmp_path: Path, skip: bool, names: list[str]) -> None:
    async def act(scene: Scene) -> None:
        for count in (1, 1, 2):  # at the third tick the first file is too old
            scene.clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            await scene.settle(lambda count=count: skip or len(scene.files()) == count)  # type: ignore[misc]

    play(tmp_path, act, interval=1.5, skip_empty_files=skip)
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.parametrize("skip", [False, True])
def test_a_hang_up_closes_and_moves_and_the_next_message_opens_another(tmp_path: Path, skip: bool) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(b"1", b"2")
        await scene.settle(lambda: scene.consumer.finished)
        await trio.testing.wait_all_tasks_blocked()
        scene.archive.hang_up()
        await scene.settle(lambda: scene.files() == {"t-000000.12": b"1\n2\n"})
        assert scene.consumer.finished == [b"1", b"2"]
        scene.consumer.give(b"3")
        await scene.settle(lambda: len(scene.consumer.finished) == 3)
        assert scene.files() == {"t-000000.12": b"1\n2\n", "work/t-000001.12": b"3\n"}

    play(tmp_path, act, work=tmp_path / "work", skip_empty_files=skip)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t-000000.12", "t-000001.12", "work"]


def test_a_file_that_was_removed_is_written_again_before_anything_is_finished(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.consumer.give(b"1")
        await scene.settle(lambda: scene.consumer.finished)
        (tmp_path / "t").rename(tmp_path / "moved")
        scene.consumer.give(b"2")
        await scene.settle(lambda: len(scene.consumer.finished) == 2, ticking=True)
        assert scene.files()["t"] == b"2\n"

    play(tmp_path, act)


def test_what_cannot_be_written_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[list[bytes]] = []

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async def act(scene: Scene) -> None:
        finished.append(scene.consumer.finished)
        scene.consumer.give(b"1")
        await scene.settle(lambda: scene.consumer.finished)
        monkeypatch.setattr(os, "fsync", fail)
        scene.consumer.give(b"2")
        await scene.settle(lambda: False, ticking=True)

    with pytest.raises(ExceptionGroup) as failed:
        play(tmp_path, act)
    assert failed.group_contains(ToolFailed, match="failed syncing messages: .*no space left on device")
    assert finished == [[b"1"]]
