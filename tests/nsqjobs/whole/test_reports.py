"""`report=True` in all four libraries: one real worker of each, on one nsqd, and nsqadmin's page of a job that fails.

How long a failure takes from the worker to the page is printed (`pytest -rP`): 2 s are demanded, on a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from taskiq.kicker import AsyncKicker

from nsqclient import sync
from nsqcommon.job_reports import TOPIC, JobEvent, JobReport, decode
from nsqjobs.dramatiq import NsqBroker as DramatiqBroker
from nsqjobs.headers import Job
from nsqjobs.taskiq import NsqBroker as TaskiqBroker
from tests.nsqjobs.celery_app import close_apps, make_app
from tests.nsqjobs.celery_worker import Worker as CeleryWorker
from tests.nsqjobs.program import TIMEOUT, Program
from tests.nsqjobs.taskiq_worker import Journal
from tests.nsqjobs.taskiq_worker import Worker as TaskiqWorker
from tests.support.process import PYTHONPATH, Nsqadmin, Nsqd, eventually, needs_module
from tests.support.tools import address

PEERS = Path(__file__).parents[2] / "e2e" / "peers"
Summary = tuple[str, str, str]  # state, outcome, error


class Reports:
    """What workers have reported."""

    def __init__(self) -> None:
        self.all: list[JobReport] = []

    @property
    def events(self) -> list[JobEvent]:
        return [event for report in self.all for event in report.events]

    def ends_of(self, name: str, library: str = "") -> list[Summary]:
        """Return the ends of these jobs in order: a worker's processes report each on a connection of its own."""
        ended = [
            it for it in self.events if it.name == name and it.state.value != "started" and library in ("", it.library)
        ]
        return [(it.state.value, it.outcome, it.error) for it in sorted(ended, key=lambda it: it.ended_at)]

    def wait_for(self, name: str, *, ends: int = 1, library: str = "") -> list[Summary]:
        eventually(lambda: len(self.ends_of(name, library)) >= ends, TIMEOUT)
        return self.ends_of(name, library)


class Pages:
    """nsqadmin, with its defaults but for the right to publish."""

    def __init__(self, admin: Nsqadmin, reports: Reports) -> None:
        self._admin = admin
        self._reports = reports

    def wait_for_failure(self, topic: str, id: str, error: str) -> None:
        """Return when the page of the job has its error and its traceback. Print how long that took since it failed."""
        path = f"/jobs/job?topic={topic}&id={id}"

        def is_shown() -> bool:
            page = unescape(self._admin.http("GET", path).body.decode()).replace("<wbr>", "")
            return "Failed after" in page and error in page and "Traceback (most recent call last)" in page

        eventually(is_shown, TIMEOUT)
        shown_at = time.time()

        def failures() -> list[JobEvent]:
            return [it for it in self._reports.events if it.id == id and it.state.value == "failed"]

        eventually(lambda: bool(failures()), TIMEOUT)  # nsqadmin may hear of it before the test's own consumer
        failed = failures()[-1]
        assert failed.error == error
        seconds = shown_at - failed.ended_at
        sys.stdout.write(f"{failed.library}: on the page {seconds:.2f} s after it failed (at most 2 s)\n")

    def edit_and_run(self, topic: str, id: str, args: list[object]) -> None:
        """Run a failed job with other arguments, as the dialog does."""
        job = self._admin.http("GET", f"/jobs/job?topic={topic}&id={id}").body.decode()
        (link,) = re.findall(r'href="(/actions/edit\?[^"]+)"', job)
        form = unescape(self._admin.http("GET", unescape(link)).body.decode())
        values = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form))
        (kwargs,) = re.findall(r'name="kwargs"[^>]*>\n([^<]*)</textarea>', form)
        values |= {"args": json.dumps(args), "kwargs": kwargs}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = self._admin.http("POST", "/actions/edit", urlencode(values).encode(), headers=headers)
        assert b"its edited copy runs instead" in answer.body


@pytest.fixture(scope="module")
def pages(nsqd: Nsqd, reports: Reports) -> Iterator[Pages]:
    needs_module("starlette")
    for topic in ("celery", "django", "dramatiq", "taskiq"):  # a new queue is on a page with nsqadmin's next sample
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=jobs")
    with Nsqadmin(f"nsqd-http-address={address(nsqd.http_address)}", "enable-publish") as admin:
        eventually(lambda: b"nsqadmin_tail_jobs" in nsqd.http("GET", "/stats?format=json").body)  # it listens
        yield Pages(admin, reports)
        assert "Traceback" not in admin.log


def url_of(nsqd: Nsqd) -> str:
    return f"nsq://127.0.0.1:{nsqd.tcp[1]}"


@pytest.fixture(scope="module")
def reports(nsqd: Nsqd) -> Iterator[Reports]:
    found = Reports()
    with sync.consumer(TOPIC, "test#ephemeral", nsqd=[f"127.0.0.1:{nsqd.tcp[1]}"]) as consumer:

        def listen() -> None:
            for message in consumer.messages():
                found.all.append(decode(message.body))
                message.finish()

        thread = Thread(target=listen, daemon=True)
        thread.start()
        yield found
        consumer.stop()
        thread.join(TIMEOUT)


def buried(nsqd: Nsqd, topic: str) -> list[str]:
    """Return the reasons of a queue's buried jobs."""
    lines = nsqd.http("GET", f"/channel/buried?topic={topic}&channel=jobs").body.splitlines()
    return [said["reason"] for said in map(json.loads, lines) if "reason" in said]


def wait_until_buried(nsqd: Nsqd, topic: str, reasons: list[str]) -> None:
    eventually(lambda: sorted(buried(nsqd, topic)) == sorted(reasons), TIMEOUT)


# Celery


@pytest.fixture
def celery(worker_of_celery: Callable[..., Any], nsqd: Nsqd) -> Iterator[Callable[..., Any]]:
    """Return a function that sends tasks to a worker. What they bury is discarded after the test."""
    yield worker_of_celery
    nsqd.post("/channel/discard?topic=celery&channel=jobs")


@pytest.fixture(scope="module")
def worker_of_celery(nsqd: Nsqd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Run a prefork worker for all tests of Celery."""
    folder = tmp_path_factory.mktemp("celery")
    app = make_app(url_of(nsqd))
    with CeleryWorker(
        folder,
        url_of(nsqd),
        *("-c", "2", "--without-mingle", "--without-gossip"),
        queues=["celery"],
        broker_transport_options={"report": True},
    ) as worker:
        yield lambda name, *args, **kwargs: app.send_task(name, args, kwargs, queue="celery", ignore_result=True)
        assert "nsqjobs/" not in worker.log.replace("tests/nsqjobs/", "tests/")  # in a traceback
    close_apps()


def test_celery_buries_and_reports_what_raised(
    celery: Callable[..., Any], nsqd: Nsqd, reports: Reports, pages: Pages
) -> None:
    before = len(reports.ends_of("fail", "celery"))
    celery("add", 1, 2)
    id = celery("fail", "no such\norder").id
    pages.wait_for_failure("celery", id, "ValueError: no such order")
    assert reports.wait_for("fail", ends=before + 1, library="celery")[before:] == [
        ("failed", "buried", "ValueError: no such order")
    ]
    assert reports.wait_for("add") == [("succeeded", "finished", "")]
    (event,) = [it for it in reports.events if it.id == id and it.state.value == "failed"]
    assert (event.id, event.library, event.topic, event.channel) == (id, "celery", "celery", "jobs")
    assert "in fail\n    raise error\nValueError: no such\norder" in event.traceback
    assert event.worker.rpartition(":")[2].isdigit()
    wait_until_buried(nsqd, "celery", ["ValueError: no such order"])
    (line,) = [it for it in nsqd.http("GET", "/channel/buried?topic=celery&channel=jobs").body.splitlines() if it]
    assert json.loads(line)["id"] == event.message
    nsqd.post("/channel/kick?topic=celery&channel=jobs")
    assert len(reports.wait_for("fail", ends=before + 2, library="celery")[before:]) == 2  # a kicked task runs again
    wait_until_buried(nsqd, "celery", ["ValueError: no such order"])
    pages.edit_and_run("celery", id, ["edited"])
    wait_until_buried(nsqd, "celery", ["ValueError: edited"])
    assert len(reports.wait_for("fail", ends=before + 3, library="celery")[before:]) == 3  # it ran once


def test_celery_is_retrying_until_its_last_retry(celery: Callable[..., Any], nsqd: Nsqd, reports: Reports) -> None:
    before = len(reports.ends_of("fail", "celery"))
    celery("fail", "try again", retry=True)
    error = "ValueError: try again"
    ends = reports.wait_for("fail", ends=before + 2, library="celery")[before:]
    assert ends == [("retrying", "sent again", error), ("failed", "buried", error)]
    wait_until_buried(nsqd, "celery", [error])


def test_celery_reports_killed_processes_time_limits_and_rejected_tasks(
    celery: Callable[..., Any], nsqd: Nsqd, reports: Reports
) -> None:
    celery("fail_early")
    celery("reject")
    celery("linger")
    assert reports.wait_for("fail_early") == [("failed", "finished", "ValueError: acknowledged before")]
    (rejected,) = reports.wait_for("reject")
    assert rejected[:2] == ("failed", "buried")
    (limited,) = reports.wait_for("linger")
    assert limited[:2] == ("failed", "buried")
    assert "TimeLimitExceeded" in limited[2]
    celery("vanish")
    (lost,) = reports.wait_for("vanish")
    assert lost[:2] == ("failed", "buried")
    assert "WorkerLostError" in lost[2]
    eventually(lambda: len(buried(nsqd, "celery")) == 3, TIMEOUT)


# Django


def test_django_buries_and_reports_what_raised(nsqd: Nsqd, reports: Reports, pages: Pages, tmp_path: Path) -> None:
    environ = {
        "PYTHONPATH": f"{PYTHONPATH}:{PEERS}",
        "DJANGO_SETTINGS_MODULE": "django_site.settings",
        "DATABASE": str(tmp_path / "database"),
        "NSQ_URL": url_of(nsqd),
        "NSQ_OPTIONS": json.dumps({"report": True, "results": False}),
        "NOTES": str(tmp_path / "notes"),
    }
    words = ["-m", "django", "nsq_worker", "--queue=django", "--concurrency=1"]
    with Program(words, tmp_path / "log", environ=environ):
        for name, args in (("add", [1, 2]), ("fail", [])):
            document: dict[str, Any] = {
                "id": f"id-of-{name}",
                "task": f"django_site.jobs.{name}",
                "queue_name": "django",
                "run_after": None,
                "enqueued_at": "2026-03-01T12:00:00+00:00",
                "args": args,
                "kwargs": {},
            }
            job = Job(library="django-tasks", name=document["task"], id=document["id"])
            headers = {f"nsq-header-{name}": value.decode() for name, value in job.headers().items()}
            nsqd.http("POST", "/pub?topic=django", json.dumps(document).encode(), headers=headers)
        pages.wait_for_failure("django", "id-of-fail", "ValueError: no such order")
        assert reports.wait_for("django_site.jobs.fail") == [("failed", "buried", "ValueError: no such order")]
        assert reports.wait_for("django_site.jobs.add") == [("succeeded", "finished", "")]
        wait_until_buried(nsqd, "django", ["ValueError: no such order"])
        (event,) = [it for it in reports.events if it.name == "django_site.jobs.fail"]
        pages.edit_and_run("django", "id-of-fail", ["edited"])
        *_, last = reports.wait_for("django_site.jobs.fail", ends=2)
        assert last[2].startswith("TypeError: fail() takes 0 positional arguments")
        wait_until_buried(nsqd, "django", [last[2]])
    assert len(reports.ends_of("django_site.jobs.fail")) == 2
    assert (event.id, event.library, event.topic) == ("id-of-fail", "django-tasks", "django")
    assert "ValueError: no such order" in event.traceback


# dramatiq


@pytest.fixture
def broker(nsqd: Nsqd) -> Iterator[DramatiqBroker]:
    broker = DramatiqBroker(url_of(nsqd), report=True)
    dramatiq.set_broker(broker)
    yield broker
    broker.close()
    dramatiq.set_broker(StubBroker())


def test_dramatiq_is_retrying_until_its_last_retry(
    broker: DramatiqBroker, nsqd: Nsqd, reports: Reports, pages: Pages
) -> None:
    @dramatiq.actor(queue_name="dramatiq", max_retries=1, min_backoff=100)
    def charge(order: int) -> None:
        if order:
            raise ValueError("no such order")

    sent = charge.send(7)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        error = "ValueError: no such order"
        pages.wait_for_failure("dramatiq", sent.message_id, error)
        assert reports.wait_for("charge", ends=2) == [("retrying", "sent again", error), ("failed", "buried", error)]
        charge.send(0)
        assert reports.wait_for("charge", ends=3)[2:] == [("succeeded", "finished", "")]
        wait_until_buried(nsqd, "dramatiq", [error])
        pages.edit_and_run("dramatiq", sent.message_id, [0])
        assert reports.wait_for("charge", ends=4)[3:] == [("succeeded", "finished", "")]
        assert buried(nsqd, "dramatiq") == []
    finally:
        worker.stop()
    failed = [it for it in reports.events if it.name == "charge" and it.state.value == "failed"]
    assert (failed[0].library, failed[0].topic, failed[0].retries) == ("dramatiq", "dramatiq", 1)
    assert "raise ValueError" in failed[0].traceback


def test_without_retries_dramatiq_buries_what_raised(nsqd: Nsqd, reports: Reports) -> None:
    broker = DramatiqBroker(url_of(nsqd), report=True, middleware=[])

    @dramatiq.actor(queue_name="plain", broker=broker)
    def charge_once() -> None:
        raise ValueError("no such order")

    charge_once.send()
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    try:
        assert reports.wait_for("charge_once") == [("failed", "buried", "ValueError: no such order")]
        wait_until_buried(nsqd, "plain", ["ValueError: no such order"])
    finally:
        worker.stop()
        broker.close()


# taskiq


def test_taskiq_is_retrying_until_its_last_retry(nsqd: Nsqd, reports: Reports, pages: Pages, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def send(name: str, *arguments: str) -> str:
        broker = TaskiqBroker(url_of(nsqd), queue="taskiq")
        await broker.startup()
        sent = await AsyncKicker[Any, Any](name, broker, {"retry_on_error": True, "max_retries": 2}).kiq(*arguments)
        await broker.shutdown()
        return sent.task_id

    with TaskiqWorker(url_of(nsqd), "taskiq", journal, TASKIQ_REPORT="1"):
        asyncio.run(send("note", "fine"))
        id, error = asyncio.run(send("fail", "17")), "ValueError: no such order: 17"
        pages.wait_for_failure("taskiq", id, error)
        seen = reports.wait_for("fail", ends=2, library="taskiq")
        assert seen == [("retrying", "sent again", error), ("failed", "buried", error)]
        assert reports.wait_for("note", library="taskiq") == [("succeeded", "finished", "")]
        wait_until_buried(nsqd, "taskiq", [error])
        nsqd.post("/channel/kick?topic=taskiq&channel=jobs")
        assert reports.wait_for("fail", ends=3, library="taskiq")[2] == ("failed", "buried", error)
        wait_until_buried(nsqd, "taskiq", [error])
        pages.edit_and_run("taskiq", id, ["18"])
        edited = ("failed", "buried", "ValueError: no such order: 18")
        assert reports.wait_for("fail", ends=4, library="taskiq")[3:] == [edited]
    last = [it for it in reports.events if it.library == "taskiq" and it.state.value == "failed"][-1]
    assert (last.library, last.topic, last.retries) == ("taskiq", "taskiq", 1)
    assert "raise ValueError" in last.traceback
