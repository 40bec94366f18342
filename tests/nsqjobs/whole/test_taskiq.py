"""taskiq on nsqd: real brokers, real `taskiq worker` processes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from taskiq.exceptions import SendTaskError
from taskiq.kicker import AsyncKicker

from bench.jobs.servers import Redis
from nsqclient import Config, aio
from nsqjobs.taskiq import NsqBroker, NsqScheduleSource
from tests.nsqjobs.program import TIMEOUT, environment
from tests.nsqjobs.taskiq_worker import Journal, Worker
from tests.support.brokers import StartNsqd
from tests.support.process import ROOT, Nsqd, Nsqlookupd, eventually

QUEUE, MAIL = "tasks", "mail"
SOON = "msg_timeout=1s"  # after which nsqd delivers again what a dead worker had
RETRIED = {"retry_on_error": True, "max_retries": 100}


def url_of(nsqd: Nsqd, options: str = "") -> str:
    host, port = nsqd.tcp
    return f"nsq://{host}:{port}?{options}".rstrip("?")


def in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, TIMEOUT * 2))


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
    url = url_of(nsqd, "msg_timeout=6s&default_requeue_delay=100ms")
    with Worker(url, QUEUE, journal, TASKIQ_MORE=MAIL) as running:
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
    eventually(lambda: not nsqd.channel(QUEUE, "jobs")["in_flight_count"], TIMEOUT)


def test_a_task_that_runs_longer_than_the_timeout_of_its_message_runs_once(
    worker: Worker, nsqd: Nsqd, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    kick(url_of(nsqd), QUEUE, "hold", "long", str(gate))
    ((began, *_),) = journal.wait_for("began", "long")
    eventually(lambda: time.time() > began + 7, TIMEOUT)  # the worker's msg_timeout is 6 seconds
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
    eventually(lambda: body.decode() in buried(nsqd), TIMEOUT)
    assert reason in buried(nsqd)[body.decode()]


def buried(nsqd: Nsqd) -> dict[str, str]:
    """Return the bodies of the buried messages, with the reasons."""
    answer = nsqd.http("GET", f"/channel/buried?topic={QUEUE}&channel=jobs&limit=100")
    return {it["body"]: it["reason"] for it in map(json.loads, answer.body.splitlines()) if "body" in it}


# Several queues


def test_a_label_names_another_queue(worker: Worker, nsqd: Nsqd, journal: Journal) -> None:
    kick(url_of(nsqd), QUEUE, "note", "mail", labels={"queue_name": MAIL})
    journal.wait_for("note", "mail")
    assert nsqd.topic(MAIL)["message_count"] == 1


# Workers that die


def test_a_task_comes_back_from_every_worker_that_is_killed(
    nsqd: Nsqd, own_journal: Journal, topic: str, tmp_path: Path
) -> None:
    """Redis streams stop to recover tasks after a SIGKILL at the wrong moment, whose lock nobody releases."""
    gate = tmp_path / "gate"
    url = url_of(nsqd, SOON)
    kick(url, topic, "hold", "x", str(gate))
    for times in (1, 2):
        with Worker(url, topic, own_journal) as worker:
            own_journal.wait_for("began", "x", count=times)
            worker.kill()
    gate.touch()
    with Worker(url, topic, own_journal):
        own_journal.wait_for("began", "x", count=3)
        own_journal.wait_for("ended", "x")
        is_done(nsqd, topic)


def is_done(nsqd: Nsqd, topic: str) -> None:
    """Wait until nothing is left in the queue."""
    eventually(lambda: (it := nsqd.channel(topic, "jobs"))["depth"] + it["in_flight_count"] == 0, TIMEOUT)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_retry_survives_a_worker_that_is_killed_before_or_after_it_was_published(
    nsqd: Nsqd, own_journal: Journal, topic: str, tmp_path: Path, moment: str
) -> None:
    killed, gate = tmp_path / "killed", tmp_path / "gate"
    kick(url_of(nsqd), topic, "try", "x", gate=str(gate), kill=str(killed), labels=RETRIED)
    with Worker(url_of(nsqd, SOON), topic, own_journal, TASKIQ_KILL=moment):
        own_journal.wait_for("tried", "x")
        # taskiq starts another worker process by itself. The first try was not acknowledged, so it comes back.
        own_journal.wait_for("tried", "x", "0", count=2)
        own_journal.wait_for("tried", "x", "1")
        gate.touch()
        own_journal.wait_for("ended", "x")
        is_done(nsqd, topic)
    assert killed.exists()
    published = 2 if moment == "before" else 3  # the retry whose first try comes back is there twice
    assert nsqd.topic(topic)["message_count"] >= published


def test_a_retry_waits_for_its_delay(worker: Worker, nsqd: Nsqd, journal: Journal, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kick(url_of(nsqd), QUEUE, "try", "patient", gate=str(gate), labels={**RETRIED, "delay": 0.5})
    times = [line[0] for line in journal.wait_for("tried", "patient", count=3)]
    gate.touch()
    journal.wait_for("ended", "patient")
    assert times[1] - times[0] >= 0.5
    assert times[2] - times[1] >= 0.5


# Workers and brokers that stop


def test_sigterm_lets_the_task_end_and_gives_back_the_others(
    nsqd: Nsqd, own_journal: Journal, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    kick(url_of(nsqd), topic, "hold", "x", str(gate))
    url = url_of(nsqd, "max_in_flight=4")
    with Worker(url, topic, own_journal, "--max-async-tasks", "1") as worker:
        own_journal.wait_for("began", "x")
        for number in range(3):
            kick(url_of(nsqd), topic, "note", f"{number}")
        eventually(lambda: nsqd.channel(topic, "jobs")["in_flight_count"] == 4, TIMEOUT)
        worker.send_signal(signal.SIGTERM)
        eventually(lambda: nsqd.channel(topic, "jobs")["in_flight_count"] == 1, TIMEOUT)
        gate.touch()
        assert worker.wait() == 0
    assert own_journal.lines("ended", "x")
    assert not own_journal.lines("note")
    assert in_loop(attempts_of(url_of(nsqd), topic, count=3)) == [1, 1, 1]


def test_a_task_that_does_not_end_in_time_is_given_back(
    nsqd: Nsqd, own_journal: Journal, topic: str, tmp_path: Path
) -> None:
    kick(url_of(nsqd), topic, "hold", "x", str(tmp_path / "gate"))
    with Worker(url_of(nsqd), topic, own_journal, "--wait-tasks-timeout", "0.1") as worker:
        own_journal.wait_for("began", "x")
        assert worker.stop() == 0
    assert in_loop(attempts_of(url_of(nsqd), topic, count=1)) == [1]


async def attempts_of(url: str, topic: str, count: int) -> list[int]:
    """Finish so many messages, and return their numbers of attempts."""
    address = url.removeprefix("nsq://")
    async with aio.open_consumer(topic, "jobs", nsqd=address, config=Config(max_in_flight=count)) as consumer:
        found = []
        async for message in consumer:
            found.append(message.attempts)
            message.finish()
            if len(found) == count:
                consumer.stop()
    return found


def test_a_restart_of_nsqd_is_a_pause(start_nsqd: StartNsqd, own_journal: Journal, topic: str) -> None:
    """nsqd has another port after its restart, which nsqlookupd tells."""
    with Nsqlookupd() as lookupd:
        host, port = lookupd.tcp
        nsqd = start_nsqd(f"lookupd-tcp-address={host}:{port}", "broadcast-address=127.0.0.1")
        url = "nsq+lookupd://{}:{}".format(*lookupd.http_address)

        async def send() -> None:
            broker = NsqBroker(url, queue=topic, send_timeout=TIMEOUT)
            await broker.startup()
            for number in range(100):
                if number == 50:
                    await asyncio.to_thread(nsqd.restart)
                await AsyncKicker[Any, Any]("note", broker, {}).kiq(f"{number}")
            await broker.shutdown()

        with Worker(url, topic, own_journal):
            in_loop(send())
            for number in range(100):
                own_journal.wait_for("note", f"{number}")


# Delays that are longer than nsqd accepts


def test_a_delay_beyond_the_limit_of_nsqd(start_nsqd: StartNsqd, own_journal: Journal, topic: str) -> None:
    nsqd = start_nsqd("max-defer-timeout=200ms", "max-req-timeout=200ms")
    with Worker(url_of(nsqd), topic, own_journal):
        kick(url_of(nsqd), topic, "note", "first")
        own_journal.wait_for("note", "first")
        before = time.time()
        kick(url_of(nsqd), topic, "note", "later", labels={"delay": 1.5})
        (line,) = own_journal.wait_for("note", "later")
    assert line[0] - before >= 1.5
    assert nsqd.channel(topic, "jobs")["requeue_count"] >= 1


# Schedules


def test_a_schedule_by_time_is_sent_by_nsqd_or_deleted(
    worker: Worker, nsqd: Nsqd, journal: Journal, topic: str
) -> None:
    async def schedule() -> float:
        broker = NsqBroker(url_of(nsqd), queue=QUEUE)
        await broker.startup()
        source = NsqScheduleSource(broker)
        at = datetime.now(UTC) + timedelta(seconds=1)
        later = datetime.now(UTC) + timedelta(seconds=1.5)
        deleted = await AsyncKicker[Any, Any]("note", broker, {}).schedule_by_time(source, at, "deleted")
        await AsyncKicker[Any, Any]("note", broker, {}).schedule_by_time(source, at, "scheduled")
        await AsyncKicker[Any, Any]("note", broker, {}).schedule_by_time(source, later.replace(tzinfo=None), "last")
        await deleted.unschedule()
        assert await source.get_schedules() == []
        await broker.shutdown()
        return at.timestamp()

    kick(url_of(nsqd), QUEUE, "note", "there is a channel")
    at = in_loop(schedule())
    ((when, *_),) = journal.wait_for("note", "scheduled")
    assert when >= at
    journal.wait_for("note", "last")
    assert not journal.lines("note", "deleted")


def to_another_queue(kicker: AsyncKicker[Any, Any], source: NsqScheduleSource) -> Coroutine[Any, Any, Any]:
    return kicker.with_labels(queue_name="other").schedule_by_time(source, datetime.now(UTC))


def test_a_schedule_that_nsqd_cannot_keep_is_refused(nsqd: Nsqd, topic: str) -> None:
    async def schedule(how: Callable[[AsyncKicker[Any, Any], NsqScheduleSource], Coroutine[Any, Any, Any]]) -> None:
        broker = NsqBroker(url_of(nsqd), queue=topic)
        await how(AsyncKicker("note", broker, {}), NsqScheduleSource(broker))
        await broker.shutdown()

    with pytest.raises(ValueError, match="only has schedules by time: for cron and interval use"):
        in_loop(schedule(lambda kicker, source: kicker.schedule_by_cron(source, "* * * * *")))
    with pytest.raises(ValueError, match="only has schedules by time: for cron and interval use"):
        in_loop(schedule(lambda kicker, source: kicker.schedule_by_interval(source, 60)))
    with pytest.raises(ValueError, match="does not know the queue"):
        in_loop(schedule(to_another_queue))


# What others see


def test_headers_say_what_the_task_is(nsqd: Nsqd, topic: str) -> None:
    async def headers() -> dict[str, bytes]:
        async with aio.open_consumer(topic, "jobs", nsqd="{}:{}".format(*nsqd.tcp)) as consumer:
            async for message in consumer:
                message.finish()
                return dict(message.headers)
        raise AssertionError

    task_id = kick(url_of(nsqd), topic, "shop.tasks:ship", labels={"_retries": 2, "delay": 0.01})
    found = in_loop(headers())
    assert found.pop("job-eta").isdigit()
    assert found == {
        "job-library": b"taskiq",
        "job-name": b"shop.tasks:ship",
        "job-id": task_id.encode(),
        "job-retries": b"2",
    }


def test_a_program_may_send_from_several_loops_and_without_startup(nsqd: Nsqd, topic: str) -> None:
    broker = NsqBroker(url_of(nsqd), queue=topic)
    for _ in range(2):
        in_loop(AsyncKicker[Any, Any]("note", broker, {}).kiq("x"))
    assert nsqd.topic(topic)["message_count"] == 2


# The documents


def example_of_page(number: int) -> str:
    page = (ROOT / "docs" / "how-to" / "taskiq.md").read_text(encoding="utf-8")
    examples: list[str] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return examples[number]


@pytest.mark.usefixtures("real_starts")  # as users do it; the others are forked
def test_the_example_runs(nsqd: Nsqd, tmp_path: Path) -> None:
    example = example_of_page(0)
    (tmp_path / "tasks.py").write_text(example.replace("127.0.0.1:4150", "{}:{}".format(*nsqd.tcp)))
    journal = Journal(tmp_path / "journal")
    with Worker("", "", journal, app="tasks:broker", folder=tmp_path) as worker:
        sent = subprocess.run(
            [sys.executable, "tasks.py"], cwd=tmp_path, env=environment(), check=False, timeout=TIMEOUT
        )
        assert sent.returncode == 0
        for said in ("hello ana", "hello ben", "charged 17"):
            eventually(lambda said=said: said in worker.log, TIMEOUT)
        is_done(nsqd, "shop")
        assert not nsqd.channel("shop", "jobs")["deferred_count"]


@pytest.mark.needs("redis-server", "taskiq_redis")
def test_the_example_with_results_in_redis_runs(nsqd: Nsqd, tmp_path: Path) -> None:
    with Redis(tmp_path / "redis") as redis:
        example = example_of_page(1).replace("127.0.0.1:4150", "{}:{}".format(*nsqd.tcp))
        (tmp_path / "sums.py").write_text(example.replace("redis://127.0.0.1:6379", redis.url))
        with Worker("", "", Journal(tmp_path / "journal"), app="sums:broker", folder=tmp_path):
            sent = subprocess.run(
                [sys.executable, "sums.py"],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT * 3,
            )
            assert sent.stdout.splitlines() == ["sum 3", "error ZeroDivisionError('division by zero')"], sent.stderr
            is_done(nsqd, "sums")
