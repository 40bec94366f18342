"""The pages about jobs, on two real nsqds: a queue of each state, and reports as workers send them."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
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
TRACEBACK = f'Traceback (most recent call last):\n  File "shop.py", line 7, in charge\nValueError: no such order {HTML}\n'


@dataclass
class Shop:
    """Tasks of four libraries in two queues."""

    nodes: list[Nsqd]
    admin: Nsqadmin
    ids: dict[str, str] = field(default_factory=dict)  # nsqd's ids of messages by job id

    def text(self, path: str, status: int = 200) -> str:
        answer = self.admin.http("GET", path)
        assert answer.status == status, answer
        return unescape(answer.body.decode())

    def tasks(self) -> dict[str, Any]:
        return {it["name"]: it for it in self.admin.json("GET", "/api/v2/jobs").json["tasks"]}

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


def event(state: State, name: str, id: str, topic: str, **more: Any) -> JobEvent:
    known: dict[str, Any] = {"library": "celery", "channel": "jobs", "worker": "host-1:7", "started_at": time.time() - 2}
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
        with Nsqadmin(*where, "sample-interval=300ms", "discovery-interval=300ms") as admin:
            shop = Shop([one, two], admin)
            fill(shop)
            eventually(lambda: len(shop.tasks()) >= 4)
            yield shop
            assert "Traceback" not in admin.log


def fill(shop: Shop) -> None:
    one, two = shop.nodes
    publish(one, "shop", celery_body(17, currency="EUR"), headers("celery", "shop.charge", "failed-1"))
    publish(two, "shop", celery_body(18), headers("celery", "shop.charge", "failed-2"))
    for node, reason in ((one, f"ValueError: no such order {HTML}"), (two, "ValueError: no such order")):
        with node.connect() as client:
            client.identify(feature_negotiation=True, extensions=["bury"])
            client.subscribe("shop", "jobs", ready=1)
            (failing,) = client.messages(1)
            client.send(bury(failing.id, reason))
            eventually(lambda node=node: node.channel("shop", "jobs").get("buried_count") == 1)
            shop.ids[node.tcp] = failing.id.decode()
    publish(one, "shop", celery_body(19), headers("celery", "shop.charge", "retry-1", 2), delay=600)
    publish(one, "mails", plain_body("ana"), headers("taskiq", "remind", "later-1"), delay=600)
    for number in range(3):
        publish(one, "mails", plain_body(number), headers("dramatiq", "send_receipt", f"waits-{number}"))
    publish(two, "mails", plain_body(9), headers("django-tasks", "shop.tasks.add", "waits-9"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with a_shop(tmp_path_factory.mktemp("shop")) as it:
        yield it


def exactly(value: int) -> dict[str, Any]:
    return {"value": value, "trust": "exact"}


def test_without_reports_the_broker_says_what_it_knows(shop: Shop) -> None:
    eventually(lambda: shop.tasks()["shop.charge"]["failed"] == exactly(2))
    charge = shop.tasks()["shop.charge"]
    assert charge["retrying"] == exactly(1)
    assert charge["scheduled"] == exactly(0)
    assert charge["libraries"] == ["celery"]
    assert charge["error"].startswith("ValueError: no such order")
    assert (charge["running"], charge["done_a_minute"], charge["p95"], charge["is_reported"]) == (None, None, None, False)
    assert shop.tasks()["remind"]["scheduled"] == exactly(1)
    assert shop.tasks()["send_receipt"]["waiting"] == exactly(3)
    assert shop.tasks()["shop.tasks.add"]["waiting"] == exactly(1)
    page = shop.text("/jobs")
    assert page.index("shop.charge") < page.index("remind")  # the one that fails comes first
    assert "not reported" in page
    assert "No worker reports its runs" in page
    assert HTML not in shop.admin.http("GET", "/jobs").body.decode()


def test_a_filter_finds_tasks_by_name_library_and_state(shop: Shop) -> None:
    def names(path: str) -> set[str]:
        return set(re.findall(r"/jobs/task\?name=([a-z_.]+)", shop.text(path)))

    assert names("/jobs?filter=dramatiq") == {"send_receipt"}
    assert names("/jobs?filter=shop.ch") == {"shop.charge"}
    assert names("/jobs?state=failed") == {"shop.charge"}
    assert names("/jobs?state=scheduled") == {"remind"}
    assert "No task matches" in shop.text("/jobs?filter=nothing")


def test_reports_are_heard_within_two_seconds_of_a_sample(shop: Shop) -> None:
    one, two = shop.nodes
    report(one, event(State.STARTED, "shop.charge", "runs-1", "shop"), is_whole=True)
    failed = event(
        State.FAILED,
        "shop.charge",
        "failed-1",
        "shop",
        ms=12.0,
        outcome="buried",
        error=f"ValueError: no such order {HTML}",
        traceback=TRACEBACK,
        message=shop.ids[one.tcp],
    )
    done = [event(State.SUCCEEDED, "shop.charge", f"done-{it}", "shop", ms=float(it)) for it in range(1, 21)]
    report(two, failed, *done, worker="host-2:8")
    eventually(lambda: shop.tasks()["shop.charge"]["done_a_minute"] == 21)
    charge = shop.tasks()["shop.charge"]
    assert charge["running"] == 1
    assert charge["p50"] == pytest.approx(0.011)
    assert charge["p95"] == pytest.approx(0.02)
    assert "No worker reports" not in shop.text("/jobs")


def test_the_reports_channel_disturbs_nobody(shop: Shop) -> None:
    eventually(lambda: shop.nodes[0].topic(TOPIC) is not None)
    page = shop.text("/topics")
    assert "nsqadmin_tail_jobs" not in page
    verdicts = json.dumps(shop.admin.json("GET", "/api/v2/diagnose").json)
    assert "nsqjobs.outcomes" not in verdicts


def test_a_silent_node_makes_numbers_lower_bounds_and_is_named(tmp_path: Path) -> None:
    with a_shop(tmp_path) as shop:
        eventually(lambda: shop.tasks()["shop.charge"]["failed"] == exactly(2))
        shop.nodes[1].send_signal(signal.SIGSTOP)
        eventually(lambda: shop.tasks()["shop.charge"]["failed"] == {"value": 1, "trust": "at least"})
        tasks = shop.tasks()
        assert tasks["remind"]["failed"] == {"value": None, "trust": "unknown"}  # not 0
        assert address(shop.nodes[1].http_address) in json.dumps(shop.admin.json("GET", "/api/v2/jobs").json["missing"])
        page = shop.text("/jobs")
        assert "was not fully read" in page
        assert "unknown" in page
        shop.nodes[1].send_signal(signal.SIGCONT)
