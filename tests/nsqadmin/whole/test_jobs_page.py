"""The pages about jobs, on two real nsqds: a queue of each state, and reports as workers send them.

All tests count what `fill` has made, so a test that changes jobs has a queue of its own.
"""

from __future__ import annotations

import gzip
import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlencode

import pytest

from nsqclient import sync
from nsqcommon.job_reports import TOPIC, JobEvent, JobReport, State, encode
from nsqcommon.wire.extensions import bury
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module
from tests.support.tools import address

needs_module("starlette")

HTML = "<script>alert(1)</script>"
TRACEBACK = (
    f'Traceback (most recent call last):\n  File "shop.py", line 7, in charge\nValueError: no such order {HTML}\n'
)


def exactly(value: int) -> dict[str, Any]:
    return {"value": value, "trust": "exact"}


def all_exactly(**counts: int) -> dict[str, Any]:
    return {name: exactly(counts.get(name, 0)) for name in ("waiting", "scheduled", "retrying", "failed", "in_flight")}


FILLED = {
    "shop.charge": all_exactly(failed=2, retrying=1),
    "remind": all_exactly(scheduled=1),
    "send_receipt": all_exactly(waiting=3),
    "shop.tasks.add": all_exactly(waiting=1),
}


@dataclass
class Shop:
    """Tasks of four libraries in two queues."""

    nodes: list[Nsqd]
    admin: Nsqadmin
    ids: dict[tuple[str, int], str] = field(default_factory=dict)  # nsqd's ids of messages by job id

    def text(self, path: str, status: int = 200) -> str:
        answer = self.admin.http("GET", path)
        assert answer.status == status, answer
        return unescape(answer.body.decode()).replace("<wbr>", "")

    def shows(self, path: str, *texts: str) -> str:
        """Return the page if it has all of these texts, or "" if not yet."""
        answer = self.admin.http("GET", path)
        page = unescape(answer.body.decode()).replace("<wbr>", "")
        return page if answer.status == 200 and all(text in page for text in texts) else ""

    def tasks(self) -> dict[str, Any]:
        return {it["name"]: it for it in self.admin.json("GET", "/api/v2/jobs").json["tasks"]}

    def whole(self, path: str) -> str:
        """Return a page for which all queues were read. On a busy machine the time for that may be over before."""
        page: str = eventually(lambda: "was not fully" not in (it := self.text(path)) and it)
        return page

    def filled(self) -> dict[str, Any]:
        """Return all tasks if nsqadmin has counted all that `fill` has made, or {}."""
        tasks = self.tasks()
        is_filled = all(tasks.get(name, {}) | counts == tasks.get(name) for name, counts in FILLED.items())
        return tasks if is_filled else {}

    def forget(self) -> None:
        """Delete the queues that a test has made: nsqadmin has some seconds to read all of them."""
        for node in self.nodes:
            for name in {it["topic_name"] for it in node.stats()["topics"]} - {"mails", "shop", TOPIC}:
                node.post(f"/topic/delete?topic={name}")

    def post(self, path: str, form: Mapping[str, str] | list[tuple[str, str]], status: int = 200) -> str:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = self.admin.http("POST", path, urlencode(form).encode(), headers=headers)
        assert answer.status == status, answer
        return unescape(answer.body.decode())


def headers(library: str, name: str, id: str, retries: int = 0) -> dict[str, str]:
    return {"job-library": library, "job-name": name, "job-id": id, "job-retries": str(retries)}


def celery_body(*args: object, **kwargs: object) -> bytes:
    """Return a message as kombu writes it."""
    return json.dumps(
        {
            "body": json.dumps([args, kwargs, {"callbacks": None, "chain": None}]),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"task": "shop.charge"},
            "properties": {"delivery_tag": "x", "delivery_info": {}},
        }
    ).encode()


def plain_body(*args: object, **kwargs: object) -> bytes:
    return json.dumps({"args": args, "kwargs": kwargs}).encode()


def publish(node: Nsqd, topic: str, body: bytes, job: dict[str, str], delay: float | None = None) -> None:
    with sync.producer(address(node.tcp)) as producer:
        producer.publish(topic, body, headers=job, delay=delay)


def fail(node: Nsqd, topic: str, *reasons: str) -> list[str]:
    """Let so many of the jobs that wait fail, and return nsqd's ids of the messages."""
    before = node.channel(topic, "jobs").get("buried_count", 0)
    with node.connect() as client:
        client.identify(feature_negotiation=True, extensions=["bury"])
        client.subscribe(topic, "jobs", ready=len(reasons))
        failing = client.messages(len(reasons))
        client.send(b"RDY 0\n", *(bury(it.id, reason) for it, reason in zip(failing, reasons, strict=True)))
        eventually(lambda: node.channel(topic, "jobs").get("buried_count") == before + len(reasons))
    return [it.id.decode() for it in failing]


def event(state: State, name: str, id: str, topic: str, **more: Any) -> JobEvent:
    known: dict[str, Any] = {
        "library": "celery",
        "channel": "jobs",
        "worker": "host-1:7",
        "started_at": time.time() - 2,
    }
    return JobEvent(state=state, name=name, id=id, topic=topic, **{**known, **more})


def report(node: Nsqd, *events: JobEvent, worker: str = "host-1:7", is_whole: bool = False, dropped: int = 0) -> None:
    body = encode(JobReport(worker=worker, events=events, is_whole=is_whole, dropped=dropped))
    with sync.producer(address(node.tcp)) as producer:
        producer.publish(TOPIC, body)


@contextmanager
def a_shop(folder: Path) -> Iterator[Shop]:
    options = ("retention-bytes=1GB", "broadcast-address=127.0.0.1")
    with Nsqd(folder / "one", *options) as one, Nsqd(folder / "two", *options) as two:
        for node in (one, two):
            for topic in ("mails", "shop"):
                node.post(f"/topic/create?topic={topic}")
                node.post(f"/channel/create?topic={topic}&channel=jobs")
        where = [f"nsqd-http-address={address(node.http_address)}" for node in (one, two)]
        with Nsqadmin(*where, "sample-interval=300ms", "discovery-interval=300ms", "enable-publish") as admin:
            shop = Shop([one, two], admin)
            fill(shop)
            eventually(shop.filled)
            yield shop
            assert "Traceback" not in admin.log


def fill(shop: Shop) -> None:
    one, two = shop.nodes
    publish(one, "shop", celery_body(17, currency="EUR"), headers("celery", "shop.charge", "failed-1"))
    publish(two, "shop", celery_body(18), headers("celery", "shop.charge", "failed-2"))
    for node, reason in ((one, f"ValueError: no such order {HTML}"), (two, "ValueError: no such order")):
        (shop.ids[node.tcp],) = fail(node, "shop", reason)
    publish(one, "shop", celery_body(19), headers("celery", "shop.charge", "retry-1", 2), delay=600)
    publish(one, "mails", plain_body("ana"), headers("taskiq", "remind", "later-1"), delay=600)
    for number in range(3):
        publish(one, "mails", plain_body(number), headers("dramatiq", "send_receipt", f"waits-{number}"))
    publish(two, "mails", plain_body(9), headers("django-tasks", "shop.tasks.add", "waits-9"))


def add_queue(shop: Shop, topic: str) -> None:
    """Give a test a queue of its own, and wait until nsqadmin knows it."""
    for node in shop.nodes:
        node.post(f"/topic/create?topic={topic}")
        node.post(f"/channel/create?topic={topic}&channel=jobs")
    eventually(lambda: len(shop.admin.json("GET", f"/api/v2/topics/{topic}/jobs").json.get("nodes", ())) == 2)


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with a_shop(tmp_path_factory.mktemp("shop")) as it:
        yield it


@pytest.fixture
def shop(open_shop: Shop) -> Iterator[Shop]:
    yield open_shop
    open_shop.forget()


def test_without_reports_the_broker_says_what_it_knows(shop: Shop) -> None:
    tasks = eventually(shop.filled)
    charge, remind = tasks["shop.charge"], tasks["remind"]  # no test reports the second one
    assert charge["libraries"] == ["celery"]
    assert charge["error"].startswith("ValueError: no such order")
    assert (remind["running"], remind["done_a_minute"], remind["p95"], remind["is_reported"]) == (
        None,
        None,
        None,
        False,
    )
    page = shop.whole("/jobs")
    assert page.index("shop.charge") < page.index("remind")  # the one that fails comes first
    assert "not reported" in page
    assert HTML not in shop.admin.http("GET", "/jobs").body.decode()


def test_a_filter_finds_tasks_by_name_library_and_state(shop: Shop) -> None:
    def names(path: str) -> set[str]:
        """Return the tasks on a page. Other tests have failed and scheduled jobs, too."""
        return FILLED.keys() & re.findall(r"/jobs/task\?name=([a-z_.]+)", shop.whole(path))

    assert names("/jobs?filter=dramatiq") == {"send_receipt"}
    assert names("/jobs?filter=shop.ch") == {"shop.charge"}
    assert names("/jobs?state=failed") == {"shop.charge"}
    assert names("/jobs?state=scheduled") == {"remind"}
    assert "No task matches" in shop.text("/jobs?filter=nothing")


def test_reports_become_running_jobs_and_run_times(shop: Shop) -> None:
    one, two = shop.nodes
    report(one, event(State.STARTED, "shop.heard", "runs-1", "shop"), is_whole=True)
    failed = event(
        State.FAILED,
        "shop.heard",
        "heard-1",
        "shop",
        ms=12.0,
        outcome="buried",
        error=f"ValueError: no such order {HTML}",
        traceback=TRACEBACK,
    )
    done = [event(State.SUCCEEDED, "shop.heard", f"done-{it}", "shop", ms=float(it)) for it in range(1, 21)]
    report(two, failed, *done, worker="host-2:8")
    # Each node's reports arrive on a connection of their own.
    wanted = {"done_a_minute": 21, "running": 1}
    heard = eventually(lambda: (it := shop.tasks().get("shop.heard", {})) | wanted == it and it)
    assert heard["p50"] == pytest.approx(0.011)
    assert heard["p95"] == pytest.approx(0.02)
    assert "No worker reports" not in shop.text("/jobs")


def test_the_reports_channel_disturbs_nobody(shop: Shop) -> None:
    report(shop.nodes[0], event(State.SUCCEEDED, "shop.seen", "seen-1", "shop", ms=1.0))
    eventually(lambda: "shop.seen" in shop.tasks())
    page = shop.text("/topics")
    assert "nsqadmin_tail_jobs" not in page
    verdicts = json.dumps(shop.admin.json("GET", "/api/v2/diagnose").json)
    assert "nsqjobs.outcomes" not in verdicts


def test_a_silent_node_makes_numbers_lower_bounds_and_is_named(tmp_path: Path) -> None:
    with a_shop(tmp_path) as shop:
        eventually(lambda: shop.tasks()["shop.charge"]["failed"] == exactly(2))
        assert "No worker reports its runs" in shop.text("/jobs")
        shop.nodes[1].send_signal(signal.SIGSTOP)
        eventually(lambda: shop.tasks()["shop.charge"]["failed"] == {"value": 1, "trust": "at least"})

        eventually(lambda: shop.tasks()["remind"]["failed"] == {"value": None, "trust": "unknown"})  # not 0
        assert address(shop.nodes[1].http_address) in json.dumps(shop.admin.json("GET", "/api/v2/jobs").json["missing"])
        page = shop.text("/jobs")
        assert "was not fully read" in page
        assert "unknown" in page
        assert "was not fully searched: it does not answer" in shop.text("/jobs/task?name=shop.charge")
        for text in ("0123456789abcdef", "job none-such"):
            silent = f"Not searched: {address(shop.nodes[1].http_address)} (it does not answer)."
            assert silent in jump(shop, text)["notes"]
        shop.nodes[1].send_signal(signal.SIGCONT)


# The jobs of a task


def test_the_page_of_a_task_lists_its_jobs_by_state(shop: Shop) -> None:
    page = shop.whole("/jobs/task?name=shop.charge")
    for id in ("failed-1", "failed-2", "retry-1"):
        assert f"/jobs/job?topic=shop&channel=jobs&id={id}" in page
    assert "ValueError: no such order" in page
    assert "Retry selected…" in page
    by_error = re.search(r'href="(/actions/retry_task\?[^"]*reason=ValueError[^"]*order)"', page)
    assert by_error is not None
    plan = shop.text(by_error[1])
    assert "Retry 1 failed job of shop.charge" in plan
    assert 'name="rate"' in plan
    assert "only those that failed with “ValueError: no such order”" in plan
    assert "Cancel selected…" in page
    assert page.index("&id=failed-2") < page.index("&id=failed-1")  # the newest first
    assert HTML not in shop.admin.http("GET", "/jobs/task?name=shop.charge").body.decode()


def test_jobs_that_workers_have_are_on_the_page_of_their_task(shop: Shop) -> None:
    one = shop.nodes[0]
    add_queue(shop, "held")
    publish(one, "held", plain_body(), headers("taskiq", "shop.held", "held-1"))
    with one.connect() as client:
        client.identify(client_id="mailer", hostname="host-3")
        client.subscribe("held", "jobs", ready=1)
        (held,) = client.messages(1)
        eventually(lambda: shop.tasks().get("shop.held", {}).get("in_flight") == exactly(1))
        page = shop.text("/jobs/task?name=shop.held")
        assert "With workers (some not started)" in page
        assert "host-3" in page
        client.send(b"RDY 0\nREQ %b 0\n" % held.id)  # without RDY 0 it would get a message again
        eventually(lambda: one.channel("held", "jobs")["in_flight_count"] == 0)
    eventually(lambda: shop.tasks().get("shop.held", {}).get("in_flight") == exactly(0))


def test_a_task_that_is_unknown(shop: Shop) -> None:
    assert "No task nothing" in shop.text("/jobs/task?name=nothing", 404)


# One job


def test_the_page_of_a_failed_job(shop: Shop) -> None:
    report_failure(shop)
    page = shop.text("/jobs/job?topic=shop&channel=jobs&id=failed-1")
    assert "shop.charge" in page
    assert '"currency": "EUR"' in page  # out of Celery's JSON in JSON
    assert 'File "shop.py", line 7, in charge' in page
    assert "Started by host-2:8" in page
    assert "Failed after 12 ms" in page
    assert page.index("Sent") < page.index("Started by") < page.index("Failed after")
    assert page.index("Sent") < page.index("Buried")
    assert "Retry…" in page
    assert HTML not in shop.admin.http("GET", "/jobs/job?topic=shop&id=failed-1").body.decode()
    assert shop.text("/jobs/failed-1") == page or "shop.charge" in shop.text("/jobs/failed-1")


def report_failure(shop: Shop) -> None:
    failed = event(
        State.FAILED,
        "shop.charge",
        "failed-1",
        "shop",
        started_at=time.time(),
        worker="host-2:8",
        ms=12.0,
        outcome="buried",
        traceback=TRACEBACK,
    )
    report(shop.nodes[0], failed, worker="host-2:8")
    eventually(lambda: "Failed after 12 ms" in shop.text("/jobs/job?topic=shop&id=failed-1"))


def test_a_failure_without_a_report_says_that_its_traceback_is_not_kept(shop: Shop) -> None:
    report_failure(shop)  # so there are reports, but none of this one
    page = shop.text("/jobs/job?topic=shop&id=failed-2")
    assert "Traceback not kept" in page
    assert "ValueError: no such order" in page
    assert "No worker has reported this job" in page


def test_a_job_is_found_by_its_id_alone(shop: Shop) -> None:
    assert "Retrying" in shop.text("/jobs/retry-1")
    assert "remind" in shop.text("/jobs/later-1")
    assert "No job none-such" in shop.text("/jobs/none-such", 404)


# The palette


def jump(shop: Shop, text: str) -> dict[str, Any]:
    found: dict[str, Any] = shop.admin.json("GET", f"/jump?{urlencode({'q': text})}").json
    return found


def jump_everywhere(shop: Shop, text: str) -> dict[str, Any]:
    """Return what the palette finds when it has had the time to search everything."""

    def searched() -> dict[str, Any] | None:
        found = jump(shop, text)
        is_part = any(it.startswith(("Not searched", "Searched in part")) for it in found["notes"])
        return None if is_part else found

    found: dict[str, Any] = eventually(searched)
    return found


def test_the_palette_finds_a_message_by_its_id_on_the_node_that_has_it(shop: Shop) -> None:
    for node in shop.nodes:
        id = shop.ids[node.tcp]
        (found,) = jump_everywhere(shop, id)["found"]
        assert (found["kind"], found["name"], found["detail"]) == (
            "message",
            f"{id} in shop",
            address(node.http_address),
        )
        assert id in shop.text(found["href"])
    assert jump_everywhere(shop, "0123456789abcdef") == {
        "found": [],
        "said": "No match",
        "notes": ["No match: no history that was searched has a message 0123456789abcdef."],
    }


@pytest.mark.parametrize(("id", "topic"), [("failed-1", "shop"), ("later-1", "mails"), ("waits-2", "mails")])
def test_the_palette_finds_a_job_by_its_id_with_or_without_reports(shop: Shop, id: str, topic: str) -> None:
    (found,) = jump_everywhere(shop, f"job {id}")["found"]
    assert (found["kind"], found["detail"]) == ("job", topic)
    assert id in shop.text(found["href"])


def test_the_palette_says_that_no_queue_has_a_job(shop: Shop) -> None:
    id = "6c1d6a3e-7c3c-4b6e-9a2e-1f2d3c4b5a69"
    assert jump_everywhere(shop, id)["notes"] == [f"No match: no queue that was searched has a job {id}."]


def test_the_palette_retries_a_task(shop: Shop) -> None:
    eventually(shop.filled)
    (found,) = (it for it in jump(shop, "retry charge")["found"] if it["kind"] == "command")
    assert "Retry 2 failed jobs of shop.charge" in shop.text(found["href"])


# Actions


def test_a_job_that_is_done_can_be_run_again(shop: Shop) -> None:
    one = shop.nodes[0]
    add_queue(shop, "again")
    publish(one, "again", celery_body("again"), headers("celery", "shop.again", "again-1"))
    with one.connect() as client:
        client.subscribe("again", "jobs", ready=1)
        (message,) = client.messages(1)
        client.finish(message)
        eventually(lambda: one.channel("again", "jobs")["in_flight_count"] == 0)
    report(one, event(State.SUCCEEDED, "shop.again", "again-1", "again", ms=20.0, outcome="finished"))
    # The message is readable in the history a moment after it was published.
    page = eventually(lambda: shop.shows("/jobs/job?topic=again&id=again-1", "Finished after 20 ms", "Run again…"))
    pick = re.search(r'name="pick" value="([^"]+)"', page)
    assert pick is not None
    plan = shop.post("/actions/redeliver", {"topic": "again", "channel": "jobs", "pick": pick[1]})
    assert "Replay 1 message of again" in plan
    shop.post("/actions/redeliver", {"topic": "again", "messages": pick[1], "to": "channel:jobs"})
    eventually(lambda: one.channel("again", "jobs")["depth"] == 1)
    with one.connect() as client:
        client.subscribe("again", "jobs", ready=1)
        client.finish(*client.messages(1))
        eventually(lambda: one.channel("again", "jobs")["in_flight_count"] == 0)


# Actions


def test_a_failed_job_is_retried_in_three_clicks_and_runs_once(shop: Shop) -> None:
    """From the page of jobs: the task, Retry, confirm."""
    one = shop.nodes[0]
    id = a_failed_job(shop, "shop.once", "once-1", celery_body(17))
    eventually(lambda: shop.tasks().get("shop.once", {}).get("failed") == exactly(1))
    page = shop.whole("/jobs/task?name=shop.once")
    jobs = shop.whole("/jobs")
    assert "/jobs/task?name=shop.once" in jobs
    assert "/actions/retry_task?topic=edit-once-1&channel=jobs&task=shop.once" in jobs
    pick = f"{id}@{address(one.http_address)}"
    assert f'value="{pick}"' in page
    form = {"topic": "edit-once-1", "channel": "jobs", "on": "selected", "pick": pick, "task": "shop.once"}
    assert "Kick 1 buried message" in shop.text(f"/actions/kick_buried?{urlencode(form)}")
    assert one.channel("edit-once-1", "jobs").get("buried_count") == 1  # only asked
    assert "1 message kicked" in shop.post("/actions/kick_buried", form)
    with one.connect() as client:
        client.identify(feature_negotiation=True, extensions=["bury"])
        client.subscribe("edit-once-1", "jobs", ready=5)
        (message,) = client.messages(1)
        assert message.id.decode() == id
        client.send(bury(message.id, "ValueError: no such order"))
        assert client.stays_silent(0.2)
    eventually(lambda: one.channel("edit-once-1", "jobs").get("buried_count") == 1)


def test_all_failed_jobs_of_a_task_are_retried(shop: Shop) -> None:
    one, two = shop.nodes
    add_queue(shop, "retried")
    for node, task, id in ((one, "task", "task-1"), (two, "task", "task-2"), (one, "other", "other-1")):
        publish(node, "retried", celery_body(), headers("celery", f"shop.{task}", id))
        fail(node, "retried", f"KeyError: {task}")
    form = {"topic": "retried", "channel": "jobs", "task": "shop.task"}
    eventually(lambda: shop.tasks().get("shop.other", {}).get("failed") == exactly(1))
    plan = shop.text(f"/actions/retry_task?{urlencode(form)}")
    assert "Retry 2 failed jobs of shop.task" in plan
    assert "At most 1,000 a second over all nodes" in plan
    receipt = shop.post("/actions/retry_task", form)
    assert "2 jobs retried" in receipt
    assert [it.channel("retried", "jobs")["depth"] for it in (one, two)] == [1, 1]
    assert one.channel("retried", "jobs")["buried_count"] == 1  # of the other task
    assert "The last retry ended" in shop.text("/jobs/task?name=shop.task")
    undo = [("topic", "retried"), ("channel", "jobs"), *re.findall(r'name="(kick)" value="([^"]+)"', receipt)]
    assert "2 messages buried again" in shop.post("/actions/undo_kick", undo)
    assert "No job of this task is buried" in shop.post("/actions/retry_task", form | {"task": "x"}, 404)


def test_a_retry_at_a_rate_shows_its_progress_and_stops(shop: Shop) -> None:
    one = shop.nodes[0]
    with sync.producer(address(one.tcp)) as producer:
        for number in range(20):
            producer.publish("slow", plain_body(number), headers=headers("taskiq", "slow", f"slow-{number}"))
    one.post("/channel/create?topic=slow&channel=jobs")
    fail(one, "slow", *(f"ValueError: {number % 2}" for number in range(20)))
    eventually(lambda: shop.tasks().get("slow", {}).get("failed") == exactly(20))
    form = {"topic": "slow", "channel": "jobs", "task": "slow", "rate": "0.1", "reason": "ValueError: 1"}
    assert "Retry 10 failed jobs of slow" in shop.text(f"/actions/retry_task?{urlencode(form)}")
    assert "Retry 3 failed jobs of slow" in shop.text(f"/actions/retry_task?{urlencode(form | {'limit': '3'})}")
    began = time.monotonic()
    receipt = shop.post("/actions/retry_task", form)
    assert "Running:" in receipt
    assert "of 10 jobs retried" in receipt
    page = shop.text("/jobs/task?name=slow")
    assert "data-hurries" in page
    assert "0.1/s" in page
    assert "A retry of this task is running" in shop.post("/actions/retry_task", form, 409)
    stopped = shop.post("/actions/stop_retry", {"topic": "slow", "retry": hidden(page)["retry"]})
    assert "Stopped:" in stopped
    done = one.channel("slow", "jobs")["depth"]
    assert f"{done} job" in stopped
    assert 1 <= done <= 1 + (time.monotonic() - began) * 0.1
    said = json.dumps(shop.admin.json("GET", "/api/v2/activity").json)
    assert f"retried {done} failed jobs of one task of slow/jobs at 0.1 a second, then stopped" in said


def test_a_job_that_raised_after_its_acknowledgement_is_run_again_from_the_page_of_jobs(shop: Shop) -> None:
    """From the page of jobs: Run again, confirm. It ran again once, so it is no longer offered once that succeeds."""
    one = shop.nodes[0]
    publish(one, "early", plain_body(1), headers("taskiq", "mails.early", "early-1"))
    with one.connect() as client:
        client.subscribe("early", "jobs", ready=1)
        client.finish(*client.messages(1))
    raised = event(State.FAILED, "mails.early", "early-1", "early", ms=5.0, outcome="finished", error="ValueError: x")
    report(one, raised)
    eventually(lambda: shop.tasks().get("mails.early", {}).get("raised") == 1)
    eventually(lambda: shop.admin.http("GET", "/api/v2/topics/early/jobs").status == 200)  # a report may come first
    page = shop.text("/jobs?filter=mails.early")
    assert "+1 not buried" in page
    link = re.search(r'href="(/actions/redeliver\?[^"]*mails.early[^"]*)"', page)
    assert link is not None
    plan = eventually(lambda: shop.shows(link[1], "Replay 1 message of early"))
    assert re.search(r'value="channel:jobs" required checked', plan)
    task = shop.text("/jobs/task?name=mails.early")
    assert "Run selected again…" in task
    assert 'name="job" value="early-1"' in task
    assert "Select jobs first" in shop.text(f"{link[1]}&on=selected", 400)
    before = one.channel("early", "jobs")["depth"]
    shop.post("/actions/redeliver", {"topic": "early", "messages": hidden(plan)["messages"], "to": "channel:jobs"})
    assert one.channel("early", "jobs")["depth"] == before + 1
    report(one, event(State.SUCCEEDED, "mails.early", "early-1", "early", started_at=time.time() + 1, ms=5.0))
    eventually(lambda: shop.tasks()["mails.early"]["raised"] == 0)
    shop.post("/actions/redeliver", {"topic": "early", "messages": hidden(plan)["messages"], "to": "channel:none"}, 404)


# Edit and run


def hidden(page: str) -> dict[str, str]:
    """Return the hidden fields of a form."""
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page))


def text_area(page: str, name: str) -> str:
    found = re.search(rf'<textarea[^>]* name="{name}"[^>]*>\n([^<]*)</textarea>', page)
    assert found is not None
    return found[1]


def edit_form(shop: Shop, page: str) -> str:
    """Follow the link to edit what a page is about."""
    found = re.search(r'href="(/actions/edit\?[^"]+)"', page)
    assert found is not None
    return shop.text(found[1])


def a_failed_job(shop: Shop, name: str, id: str, body: bytes, library: str = "celery") -> str:
    """Bury a job with this body, and return nsqd's id of the message."""
    one = shop.nodes[0]
    topic = f"edit-{id}"
    one.post(f"/topic/create?topic={topic}")
    for channel in ("jobs", "audit"):
        one.post(f"/channel/create?topic={topic}&channel={channel}")
    publish(one, topic, body, headers(library, name, id))
    (failing,) = fail(one, topic, "ValueError: x")
    eventually(lambda: b"Edit and run" in shop.admin.http("GET", f"/jobs/job?topic={topic}&id={id}").body)
    return failing


def taken(shop: Shop, topic: str, channel: str = "jobs") -> list[bytes]:
    """Take all messages that wait in a channel, and return their bodies."""
    node = shop.nodes[0]
    depth = node.channel(topic, channel)["depth"]
    with node.connect() as client:
        client.subscribe(topic, channel, ready=10)
        messages = client.messages(depth)
        assert client.stays_silent(0.1)
        client.finish(*messages)
    return [it.body for it in messages]


def test_edit_and_run_runs_the_edited_arguments_once_and_links_to_the_copy(shop: Shop) -> None:
    old = a_failed_job(shop, "shop.fix", "fix-1", celery_body(17, currency="EUR"))
    page = edit_form(shop, shop.text("/jobs/job?topic=edit-fix-1&id=fix-1"))
    assert json.loads(text_area(page, "args")) == [17]  # out of Celery's JSON in JSON
    assert "The message is discarded in edit-fix-1/jobs and the edited copy runs there instead" in page
    assert "Other channels of the topic don't get the copy, and keep the message as it was" in page
    assert "It keeps its job id" in page
    assert "Run with these arguments</button>" in page
    assert re.search('<a href="/jobs/job[?][^"]*">fix-1</a></li><li>edit and run</li>', page)
    assert re.search('<a href="/jobs" aria-current="page">', page)
    form = hidden(page) | {"args": "[ 18 ]", "kwargs": text_area(page, "kwargs"), "when": "now"}
    receipt = shop.post("/actions/edit", form)
    assert "its edited copy runs instead" in receipt
    again = shop.post("/actions/edit", form)  # a double click, or a repeat after no answer
    assert "ran only once" in again
    copy = re.search(r'id <span class="mono">([0-9a-f]{16})</span>', receipt)
    assert copy is not None
    assert copy[1] in again
    assert copy[1] != old
    assert 'href="/jobs/job?topic=edit-fix-1&channel=jobs&id=fix-1"' in receipt
    link = re.search(r'href="(/message\?[^"]+)">Open the copy', receipt)
    assert link is not None
    eventually(lambda: shop.shows(link[1], copy[1]))
    (body,) = taken(shop, "edit-fix-1")
    assert json.loads(json.loads(body)["body"])[:2] == [[18], {"currency": "EUR"}]
    assert [json.loads(it)["body"][:6] for it in taken(shop, "edit-fix-1", "audit")] == ["[[17],"]
    said = json.dumps(shop.admin.json("GET", "/api/v2/activity").json)
    assert "ran an edited copy of message 0 of edit-fix-1/jobs, as message 1" in said
    assert "EUR" not in said


@pytest.mark.parametrize(
    ("queue", "tab"), [("mails", "messages"), ("shop", "deferred"), ("shop", "buried"), ("taken", "inflight")]
)
def test_each_message_of_a_channel_can_be_edited_from_its_details(shop: Shop, queue: str, tab: str) -> None:
    one = shop.nodes[0]
    with one.connect() as client:
        if tab == "inflight":
            add_queue(shop, queue)
            publish(one, queue, plain_body(), headers("taskiq", "shop.taken", "taken-1"))
            client.subscribe(queue, "jobs", ready=1)
            client.messages(1)
        link = re.search(r'<a href="([^"]+)" data-detail', shop.text(f"/topics/{queue}/jobs?tab={tab}"))
        assert link is not None
        eventually(lambda: shop.shows(link[1], "/actions/edit?"))  # the history has a message a moment after it came
        assert "The copy gets a new message id" in edit_form(shop, shop.text(link[1]))


def test_wrong_text_is_refused_before_anything_is_sent_and_stays_in_the_form(shop: Shop) -> None:
    a_failed_job(shop, "shop.fix", "fix-2", celery_body(17))
    form = hidden(edit_form(shop, shop.text("/jobs/job?topic=edit-fix-2&id=fix-2")))
    page = shop.post("/actions/edit", form | {"args": "[18,", "kwargs": "{}"}, 400)
    assert "args: line 1, column" in page
    assert text_area(page, "args") == "[18,"
    assert "say when" in shop.post("/actions/edit", form | {"args": "[18]", "kwargs": "{}", "when": "soon"}, 400)
    large = json.dumps(["x" * 1_100_000])
    page = shop.post("/actions/edit", form | {"args": large, "kwargs": "{}"}, 409)
    assert "the message is larger than its --max-msg-size. Nothing was run." in page
    assert shop.nodes[0].channel("edit-fix-2", "jobs")["buried_count"] == 1
    assert "its edited copy runs instead" in shop.post("/actions/edit", form | {"args": "[18]", "kwargs": "{}"})


def test_a_message_that_has_moved_on_is_a_conflict_in_words(shop: Shop) -> None:
    a_failed_job(shop, "shop.fix", "fix-3", celery_body(17))
    one, page = shop.nodes[0], edit_form(shop, shop.text("/jobs/job?topic=edit-fix-3&id=fix-3"))
    form = hidden(page) | {"args": "[18]", "kwargs": "{}"}
    one.post("/channel/kick?topic=edit-fix-3&channel=jobs")
    with one.connect() as client:
        client.identify(hostname="host-4", client_id="x", feature_negotiation=True)
        client.subscribe("edit-fix-3", "jobs", ready=1)
        (held,) = client.messages(1)
        assert "the consumer on host-4 has it" in shop.post("/actions/edit", form, 409)
        client.finish(held)
        eventually(lambda: one.channel("edit-fix-3", "jobs")["in_flight_count"] == 0)
    page = shop.post("/actions/edit", form, 409)
    assert "it is finished meanwhile" in page
    assert "Run the copy anyway, in addition" in page
    assert text_area(page, "args") == "[18]"
    assert "in addition to the message" in shop.post("/actions/edit", form | {"again": "yes"})
    other = form | {"token": "another", "args": "[19]"}
    assert "it is finished meanwhile" in shop.post("/actions/edit", other, 409)
    assert len(taken(shop, "edit-fix-3")) == 1


def test_a_form_whose_message_is_gone_does_not_claim_that_no_copy_ever_ran(shop: Shop) -> None:
    a_failed_job(shop, "shop.fix", "fix-gone", celery_body(17))
    page = edit_form(shop, shop.text("/jobs/job?topic=edit-fix-gone&id=fix-gone"))
    form = hidden(page) | {"args": "[18]", "kwargs": "{}"}
    assert "its edited copy runs instead" in shop.post("/actions/edit", form)
    refused = shop.post("/actions/edit", form | {"sequence": "99"}, 404)
    assert "Nothing was run now" in refused
    assert "If you sent this form before, the copy may have run then." in refused


def test_of_two_users_who_edit_a_message_one_is_told_of_the_other(shop: Shop) -> None:
    a_failed_job(shop, "shop.fix", "fix-4", celery_body(17))
    page = shop.text("/jobs/job?topic=edit-fix-4&id=fix-4")
    forms = [hidden(edit_form(shop, page)) | {"args": f"[{it}]", "kwargs": "{}"} for it in (1, 2)]
    assert forms[0]["token"] != forms[1]["token"]
    shop.post("/actions/edit", forms[0])
    assert "an edited copy has replaced it already" in shop.post("/actions/edit", forms[1], 409)
    assert len(taken(shop, "edit-fix-4")) == 1


@pytest.mark.parametrize("body", [b"\x00\x01\xff binary", b"line\r\nend", b"\nfirst line is empty"])
def test_any_body_can_be_edited_and_comes_back_as_it_was(shop: Shop, body: bytes) -> None:
    id = f"raw-{body[0]}"
    a_failed_job(shop, "shop.raw", id, body, "taskiq")
    page = edit_form(shop, shop.text(f"/jobs/job?topic=edit-{id}&id={id}"))
    assert "The arguments cannot be edited by themselves: the body isn't in the usual form of taskiq" in page
    name = "body" if body[:1] == b"\n" else "base64"
    typed = text_area(page, name).replace("\n", "\r\n")  # as browsers send it
    shop.post("/actions/edit", hidden(page) | {name: typed})
    assert taken(shop, f"edit-{id}") == [body]


def test_a_whole_body_that_was_json_stays_json_unless_one_insists(shop: Shop) -> None:
    a_failed_job(shop, "shop.fix", "fix-5", plain_body(17), "taskiq")
    page = edit_form(shop, shop.text("/jobs/job?topic=edit-fix-5&id=fix-5"))
    link = re.search(r'href="([^"]+)" data-dialog>Edit the whole body', page)
    assert link is not None
    form = hidden(shop.text(link[1])) | {"body": "{"}
    page = shop.post("/actions/edit", form, 400)
    assert "The body was JSON and is none now" in page
    assert 'name="odd"' in page
    shop.post("/actions/edit", form | {"odd": "yes", "when": "1h"})
    assert shop.nodes[0].channel("edit-fix-5", "jobs")["deferred_count"] == 1  # it was to run later


# Rights

ROLES = """
[[role]]
name = "numbers"
users = ["ben"]
can = ["viewer"]

[[role]]
name = "may not see"
users = ["eva"]
can = ["viewer", "publish", "operator"]

[[role]]
name = "may not publish"
users = ["fay"]
can = ["payload", "operator"]
"""


@dataclass
class Guarded:
    """One job, and an nsqadmin with roles."""

    nsqd: Nsqd
    admin: Nsqadmin

    def ask(self, user: str, path: str, form: str = "") -> Any:
        who = {"x-forwarded-user": user, "content-type": "application/x-www-form-urlencoded"}
        return self.admin.http("POST" if form else "GET", path, form.encode(), headers=who)


@contextmanager
def a_guarded(folder: Path) -> Iterator[Guarded]:
    (folder / "roles.toml").write_text(ROLES)
    with Nsqd(folder / "nsqd", "retention-bytes=1GB", "broadcast-address=127.0.0.1") as nsqd:
        publish(nsqd, "shop", celery_body(17), headers("celery", "shop.charge", "id-1"))
        nsqd.post("/channel/create?topic=shop&channel=jobs")
        report(nsqd, event(State.FAILED, "shop.secret", "id-2", "shop", traceback="secret traceback"))
        where, roles = f"nsqd-http-address={address(nsqd.http_address)}", f"roles-file={folder / 'roles.toml'}"
        with Nsqadmin(where, "sample-interval=300ms", roles, "enable-publish", r"mask=\d+") as admin:
            it = Guarded(nsqd, admin)
            eventually(lambda: b"shop" in it.ask("ben", "/jobs").body)
            eventually(lambda: b"shop.secret" in it.ask("fay", "/jobs").body)
            yield it
            assert "Traceback" not in admin.log


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with a_guarded(tmp_path_factory.mktemp("guarded")) as it:
        yield it


def test_without_payload_no_task_has_a_name(guarded: Guarded) -> None:
    page = guarded.ask("ben", "/jobs").body.decode()
    assert "shop.charge" not in page
    assert "payload" in page
    answer = json.loads(guarded.ask("ben", "/api/v2/jobs").body)
    assert (answer["tasks"], answer["hidden"]) == ([], ["shop"])
    assert [it["waiting"] for it in answer["queues"]] == [1]
    assert guarded.ask("ben", "/jobs/task?name=shop.charge").status == 404
    assert guarded.ask("ben", "/jobs/job?topic=shop&id=id-2").status == 403
    assert b"secret" not in guarded.ask("ben", "/jobs/id-2").body
    assert b"shop.charge" not in guarded.ask("ben", "/jump?q=charge").body


@pytest.mark.parametrize(("user", "right"), [("ben", "payload"), ("eva", "payload"), ("fay", "publish")])
def test_an_edit_needs_to_see_to_publish_and_to_operate(guarded: Guarded, user: str, right: str) -> None:
    """A mask is no exception: the hidden parts would be overwritten."""
    where = {"topic": "shop", "channel": "jobs", "node": address(guarded.nsqd.http_address), "sequence": 0}
    for form in ("", urlencode(where | {"args": "[]", "kwargs": "{}"})):
        answer = guarded.ask(user, f"/actions/edit?{urlencode(where)}", form)
        assert (answer.status, f"the right '{right}'" in unescape(answer.body.decode())) == (403, True)
        assert b"shop.charge" not in answer.body
    assert guarded.nsqd.channel("shop", "jobs")["depth"] == 1


def test_a_flood_of_task_names_makes_neither_a_heavy_page_nor_a_false_number(tmp_path: Path) -> None:
    """Each is as long and as random as can be, so that nothing compresses it; fay may see them."""
    with a_guarded(tmp_path) as guarded:
        nsqd, names = guarded.nsqd, [token_hex(127) for _ in range(1_200)]
        with sync.producer(address(nsqd.tcp)) as producer:
            producer.publish_many("flood", [b"{}"] * 1_200, headers=[headers("celery", it, "x") for it in names])
        nsqd.post("/channel/create?topic=flood&channel=jobs")
        fail(nsqd, "flood", *["x"] * 1_200)
        eventually(lambda: b"There are too many task names" in guarded.ask("fay", "/jobs").body)
        answer = eventually(
            lambda: (it := json.loads(guarded.ask("fay", "/api/v2/jobs").body))["unlisted_jobs"] == 1_202 - 1_001 and it
        )
        assert len(answer["tasks"]) == 1_001
        page = guarded.ask("fay", "/jobs").body
        assert len(gzip.compress(page, 4)) < 40_000  # scripts and styles have the other 20 kB
        listed = {it["name"] for it in answer["tasks"]}
        unlisted = next(it for it in names if it not in listed)
        shown = guarded.ask("fay", f"/jobs/task?name={unlisted}")
        assert shown.status == 200
        assert b"unknown" in shown.body
        assert b"Retry all of this task" in shown.body
        none = guarded.ask("fay", "/jobs/task?name=nothing")
        assert (none.status, b"None was found among the jobs that could be read" in none.body) == (404, True)


# Anyone may publish to the topic


def test_no_report_and_no_argument_breaks_a_page(shop: Shop) -> None:
    broken = "broken \ud800 \x00\x1b[31m</script>\u202e"
    job = headers("celery", "shop.broken", "broken-1")
    add_queue(shop, "broken")
    publish(shop.nodes[0], "broken", celery_body(broken), job, delay=3600)
    failed = event(
        State.FAILED, broken, broken, "broken", error=broken, traceback=broken, outcome=broken, worker=broken
    )
    known = replace(failed, name="shop.broken", id="broken-1")
    report(shop.nodes[0], failed, known, replace(failed, state=State.STARTED), worker=broken)
    eventually(lambda: b"shop.broken" in shop.admin.http("GET", "/metrics").body)
    for path in (
        "/jobs",
        "/api/v2/jobs",
        "/metrics",
        "/jump?q=broken",
        "/jobs/task?name=shop.broken",
        "/jobs/job?topic=broken&id=broken-1",
        "/api/v2/jobs/job?topic=broken&id=broken-1",
    ):
        assert shop.admin.http("GET", path).status == 200, path
