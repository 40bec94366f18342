"""SHELL of nsq_to_file for one topic: messages arrive, files grow, and a message is finished once it is on the disk.

We collect messages in memory, and write, sync and finish them together: if nearly `max_in_flight` are collected, if no
more can come until some are finished, at each tick, and before we open another file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import trio

from nsqtools.archive_file import ArchiveFailed, ArchiveFile, FileReplaced, Layout, open_next
from nsqtools.command import ToolFailed

if TYPE_CHECKING:
    from nsqtools.rotation import FileNames, Rotation

T = TypeVar("T")

_STARVED: Final = 0.85  # above this part of max_in_flight nsqd sends little more; the number is from NSQ's client


class Message(Protocol):
    """The parts of a message used here."""

    @property
    def body(self) -> bytes: ...
    def finish(self) -> bool: ...


class MessageSource(Protocol):
    """The parts of a consumer used here."""

    def __aiter__(self) -> Any: ...
    def stop(self) -> None: ...
    def is_starved(self) -> bool: ...


class TopicArchive:
    """The writer of one topic. You can call `hang_up` and `stop` while `run` runs."""

    def __init__(
        self,
        consumer: MessageSource,
        *,
        names: FileNames,
        layout: Layout,
        rotation: Rotation,
        capacity: int,
        sync_interval: float,
        skip_empty_files: bool,
        wall: Callable[[], datetime],
        threads: trio.CapacityLimiter,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._consumer = consumer
        self._names = names
        self._layout = layout
        self._rotation = rotation
        self._full = max(int(capacity * _STARVED), 1)
        self._sync_interval = sync_interval
        self._skip_empty_files = skip_empty_files
        self._wall = wall
        self._threads = threads
        self._log = log
        self._file: ArchiveFile | None = None
        self._batch: list[Message] = []  # taken, not yet on the disk or finished
        self._name: tuple[int, str] = (-1, "")  # a second, and the file's name in that second
        self._next_tick = trio.current_time() + sync_interval
        self._waiting: trio.CancelScope | None = None
        self._is_asked_to_close = False
        self._is_stopping = False

    # Requests from outside, handled before the next message.

    def hang_up(self) -> None:
        """Finish the collected messages and close the file. The next message opens another one."""
        self._is_asked_to_close = True
        self._wake()

    def stop(self) -> None:
        """Write the collected messages, and end `run`."""
        self._is_stopping = True
        self._consumer.stop()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    # The loop

    async def run(self) -> None:
        """Write until the consumer has stopped.

        Raises ToolFailed if the disk fails. Even then, only messages on the disk are finished.
        """
        try:
            await self._take_all()
            await self._sync()
            await self._close()
        except ArchiveFailed as error:
            raise ToolFailed(str(error)) from error

    async def _take_all(self) -> None:
        messages = aiter(self._consumer)
        while True:
            message: Message | None = None
            with trio.CancelScope(deadline=self._deadline()) as self._waiting:
                # Requests come first: closing the file, or at the end writing the collected messages.
                if not self._is_asked_to_close and not (self._is_stopping and self._batch):
                    try:
                        message = await anext(messages)
                    except StopAsyncIteration:
                        return
            self._waiting = None
            if message is not None:
                await self._add(message)
            else:
                await self._handle_request()

    def _deadline(self) -> float:
        return float("inf") if self._is_stopping else self._next_tick

    async def _add(self, message: Message) -> None:
        is_first = await self._rotate_if_due()
        self._batch.append(message)
        self._rotation.grown(len(message.body) + 1)
        if is_first or self._is_stopping or len(self._batch) >= self._full or self._consumer.is_starved():
            await self._sync()

    async def _handle_request(self) -> None:
        """Handle a tick, a hang-up, or a stop."""
        if not self._is_stopping and trio.current_time() >= self._next_tick:
            self._next_tick = max(self._next_tick + self._sync_interval, trio.current_time())
            await self._tick()
        await self._sync()
        if self._is_asked_to_close:
            self._is_asked_to_close = False
            await self._close()

    async def _tick(self) -> None:
        if not self._skip_empty_files:
            await self._rotate_if_due()
        elif self._rotation.due(self._current_name(), trio.current_time()) is not None:
            self._is_asked_to_close = True

    # Files

    def _current_name(self) -> str:
        when = self._wall()
        second = int(when.timestamp())
        if second != self._name[0]:
            self._name = second, self._names.at(when)
        return self._name[1]

    async def _rotate_if_due(self) -> bool:
        """Open another file if it is time. Return True if it did."""
        name, now = self._current_name(), trio.current_time()
        reason = self._rotation.due(name, now)
        if reason is None:
            return False
        if reason:
            self._log.info("%s", reason)
        await self._sync()
        await self._close()
        await self._open(name)
        return True

    async def _open(self, name: str) -> None:
        revision, now = self._rotation.next_revision(name), trio.current_time()
        self._file = file = await self._in_thread(partial(open_next, self._layout, name, revision, self._log))
        self._rotation.opened(name, str(file.path), file.revision, size=file.size_at_open, now=now)

    async def _close(self) -> None:
        file, self._file = self._file, None
        self._rotation.closed()
        if file is not None:
            await self._in_thread(file.close)

    async def _sync(self) -> None:
        """Write the collected messages to the disk, and then finish them, the newest first."""
        if not self._batch:
            return
        assert self._file is not None
        batch, self._batch = self._batch, []
        self._log.info("syncing %d records to disk", len(batch))
        data = b"\n".join([*(message.body for message in batch), b""])
        try:
            await self._in_thread(partial(self._file.write, data))
        except FileReplaced:
            await self._write_elsewhere(data)
        for message in reversed(batch):
            message.finish()

    async def _write_elsewhere(self, data: bytes) -> None:
        assert self._file is not None
        self._log.warning("%s was moved or removed: writing %d bytes again", self._file.path, len(data))
        await self._in_thread(self._file.abandon)
        self._rotation.closed()
        await self._open(self._current_name())
        self._rotation.grown(len(data))
        try:
            await self._in_thread(partial(self._file.write, data))
        except FileReplaced:
            raise ArchiveFailed(f"writing message to disk: {self._file.path} is removed again and again") from None

    async def _in_thread(self, job: Callable[[], T]) -> T:
        # A thread can't be interrupted. A cancellation waits for the disk, so that messages on the disk get finished.
        with trio.CancelScope(shield=True):
            result = await trio.to_thread.run_sync(job, limiter=self._threads)
        return result
