"""The tasks of test_taskiq.py: `taskiq worker tests.e2e.peers.taskiq_app:broker`.

A task writes what it does into the journal, and one that takes long ends when its gate, a file, is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends, TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.abc.result_backend import AsyncResultBackend

from nsqjobs.taskiq import NsqBroker

JOURNAL = Path(os.environ["TASKIQ_JOURNAL"])
CONTEXT: Any = TaskiqDepends()


def write(*words: object) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(json.dumps([time.time(), *map(str, words)]) + "\n")


def exists(gate: str) -> bool:
    return Path(gate).exists()


def times_noted(word: str) -> int:
    return sum(json.loads(line)[1:] == ["note", word] for line in JOURNAL.read_text().splitlines())


class KillBeforeAck(TaskiqMiddleware):
    """Kills the worker once, after or before a retry was published: middlewares hear of errors from last to first."""

    def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        place = message.kwargs.get("kill", "")
        if place and not Path(place).exists():
            Path(place).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class FailWhenTold(TaskiqMiddleware):
    """Fails once, after the task: taskiq then never acknowledges."""

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        place = message.kwargs.get("fail_after", "")
        if place and not Path(place).exists():
            Path(place).touch()
            raise RuntimeError("a middleware that fails")


class JournalBackend(AsyncResultBackend[Any]):
    """Results in the journal."""

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        write("result", task_id, result.return_value)

    async def is_result_ready(self, task_id: str) -> bool:
        return self._found(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        return TaskiqResult(is_err=False, return_value=self._found(task_id), execution_time=0)

    def _found(self, task_id: str) -> str | None:
        words = map(json.loads, JOURNAL.read_text().splitlines())
        return next((it[3] for it in words if it[1:3] == ["result", task_id]), None)


kill = KillBeforeAck()
retry = SmartRetryMiddleware(default_delay=0.3)
middlewares = [retry, kill] if os.environ.get("TASKIQ_KILL") == "before" else [kill, retry]

broker = (
    NsqBroker(
        os.environ["TASKIQ_URL"],
        queue=os.environ["TASKIQ_QUEUE"],
        more_queues=os.environ.get("TASKIQ_MORE", "").split(),
        report=bool(os.environ.get("TASKIQ_REPORT")),
    )
    .with_middlewares(*middlewares, FailWhenTold())
    .with_result_backend(JournalBackend())
)


@broker.task("note")
async def note(word: str, fail_after: str = "") -> str:
    write("note", word)
    return word.upper()


@broker.task("note_in_thread")
def note_in_thread(word: str) -> None:
    write("note", word)


@broker.task("hold")
async def hold(word: str, gate: str) -> None:
    write("began", word)
    while not exists(gate):  # noqa: ASYNC110  # a file gives no event
        await asyncio.sleep(0.01)
    write("ended", word)


@broker.task("try", retry_on_error=True, max_retries=100)
async def try_it(word: str, gate: str, kill: str = "", context: Context = CONTEXT) -> None:
    write("tried", word, context.message.labels.get("_retries", 0))
    if not exists(gate):
        raise RuntimeError("not yet")
    write("ended", word)


@broker.task("fail", retry_on_error=True, max_retries=2)
def fail(word: str) -> None:
    raise ValueError(f"no such order: {word}")


@broker.task("forget", ack_type="manual")
async def forget(word: str, context: Context = CONTEXT) -> None:
    write("note", word)
    if times_noted(word) > 1:
        await context.ack()
