"""Jobs in nsqadmin: messages with the headers of job queues, which a plain producer can publish."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from nsqclient import sync
from nsqcommon.wire.extensions import bury
from tests.support.process import PATIENT, Nsqadmin, Nsqd, eventually, needs_module
from tests.support.tools import address

needs_module("starlette")


ETA = 600.0  # seconds from the start
MESSAGES = "/topics/mails"
TAB = "/topics/mails/jobs?tab="


@dataclass
class Jobs:
    """The queue `mails` has a job that waits, one that is deferred and one that is buried, and a message that is no job."""

    nsqd: Nsqd
    admin: Nsqadmin
    eta: float

    def text(self, path: str) -> str:
        answer = self.admin.http("GET", path)
        assert answer.status == 200, answer
        return unescape(answer.body.decode())

    def found(self, wanted: str) -> list[Any]:
        query = urlencode({"from": "earliest", "filter": wanted})
        return list(self.admin.json("GET", f"/api/v2/messages/mails?{query}").json["messages"])


def job(name: str, number: int, **more: str) -> dict[str, str]:
    return {"job-library": "celery", "job-name": name, "job-id": f"id-{number}", "job-retries": "1", **more}


@contextmanager
def a_queue(folder: Path) -> Iterator[Jobs]:
    with Nsqd(folder / "nsqd", "retention-bytes=1GB", "broadcast-address=127.0.0.1") as nsqd:
        nsqd.post("/topic/create?topic=mails")
        nsqd.post("/channel/create?topic=mails&channel=jobs")
        eta = time.time() + ETA
        with sync.producer(address(nsqd.tcp)) as producer:
            producer.publish("mails", b'{"no": "job"}', headers={"tenant": "us"})
            producer.publish("mails", b'{"args": [1]}', headers=job("shop.fails", 1))
            bury_one(nsqd, "ValueError in shop.fails")
            later = job("shop.later", 2, **{"job-eta": str(round(eta * 1000))})
            producer.publish("mails", b'{"args": [2]}', delay=ETA, headers=later)
            producer.publish("mails", b'{"args": [3]}', headers=job("shop.send", 3, tenant="eu"))
        where = f"nsqd-http-address={address(nsqd.http_address)}"
        with Nsqadmin(where, "sample-interval=300ms", "discovery-interval=300ms", PATIENT) as admin:
            it = Jobs(nsqd, admin, eta)
            eventually(lambda: admin.http("GET", f"{TAB}deferred").status == 200)
            eventually(lambda: it.found("header.job-name = shop.send"))  # the last that was published
            yield it
            assert "Traceback" not in admin.log


def bury_one(nsqd: Nsqd, reason: str) -> None:
    with nsqd.connect() as client:
        client.identify(feature_negotiation=True, extensions=["bury"])
        client.subscribe("mails", "jobs", ready=2)
        plain, failing = client.messages(2)
        client.send(b"REQ %b 0\n" % plain.id)
        client.send(bury(failing.id, reason))
        eventually(lambda: nsqd.channel("mails", "jobs").get("buried_count") == 1)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with a_queue(tmp_path_factory.mktemp("jobs")) as it:
        yield it


def test_the_api_tells_the_job_of_a_message_and_search_finds_it(queue: Jobs) -> None:
    (found,) = queue.found("header.job-name = shop.send")
    assert found["job"] == {"name": "shop.send", "id": "id-3", "library": "celery", "retries": 1}
    assert found["headers"]["tenant"] == "eu"
    (plain,) = queue.found("no = job")
    assert "job" not in plain


def test_a_message_is_shown_as_a_job_with_the_rest_folded(queue: Jobs) -> None:
    (found,) = queue.found("header.job-name = shop.send")
    place = {"topic": "mails", "node": found["node"], "sequence": found["sequence"]}
    page = queue.text(f"/message?{urlencode(place)}")
    assert '<dt>Task</dt><dd class="mono">shop.send</dd>' in page
    assert "<dt>ETA</dt><dd>at once</dd><dt>Retries</dt><dd>1</dd><dt>Library</dt><dd>celery</dd>" in page
    assert "<summary>Other headers</summary>" in page
    assert '<details class="job-body"><summary>Body</summary>' in page
    assert 'data-label="job-name"' not in page
    assert '<details class="job-body" open><summary>Body</summary>' in queue.text(
        f"/message?{urlencode(place | {'as': 'hex'})}"
    )


def test_what_is_no_job_looks_as_before(queue: Jobs) -> None:
    (plain,) = queue.found("no = job")
    page = queue.text(f"/message?{urlencode({'topic': 'mails', 'node': plain['node'], 'sequence': plain['sequence']})}")
    assert "<dt>Task</dt>" not in page
    assert 'class="job-body"' not in page
    assert 'data-label="tenant"' in page


def test_the_history_names_tasks_and_hints_at_a_search(queue: Jobs) -> None:
    page = queue.text(f"{MESSAGES}?tab=messages&from=earliest")
    assert '<span class="chip" title="celery">shop.send</span>' in page
    assert "a word, or header.job-name = shop." in page
    page = queue.text(f"{MESSAGES}?" + urlencode({"tab": "messages", "from": "earliest", "filter": "no = job"}))
    assert "a word, or customer.country" in page


def test_deferred_jobs_have_their_task_and_time(queue: Jobs) -> None:
    page = queue.text(f"{TAB}deferred")
    assert '<td data-label="Task" class="mono">shop.' in page
    assert "or header.job-name = shop.later" in page
    (listed,) = queue.admin.json("GET", "/api/v2/deferred/mails/jobs").json["messages"]
    assert listed["message"]["job"]["name"] == "shop.later"
    assert abs(listed["message"]["job"]["eta"] - queue.eta) < 0.01
    query = urlencode({"topic": "mails", "channel": "jobs", "node": listed["node"], "place": place_in(page)})
    page = queue.text(f"/deferred?{query}")
    assert '<dt>Job id</dt><dd class="mono"><a href="/jobs/id-2">id-2</a></dd>' in page
    assert re.search(r"in \d+m", page.partition("<dt>ETA</dt>")[2][:200])  # nine, or ten if less than half a second ago


def place_in(page: str) -> str:
    return page.partition("place=")[2].partition('"')[0].partition("&")[0].replace("%2C", ",")


def test_buried_jobs_are_counted_by_task(queue: Jobs) -> None:
    page = queue.text(f"{TAB}buried")
    assert "ValueError in shop.fails" in page
    assert 'Their tasks: <span class="chip">shop.fails 1</span>' in page
    assert '<td data-label="Task" class="mono">shop.' in page
    (listed,) = queue.admin.json("GET", "/api/v2/buried/mails/jobs").json["messages"]
    assert listed["message"]["job"]["id"] == "id-1"
