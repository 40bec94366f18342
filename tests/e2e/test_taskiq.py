"""taskiq on nsqd: real brokers, real `taskiq worker` processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from taskiq import TaskiqResultTimeoutError
from taskiq.exceptions import SendTaskError
from taskiq.kicker import AsyncKicker

from nsqclient import Config, aio
from nsqjobs.taskiq import NsqBroker, NsqScheduleSource
from tests.e2e.conftest import StartNsqd
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.taskiq_worker import LIMIT, Journal, Worker

pytestmark = pytest.mark.e2e

QUEUE = "shop"
OTHER = "emails of today"  # no name of a topic
OTHER_TOPIC = "emails_of_today-f9b96387c0a0b7a7"


def url_of(nsqd: Nsqd, options: str = "") -> str:
    host, port = nsqd.tcp
    return f"nsq://{host}:{port}?{options}".rstrip("?")


def in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, LIMIT * 2))


def kick(url: str, queue: str, task: str, *arguments: Any, labels: dict[str, Any] | None = None, **named: Any) -> str:
    """Send a task and return its id."""

    async def send() -> str:
        broker = NsqBroker(url, queue=queue)
        await broker.startup()
        try:
            kicker = AsyncKicker[Any, Any](task, broker, labels or {})
            return (await kicker.kiq(*arguments, **named)).task_id
        finally:
            await broker.shutdown()

    sent: str = in_loop(send())
    return sent


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """Return the journal of `worker`."""
    return Journal(tmp_path_factory.mktemp("taskiq") / "journal")


@pytest.fixture(scope="module")
def worker(nsqd: Nsqd, journal: Journal) -> Iterator[Worker]:
    """Run one worker for all tests that leave it alive."""
    url = url_of(nsqd, "msg_timeout=1s&default_requeue_delay=100ms")
    with Worker(url, QUEUE, journal, TASKIQ_MORE="") as running:
        yield running


@pytest.fixture
def own_journal(tmp_path: Path) -> Journal:
    """Return the journal of the worker of this test."""
    return Journal(tmp_path / "journal")


# A worker that lives


def test_tasks_run_in_the_loop_and_in_threads(worker: Worker, nsqd: Nsqd, journal: Journal) -> None:
    kick(url_of(nsqd), QUEUE, "note", "async")
    kick(url_of(nsqd), QUEUE, "note_in_thread", "sync")
    journal.wait_for("note", "async")
    journal.wait_for("note", "sync")


def test_a_delayed_task_is_not_early(worker: Worker, nsqd: Nsqd, journal: Journal) -> None:
    for delay in (0.4, "0.4", 1):
        before = time.time()
        kick(url_of(nsqd), QUEUE, "note", f"delayed {delay!r}", labels={"delay": delay})
        (line,) = journal.wait_for("note", f"delayed {delay!r}")
        assert line[0] - before >= float(delay)


def test_a_delay_that_is_no_number_is_refused(nsqd: Nsqd) -> None:
    for delay in ("soon", "nan", "inf"):
        with pytest.raises(SendTaskError) as refused:
            kick(url_of(nsqd), QUEUE, "note", "x", labels={"delay": delay})
        assert "the label delay is" in str(refused.value.__cause__)


def test_a_task_is_acknowledged_after_its_result_was_saved(worker: Worker, nsqd: Nsqd, journal: Journal) -> None:
    task_id = kick(url_of(nsqd), QUEUE, "note", "result")
    (line,) = journal.wait_for("result", task_id)
    assert line[3] == "RESULT"
    eventually(lambda: not nsqd.channel(QUEUE, "jobs")["in_flight_count"], LIMIT)


def test_a_task_that_runs_longer_than_the_timeout_of_its_message_runs_once(
    worker: Worker, nsqd: Nsqd, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    kick(url_of(nsqd), QUEUE, "hold", "long", str(gate))
    ((began, *_),) = journal.wait_for("began", "long")
    eventually(lambda: time.time() > began + 2.5, LIMIT)  # the worker's msg_timeout is a second
    gate.touch()
    journal.wait_for("ended", "long")
    assert len(journal.lines("began", "long")) == 1


def test_a_task_whose_middleware_fails_runs_again(worker: Worker, nsqd: Nsqd, journal: Journal, tmp_path: Path) -> None:
    kick(url_of(nsqd), QUEUE, "note", "unlucky", fail_after=str(tmp_path / "failed"))
    journal.wait_for("note", "unlucky", count=2)


def test_a_task_that_never_acknowledges_runs_again(worker: Worker, nsqd: Nsqd, journal: Journal) -> None:
    kick(url_of(nsqd), QUEUE, "forget", "forgotten", labels={"ack_type": "manual"})
    journal.wait_for("note", "forgotten", count=2)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no task", "cannot be read"),
        (
            b'{"task_id":"1","task_name":"note","labels":{"n":"x"},"labels_types":{"n":2},"args":["n"],"kwargs":{}}',
            "cannot be read",
        ),
        (b'{"task_id":"1","task_name":"nobody","labels":{},"args":[],"kwargs":{}}', "no task nobody"),
    ],
)
def test_what_no_worker_can_run_is_buried(
    worker: Worker, nsqd: Nsqd, journal: Journal, body: bytes, reason: str
) -> None:
    kick(url_of(nsqd), QUEUE, "note", "there is a channel")
    journal.wait_for("note", "there is a channel")
    nsqd.post(f"/pub?topic={QUEUE}", body)
    eventually(lambda: body.decode() in buried(nsqd), LIMIT)
    assert reason in buried(nsqd)[body.decode()]


def buried(nsqd: Nsqd) -> dict[str, str]:
    """Return the bodies of the buried messages, with the reasons."""
    answer = nsqd.http("GET", f"/channel/buried?topic={QUEUE}&channel=jobs&limit=100")
    return {it["body"]: it["reason"] for it in map(json.loads, answer.body.splitlines()) if "body" in it}
