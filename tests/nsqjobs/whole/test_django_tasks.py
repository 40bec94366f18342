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

from nsqjobs.addresses import parse_url
from nsqjobs.django.priorities import Band, band_topic
from nsqjobs.django.queue import Queue as Messages
from nsqjobs.link import Link
from tests.nsqjobs.program import TIMEOUT, Program
from tests.support.process import PYTHONPATH, Nsqd, SteadyNsqd, eventually

PEERS = Path(__file__).parents[2] / "e2e" / "peers"


class Site:
    """A site with a database, a shell that stays, and workers."""

    def __init__(self, nsqd: Nsqd, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{PYTHONPATH}:{PEERS}",
            "DJANGO_SETTINGS_MODULE": "django_site.settings",
            "DATABASE": str(folder / "database"),
            # After four seconds nsqd takes back what a killed worker had.
            "NSQ_URL": f"nsq://{nsqd.tcp[0]}:{nsqd.tcp[1]}?msg_timeout=4s",
            "NOTES": str(folder / "notes"),
        }
        self.nsqd = nsqd
        self.folder = folder
        self._shell = subprocess.Popen(
            [sys.executable, "-m", "django_site.shell"],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> list[Any]:
        """Run code in the site, and return what it says with `say`."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(json.dumps(dedent(code)) + "\n")
        self._shell.stdin.flush()
        error, said = json.loads(self._shell.stdout.readline())
        assert not error, error
        assert isinstance(said, list)
        return said

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


class Queue:
    """One queue of a site, and its workers."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self._site = site
        self._notes = site.folder / "notes"
        self._log = site.folder / f"{name}.log"
        self._started: list[Program] = []

    def run(self, code: str) -> list[Any]:
        """Run code in the site: `to(task)` is the task in this queue, and `say` adds a value to the returned ones."""
        return self._site.run(
            f"to = lambda task, **options: task.using(queue_name={self.name!r}, **options)\n{dedent(code)}"
        )

    def results(self, *ids: str) -> list[Any]:
        """Return status, value, errors and attempts of these tasks once all have ended."""
        ended: list[Any] = []
        for id in ids:
            eventually(lambda id=id: self.run(f"say(get_result({id!r}).is_finished)") == [True], TIMEOUT)
            ended += self.run(f"say(summary(get_result({id!r})))")
        return ended

    def start_worker(self, *options: str, concurrency: int = 1) -> Program:
        options = (f"--queue={self.name}", f"--concurrency={concurrency}", *options)
        words = ["-m", "django", "nsq_worker", *options]
        self._started.append(Program(words, self._log, environ=self._site.environ))
        return self._started[-1].start()

    def path(self, name: str) -> Path:
        return self._site.folder / f"{self.name}-{name}"

    def noted(self, what: str) -> list[str]:
        """Return the names of this queue's tasks that have noted this."""
        lines = self._notes.read_text().split("\n") if self._notes.exists() else []
        beginning = f"{self.name} {what} "
        return [line.removeprefix(beginning) for line in lines if line.startswith(beginning)]

    def wait_for(self, what: str, count: int = 1) -> None:
        eventually(lambda: len(self.noted(what)) >= count, TIMEOUT)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="backslashreplace") if self._log.exists() else ""

    def jobs(self) -> dict[str, int]:
        """Return the figures of the queue's channel."""
        return self._site.nsqd.channel(self.name, "jobs") or {}

    def in_flight_by_band(self) -> list[int]:
        """Return how many tasks workers have of each band: high, normal and low."""
        topics = [f"{self.name}.high", self.name, f"{self.name}.low"]
        channels = [self._site.nsqd.channel(topic, "jobs") or {} for topic in topics]
        return [channel.get("in_flight_count", 0) for channel in channels]

    def hold_worker(self) -> Path:
        """Start a worker with one thread, and return the file for which its second task waits.

        As it has had tasks of two bands by then, it has one task of each band at hand from now on.
        """
        normal, high = self.path("normal"), self.path("high")
        self.start_worker()
        self.run(f"to(wait_for_file).enqueue({self.name!r}, 'normal', {str(normal)!r})")
        self.wait_for("begin")
        self.run(f"to(wait_for_file, priority=1).enqueue({self.name!r}, 'high', {str(high)!r})")
        normal.touch()
        self.wait_for("begin", 2)
        return high

    def buried(self) -> list[str]:
        """Return the reasons of the buried messages."""
        lines = self._site.nsqd.http("GET", f"/channel/buried?topic={self.name}&channel=jobs").body.splitlines()
        return [said["reason"] for said in map(json.loads, lines) if "reason" in said]

    def close(self) -> None:
        for program in self._started:
            program.kill()
        sys.stderr.write(self.log)  # pytest shows it when the test fails


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteadyNsqd]:
    """Run a broker for all tests of the module, one of which kills it."""
    with SteadyNsqd(tmp_path_factory.mktemp("nsqd")) as broker:
        yield broker
        assert "Traceback" not in broker.log


@pytest.fixture(scope="module")
def site(nsqd: Nsqd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with closing(Site(nsqd, tmp_path_factory.mktemp("site"))) as it:
        yield it


@pytest.fixture
def queue(site: Site, topic: str) -> Iterator[Queue]:
    with closing(Queue(site, topic)) as it:
        yield it


@pytest.mark.usefixtures("real_starts")  # as users do it; the others are forked
def test_tasks_and_their_results(queue: Queue) -> None:
    ids = queue.run(
        """
        import asyncio
        say(to(add).enqueue(1, 2).id)
        say(asyncio.run(to(add_async).aenqueue(3, y=4)).id)
        say(to(fail).enqueue().id)
        say(to(attempt).enqueue().id)
        """
    )
    queue.start_worker(concurrency=2)
    assert queue.results(*ids) == [
        ["SUCCESSFUL", 3, [], 1],
        ["SUCCESSFUL", 7, [], 1],
        ["FAILED", None, ["builtins.ValueError"], 1],
        ["SUCCESSFUL", 1, [], 1],
    ]
    eventually(lambda: queue.jobs()["in_flight_count"] == 0, TIMEOUT)
    assert queue.jobs()["depth"] == 0
    assert not queue.buried()


def test_nobody_holds_a_task_that_runs_later(queue: Queue) -> None:
    queue.start_worker()
    eventually(queue.jobs, TIMEOUT)
    [id, due] = queue.run(
        """
        due = datetime.now(UTC) + timedelta(seconds=2)
        say(to(tell_time, run_after=due).enqueue().id)
        say(due.timestamp())
        """
    )
    figures = queue.jobs()
    assert (figures["deferred_count"], figures["in_flight_count"]) == (1, 0) or time.time() >= due
    [(status, ran_at, _, _)] = queue.results(id)
    assert status == "SUCCESSFUL"
    assert ran_at >= due


def test_higher_priorities_come_first(nsqd: Nsqd, topic: str) -> None:
    with closing(Link(parse_url(f"nsq://{nsqd.tcp[0]}:{nsqd.tcp[1]}"))) as link:
        for band in reversed(Band):
            link.publish(band_topic(topic, band), band.encode(), headers={})
        messages = Messages(link, topic, concurrency=1, has_priorities=True)
        eventually(lambda: all(it.has_arrived for it in messages._subscriptions.values()), TIMEOUT)
        for band in Band:
            taken = messages.take(TIMEOUT)
            assert taken is not None
            assert taken.held.body == band.encode()
            taken.held.finish()
            messages.done(taken)
        eventually(lambda: not any(link.counts(band_topic(topic, band)).undone for band in Band), TIMEOUT)


def test_a_busy_worker_has_one_task_of_each_priority_at_hand(queue: Queue) -> None:
    go = queue.hold_worker()
    queue.run(f"for it in (-100, 0, 100): to(linger, priority=it).enqueue({queue.name!r}, str(it), 0)")
    eventually(lambda: queue.in_flight_by_band() == [2, 1, 1], TIMEOUT)
    go.touch()
    queue.wait_for("end", 5)
    assert set(queue.noted("begin")[2:]) == {"-100", "0", "100"}


def test_low_priorities_are_not_starved(queue: Queue) -> None:
    go = queue.hold_worker()
    queue.run(
        f"""
        to(linger, priority=-1).enqueue({queue.name!r}, "low", 0)
        for number in range(40):
            to(linger, priority=1).enqueue({queue.name!r}, str(number), 0)
        """
    )
    eventually(lambda: queue.in_flight_by_band() == [2, 0, 1], TIMEOUT)
    go.touch()
    queue.wait_for("end", 43)
    assert queue.noted("begin")[-1] != "low"


def test_a_task_with_a_priority_may_run_later(queue: Queue, nsqd: Nsqd) -> None:
    due = "datetime.now(UTC) + timedelta(seconds=2)"
    [id] = queue.run(f"say(to(add, priority=50, run_after={due}).enqueue(1, 2).id)")
    assert nsqd.topic(f"{queue.name}.high")
    assert nsqd.topic(queue.name) is None
    queue.start_worker()
    assert queue.results(id) == [["SUCCESSFUL", 3, [], 1]]
    assert queue.run(f"say(get_result({id!r}).task.priority)") == [50]


def test_what_is_no_task_is_buried_with_the_reason(queue: Queue, nsqd: Nsqd) -> None:
    unknown = {"id": "1", "task": "django_site.jobs.gone", "queue_name": queue.name, "run_after": None}
    nsqd.post(f"/pub?topic={queue.name}", b"nonsense")
    nsqd.post(f"/pub?topic={queue.name}", json.dumps(unknown).encode())
    queue.start_worker()
    eventually(lambda: len(queue.buried()) == 2, TIMEOUT)
    reasons = sorted(queue.buried())
    assert reasons[0].startswith("no such task: django_site.jobs.gone")
    assert reasons[1].startswith("not a message of a task: JSONDecodeError")


def test_a_task_of_a_killed_worker_is_run_by_another(queue: Queue) -> None:
    first = queue.start_worker()
    [id] = queue.run(f"say(to(wait_for_file).enqueue({queue.name!r}, 'it', {str(queue.path('go'))!r}).id)")
    queue.wait_for("begin")
    first.kill()
    queue.path("go").touch()
    queue.start_worker()
    assert queue.results(id) == [["SUCCESSFUL", None, [], 2]]
    assert queue.noted("begin") == ["it", "it"]


def test_a_worker_that_is_to_stop_ends_its_task_and_gives_back_the_others(queue: Queue) -> None:
    first = queue.start_worker()
    queue.run(f"to(wait_for_file).enqueue({queue.name!r}, 'first', {str(queue.path('go'))!r})")
    queue.wait_for("begin")
    queue.run(f"to(linger).enqueue({queue.name!r}, 'second', 0)")
    first.send_signal(signal.SIGTERM)
    eventually(lambda: " stops" in queue.log, TIMEOUT)
    queue.path("go").touch()
    assert first.wait() == 0
    assert queue.noted("end") == ["first"]
    eventually(lambda: (it := queue.jobs()) and (it["depth"], it["in_flight_count"]) == (1, 0), TIMEOUT)
    assert queue.jobs()["timeout_count"] == 0
    queue.start_worker()
    queue.wait_for("end", 2)
    assert queue.noted("begin") == ["first", "second"]


def test_a_worker_that_is_to_stop_soon_gives_back_what_does_not_end(queue: Queue) -> None:
    first = queue.start_worker("--drain-timeout=0.1")
    queue.run(f"to(wait_for_file).enqueue({queue.name!r}, 'it', {str(queue.path('go'))!r})")
    queue.wait_for("begin")
    assert first.stop() == 0
    assert not queue.noted("end")
    eventually(lambda: queue.jobs()["depth"] == 1, TIMEOUT)
    assert queue.jobs()["timeout_count"] == 0
    queue.path("go").touch()
    queue.start_worker()
    queue.wait_for("end")
    assert queue.noted("begin") == ["it", "it"]


def test_a_task_longer_than_the_timeout_of_its_message_runs_once(queue: Queue) -> None:
    queue.start_worker(concurrency=2)
    queue.run(f"to(linger).enqueue({queue.name!r}, 'it', 5)")
    queue.wait_for("end")
    eventually(lambda: queue.jobs()["in_flight_count"] == 0, TIMEOUT)
    assert queue.noted("begin") == ["it"]


def test_a_task_may_be_enqueued_when_its_transaction_is_committed(queue: Queue) -> None:
    queue.run(
        f"""
        from functools import partial
        from django.db import transaction

        try:
            with transaction.atomic():
                transaction.on_commit(partial(to(linger).enqueue, {queue.name!r}, "waits", 0))
                to(linger).enqueue({queue.name!r}, "does not wait", 0)
                raise KeyError
        except KeyError:
            pass
        """
    )
    queue.start_worker()
    queue.wait_for("end")
    assert queue.noted("end") == ["does not wait"]
    assert queue.jobs()["depth"] == 0


def test_tasks_outlive_a_killed_nsqd(queue: Queue, nsqd: Nsqd) -> None:
    queue.start_worker()
    eventually(queue.jobs, TIMEOUT)
    queue.run(f"to(linger, run_after=datetime.now(UTC) + timedelta(seconds=2)).enqueue({queue.name!r}, 'later', 0)")
    nsqd.kill()
    nsqd.start()
    queue.wait_for("end")
    queue.run(f"to(linger).enqueue({queue.name!r}, 'new', 0)")
    queue.wait_for("end", 2)
    assert queue.noted("begin") == ["later", "new"]
