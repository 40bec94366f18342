"""Django's tasks on a real nsqd: a site that enqueues, and workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.e2e.conftest import StartNsqd
from tests.support.process import PYTHONPATH, Nsqd, eventually

TIMEOUT = 30.0
PEERS = Path(__file__).parent / "peers"
BEGIN = "import django; django.setup()\nfrom django_site.jobs import *\n"


class Site:
    """A site with a database and its workers."""

    def __init__(self, nsqd: Nsqd, queue: str, folder: Path) -> None:
        self.queue = queue
        self.notes = folder / "notes"
        self._nsqd = nsqd
        self._log = folder / "worker.log"
        self._environ = {
            **os.environ,
            "PYTHONPATH": f"{PYTHONPATH}:{PEERS}",
            "DJANGO_SETTINGS_MODULE": "django_site.settings",
            "DATABASE": str(folder / "database"),
            # After two seconds nsqd takes back what a killed worker had.
            "NSQ_URL": f"nsq://{nsqd.tcp[0]}:{nsqd.tcp[1]}?msg_timeout=2s",
            "NSQ_QUEUE": queue,
            "NOTES": str(self.notes),
        }
        self._running: list[subprocess.Popen[bytes]] = []
        self.run("from django.core.management import call_command; call_command('migrate', verbosity=0)")

    def run(self, code: str) -> list[Any]:
        """Run code in the site, and return what it prints: lines of JSON."""
        command = [sys.executable, "-c", BEGIN + dedent(code)]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def results(self, *ids: str) -> list[Any]:
        """Return the results of these tasks once all have ended."""
        return self.run(
            f"""
            import json, time
            from nsqjobs.django.api import task_backends
            for id in {ids!r}:
                while not (result := task_backends["default"].get_result(id)).is_finished:
                    time.sleep(0.05)
                print(json.dumps([
                    str(result.status), result._return_value, [it.exception_class_path for it in result.errors],
                    result.attempts,
                ]))
            """
        )

    def start_worker(self, concurrency: int = 1) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "django", "nsq_worker", f"--concurrency={concurrency}"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
            process.wait(TIMEOUT)
        self._running.remove(process)

    def noted(self, what: str) -> list[str]:
        """Return the names of the tasks that have noted this."""
        lines = self.notes.read_text().split("\n") if self.notes.exists() else []
        return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]

    def wait_for(self, what: str, count: int = 1) -> None:
        eventually(lambda: len(self.noted(what)) >= count, TIMEOUT)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="backslashreplace") if self._log.exists() else ""

    def jobs(self) -> dict[str, int]:
        """Return the figures of the queue's channel."""
        return self._nsqd.channel(self.queue, "jobs") or {}

    def buried(self) -> list[str]:
        """Return the reasons of the buried messages."""
        lines = self._nsqd.http("GET", f"/channel/buried?topic={self.queue}&channel=jobs").body.splitlines()
        return [said["reason"] for said in map(json.loads, lines) if "reason" in said]

    def close(self) -> None:
        for process in list(self._running):
            self.kill(process)
        sys.stderr.write(self.log)  # pytest shows it when the test fails


@pytest.fixture
def site(nsqd: Nsqd, topic: str, tmp_path: Path) -> Iterator[Site]:
    with closing(Site(nsqd, topic, tmp_path)) as it:
        yield it


def test_tasks_and_their_results(site: Site) -> None:
    ids = site.run(
        """
        import asyncio, json
        for it in (add.enqueue(1, 2), asyncio.run(add_async.aenqueue(3, y=4)), fail.enqueue(), attempt.enqueue()):
            print(json.dumps(it.id))
        """
    )
    site.start_worker(concurrency=2)
    assert site.results(*ids) == [
        ["SUCCESSFUL", 3, [], 1],
        ["SUCCESSFUL", 7, [], 1],
        ["FAILED", None, ["builtins.ValueError"], 1],
        ["SUCCESSFUL", 1, [], 1],
    ]
    eventually(lambda: site.jobs()["in_flight_count"] == 0, TIMEOUT)
    assert site.jobs()["depth"] == site.jobs()["buried_count"] == 0


def test_nobody_holds_a_task_that_runs_later(site: Site) -> None:
    site.start_worker()
    eventually(site.jobs, TIMEOUT)
    [(id, due)] = site.run(
        """
        import json, datetime
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=3)
        print(json.dumps([tell_time.using(run_after=due).enqueue().id, due.timestamp()]))
        """
    )
    assert site.jobs()["deferred_count"] == 1 or time.time() >= due
    assert site.jobs()["in_flight_count"] == 0 or time.time() >= due
    [(status, ran_at, _, _)] = site.results(id)
    assert status == "SUCCESSFUL"
    assert ran_at >= due


def test_what_is_no_task_is_buried_with_the_reason(site: Site, nsqd: Nsqd) -> None:
    unknown = {"id": "1", "task": "django_site.jobs.gone", "queue_name": site.queue, "args": [], "kwargs": {}}
    nsqd.post(f"/pub?topic={site.queue}", b"nonsense")
    nsqd.post(f"/pub?topic={site.queue}", json.dumps(unknown).encode())
    site.start_worker()
    eventually(lambda: len(site.buried()) == 2, TIMEOUT)
    reasons = sorted(site.buried())
    assert reasons[0].startswith("no message of a task: JSONDecodeError")
    assert reasons[1].startswith("no such task: django_site.jobs.gone")


def test_a_task_of_a_killed_worker_is_run_by_another(site: Site) -> None:
    first = site.start_worker()
    [id] = site.run(
        f"""
        import json
        print(json.dumps(wait_for_file.enqueue("it", {str(site.notes.parent / "go")!r}).id))
        """
    )
    site.wait_for("begin")
    site.kill(first)
    (site.notes.parent / "go").touch()
    site.start_worker()
    assert site.results(id) == [["SUCCESSFUL", None, [], 2]]
    assert site.noted("begin") == ["it", "it"]


def test_a_worker_that_is_to_stop_ends_its_task_and_gives_back_the_others(site: Site) -> None:
    first = site.start_worker()
    site.run(f"wait_for_file.enqueue('first', {str(site.notes.parent / 'go')!r})")
    site.wait_for("begin")
    site.run("linger.enqueue('second', 0)")
    first.send_signal(signal.SIGTERM)
    eventually(lambda: " stops" in site.log, TIMEOUT)
    (site.notes.parent / "go").touch()
    assert first.wait(TIMEOUT) == 0
    assert site.noted("end") == ["first"]
    assert site.jobs()["depth"] == 1
    assert site.jobs()["in_flight_count"] == 0
    site.start_worker()
    site.wait_for("end", 2)
    assert site.noted("begin") == ["first", "second"]


def test_a_task_longer_than_the_timeout_of_its_message_runs_once(site: Site) -> None:
    site.start_worker(concurrency=2)
    site.run("linger.enqueue('it', 4)")
    site.wait_for("end")
    eventually(lambda: site.jobs()["in_flight_count"] == 0, TIMEOUT)
    assert site.noted("begin") == ["it"]


def test_tasks_outlive_a_killed_nsqd(start_nsqd: StartNsqd, topic: str, tmp_path: Path) -> None:
    nsqd = start_nsqd()
    with closing(Site(nsqd, topic, tmp_path)) as site:
        site.start_worker()
        eventually(site.jobs, TIMEOUT)
        site.run(
            """
            import datetime
            due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=3)
            linger.using(run_after=due).enqueue("later", 0)
            """
        )
        port = nsqd.tcp[1]
        nsqd.kill()
        nsqd.options = (*nsqd.options, f"tcp-address=127.0.0.1:{port}")
        nsqd.start()
        site.wait_for("end")
        site.run("linger.enqueue('new', 0)")
        site.wait_for("end", 2)
        assert site.noted("begin") == ["later", "new"]


def test_a_task_of_a_transaction_that_is_rolled_back_runs_unless_it_waits_for_the_commit(site: Site) -> None:
    site.run(
        """
        from functools import partial
        from django.db import transaction

        try:
            with transaction.atomic():
                transaction.on_commit(partial(linger.enqueue, "waits", 0))
                linger.enqueue("does not wait", 0)
                raise KeyError
        except KeyError:
            pass
        """
    )
    site.start_worker()
    site.wait_for("end")
    assert site.noted("end") == ["does not wait"]
    assert site.jobs()["depth"] == 0


def test_without_nsqd_nothing_is_stored(tmp_path: Path, start_nsqd: StartNsqd, topic: str) -> None:
    nsqd = start_nsqd()
    with closing(Site(nsqd, topic, tmp_path)) as site:
        nsqd.kill()
        assert site.run(
            """
            from nsqclient import ConnectError
            from nsqjobs.django.models import StoredResult
            try:
                add.enqueue(1, 2)
            except ConnectError:
                print(StoredResult.objects.count())
            """
        ) == [0]
