"""One worker under the supervisor: small programs in place of nsqd, which are ready, drain and die as the test wants."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Final

import pytest
import trio

from nsqd.workers import restarts
from nsqd.workers.worker_process import WorkerProcess

LIMIT: Final = 30.0
SHORT: Final = 0.01

# Is ready when the file `gate` is there, if it is gated. Ends well on SIGTERM unless it is deaf. Ends well on SIGUSR1
# unless it is stubborn: then it writes that down. Ends when the test does, as its end of the link tells.
WORKER: Final = """
import os, signal, socket, sys, time
folder, *words = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in words else lambda *_: os._exit(0))
signal.signal(signal.SIGUSR1, (lambda *_: write("drains")) if "stubborn" in words else lambda *_: os._exit(0))
def write(name):
    with open(f"{folder}/{name}", "a") as file:
        file.write(os.environ["NSQD_SUPERVISED"] + "\\n")
write("starts")
while "gated" in words and not os.path.exists(f"{folder}/gate"):
    time.sleep(0.01)
link = socket.socket(fileno=0)
link.send(b"R")
link.recv(1)
"""

# Dies on the first signal to drain, and ends well on the second one.
DIES_ONCE: Final = """lambda *_: os._exit(0 if len(open(f"{folder}/starts").readlines()) > 1 else 5)"""


def on_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: object) -> None:
        trio.run(partial(test, **fixtures))

    return run


class OneWorker:
    def __init__(self, folder: Path, *words: str, script: str = WORKER) -> None:
        self.changed = trio.Event()
        self.folder = folder
        self.it = WorkerProcess(0, [sys.executable, "-c", script, str(folder), *words], self.changed.set)

    @property
    def starts(self) -> list[str]:
        return self._written("starts")

    @property
    def drains(self) -> list[str]:
        """The processes of a stubborn worker that were told to drain."""
        return self._written("drains")

    def _written(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []


@asynccontextmanager
async def running(worker: OneWorker) -> AsyncIterator[WorkerProcess]:
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.it.run)
            yield worker.it
            worker.it.stop()


@on_trio
async def test_a_worker_that_dies_is_started_again_and_told_so(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path)
    async with running(worker) as it:
        await it.ready.wait()
        it.send(signal.SIGKILL)
        await _next_ready(it)
    assert worker.starts == ["first", "again"]
    assert it.failure == ""


async def _next_ready(it: WorkerProcess) -> None:
    before = it.ready
    while it.ready is before:  # noqa: ASYNC110  # a process ends without an event for us
        await trio.sleep(0.01)
    await it.ready.wait()


@on_trio
async def test_a_worker_that_cannot_start_is_not_tried_again(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, script="raise SystemExit(1)")
    async with running(worker) as it:
        await worker.changed.wait()
    assert it.failure == "worker-0 ended with exit status 1; see its own lines in this log"


@on_trio
async def test_a_worker_whose_node_was_taken_over_rests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = OneWorker(tmp_path, script="raise SystemExit(3)")
    with caplog.at_level(logging.INFO):
        async with running(worker) as it:
            await worker.changed.wait()
            assert (it.is_resting, it.failure) == (True, "")
    assert "worker-0 was taken over by another process, leaving it down; SIGUSR2 restarts the workers" in caplog.text


@on_trio
async def test_a_command_that_does_not_exist_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    changed = trio.Event()
    it = WorkerProcess(0, ["/does/not/exist"], changed.set)
    with trio.fail_after(LIMIT):
        await it.run()
    assert it.failure
    assert "failed to start worker-0" in caplog.text


@on_trio
async def test_a_renewed_worker_is_another_process_that_is_ready(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path)
    async with running(worker) as it:
        await it.renew(LIMIT, LIMIT)
        assert it.ready.is_set()
        assert worker.starts == ["first", "again"]
        assert not worker.changed.is_set()  # it has not come to rest in between


@on_trio
async def test_a_worker_that_does_not_drain_in_time_is_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = OneWorker(tmp_path, "stubborn")
    async with running(worker) as it:
        await it.renew(SHORT, LIMIT)
        assert worker.starts == ["first", "again"]
    assert "worker-0 has not drained in 0.01 s, stopping it" in caplog.text
    assert "kill" not in caplog.text


@on_trio
async def test_a_worker_that_does_not_stop_either_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = OneWorker(tmp_path, "stubborn", "deaf")
    async with running(worker) as it:
        await it.renew(SHORT, SHORT)
        assert worker.starts == ["first", "again"]
        it.send(signal.SIGKILL)  # or nobody would end it
    assert "worker-0 has not stopped in 0.01 s, killing it" in caplog.text
    assert it.failure == "worker-0 was killed by SIGKILL"


@on_trio
async def test_a_drained_worker_rests_until_it_is_renewed(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path)
    async with running(worker) as it:
        await it.ready.wait()
        it.drain(LIMIT)
        await worker.changed.wait()
        assert it.is_resting
        await it.renew(LIMIT, LIMIT)
        assert not it.is_resting
        assert it.ready.is_set()
    assert worker.starts == ["first", "again"]


@on_trio
async def test_a_worker_that_is_told_to_drain_while_it_starts_drains_when_it_is_ready(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, "gated")
    async with running(worker) as it:
        it.drain(LIMIT)
        (tmp_path / "gate").touch()
        await worker.changed.wait()
        assert it.is_resting


@on_trio
async def test_a_worker_that_dies_during_its_drain_is_started_again_and_drains(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, script=WORKER.replace("lambda *_: os._exit(0)", DIES_ONCE))
    async with running(worker) as it:
        await it.ready.wait()
        it.drain(LIMIT)
        await worker.changed.wait()
        assert it.is_resting
        assert worker.starts == ["first", "again"]


@on_trio
async def test_a_worker_that_dies_long_after_its_drain_was_taken_back_does_not_drain(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, "stubborn")  # so it goes on
    async with running(worker) as it:
        await it.ready.wait()
        it.drain(0.0)
        it.send(signal.SIGKILL)
        await _next_ready(it)
    assert worker.starts == ["first", "again"]
    assert "again" not in worker.drains


@on_trio
async def test_a_drain_counts_more_than_the_restart_that_was_asked_for_before(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, "stubborn")
    async with running(worker) as it:
        await it.ready.wait()
        with trio.move_on_after(SHORT):
            await it.renew(LIMIT, LIMIT)
        it.drain(LIMIT)
        it.send(signal.SIGTERM)
        await worker.changed.wait()
        assert it.is_resting
        assert worker.starts == ["first"]


@on_trio
async def test_a_drain_means_nothing_to_a_worker_that_rests(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, "stubborn")
    async with running(worker) as it:
        await it.ready.wait()
        it.send(signal.SIGTERM)
        await worker.changed.wait()
        it.drain(LIMIT)
        it.wake()
        await it.ready.wait()
        assert not it.is_resting
    assert worker.starts == ["first", "again"]
    assert worker.drains == []


@on_trio
async def test_a_worker_is_stopped_that_has_a_pause_before_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "LONGEST_PAUSE", 100 * LIMIT)
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 100 * LIMIT)
    worker = OneWorker(tmp_path)
    async with running(worker) as it:
        for _ in range(2):
            await it.ready.wait()
            before = it.ready
            it.send(signal.SIGKILL)
            while it.ready is before:  # noqa: ASYNC110  # a process ends without an event for us
                await trio.sleep(0.01)
    assert worker.starts == ["first", "again"]


@on_trio
async def test_a_worker_that_does_not_stop_well_is_a_failure(tmp_path: Path) -> None:
    worker = OneWorker(tmp_path, script=WORKER.replace("lambda *_: os._exit(0)", "lambda *_: os._exit(4)"))
    async with running(worker) as it:
        await it.ready.wait()
    assert it.failure.startswith("worker-0 ended with exit status 4")


def test_nothing_of_the_service_manager_reaches_a_worker() -> None:
    from nsqd.workers.link import environment_of_worker, worker_end

    environment = environment_of_worker({"NOTIFY_SOCKET": "/run/x", "A": "b"}, starts_again=False)
    assert environment == {"A": "b", "NSQD_SUPERVISED": "first"}
    assert worker_end({"A": "b"}) is None
