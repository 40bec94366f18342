"""The progress of a long job, on stderr: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Final, TextIO, TypeVar, cast

import trio

T = TypeVar("T")

_WIDTH: Final = 30
_ON_A_TERMINAL: Final = 0.2  # seconds between two updates
_ELSEWHERE: Final = 10.0


def bar(done: int, total: int, elapsed: float) -> str:
    """Return the progress with a bar: `[=====     ]  50%  500/1000 messages  120/s  4s left`."""
    share = done / total if total else 1.0
    filled = int(share * _WIDTH)
    return f"[{'=' * filled}{' ' * (_WIDTH - filled)}] {share:4.0%}  {progress_text(done, total, elapsed)}"


def progress_text(done: int, total: int, elapsed: float) -> str:
    """Return the progress without a bar."""
    rate = done / elapsed if elapsed > 0 else 0.0
    text = f"{done}/{total} messages  {rate:.0f}/s"
    if rate and done < total:
        text += f"  {duration((total - done) / rate)} left"
    return text


def duration(seconds: float) -> str:
    """Format a duration: `1h05m`, `2m03s`, `4s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """The job sets `done`; `show` runs in a task beside it."""

    def __init__(self, total: int, *, quiet: bool, stream: TextIO | None = None) -> None:
        self.done = 0
        self._total = total
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()

    async def show(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Show the progress until cancelled. A terminal keeps the last state."""
        task_status.started()
        if self._quiet:
            return
        began = trio.current_time()
        try:
            while True:
                await trio.sleep(_ON_A_TERMINAL if self._on_terminal else _ELSEWHERE)
                self._write(trio.current_time() - began)
        finally:
            if self._on_terminal:
                self._write(trio.current_time() - began)
                self._stream.write("\n")

    def _write(self, elapsed: float) -> None:
        if self._on_terminal:
            self._stream.write(f"\r{bar(self.done, self._total, elapsed)}\x1b[K")
        else:
            self._stream.write(f"{progress_text(self.done, self._total, elapsed)}\n")
        self._stream.flush()


async def with_progress(progress: Progress, job: Callable[[], Awaitable[T]]) -> T:
    """Show the progress while the job runs. The job's exceptions are raised unchanged."""
    result: T | None = None
    trouble: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(progress.show)
        try:
            result = await job()
        except Exception as error:
            trouble = error
        nursery.cancel_scope.cancel()
    if trouble is not None:
        raise trouble
    return cast(T, result)
