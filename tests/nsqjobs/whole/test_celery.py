"""Celery on a real nsqd, with real workers: what docs/how-to/celery.md promises."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TimeoutError as NoResult
from kombu import Connection, Consumer, Exchange, Queue
from kombu.exceptions import OperationalError

from tests.nsqjobs.celery_app import close_apps, make_app
from tests.nsqjobs.celery_worker import Worker, lines, wait_for_lines
from tests.nsqjobs.program import TIMEOUT
from tests.support.process import ROOT, Nsqd, Nsqlookupd, SteadyNsqd, eventually


def url_of(nsqd: Nsqd) -> str:
    return f"nsq://127.0.0.1:{nsqd.tcp[1]}"


@pytest.fixture(autouse=True)
def apps_are_closed() -> Iterator[None]:
    yield
    close_apps()


@pytest.fixture
def app(nsqd: Nsqd) -> Celery:
    return make_app(url_of(nsqd))


@pytest.fixture(scope="module")
def worker(nsqd: Nsqd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Run a prefork worker for all tests of the module that need no other; its queue is `shared`."""
    folder = tmp_path_factory.mktemp("worker")
    with Worker(folder, url_of(nsqd), "-c", "2", "-E", "--without-mingle", name="shared", queues=["shared"]) as running:
        yield running
        assert "nsqjobs/" not in running.log.replace("tests/nsqjobs/", "tests/")  # in a traceback


def counts(nsqd: Nsqd, topic: str) -> tuple[int, int, int]:
    """Return how many jobs of a queue wait, are deferred, and are with a worker."""
    found = nsqd.channel(topic, "jobs") or {"depth": 0, "deferred_count": 0, "in_flight_count": 0}
    return found["depth"], found["deferred_count"], found["in_flight_count"]


def get(channel: Any, queue: str, **options: Any) -> Any:
    """Return the next message of a queue. One `basic_get` waits for a second, which a busy machine may need to connect."""
    found: list[Any] = []

    def has_found() -> bool:
        message = channel.basic_get(queue, **options)
        found.extend([message] if message is not None else [])
        return bool(found)

    eventually(has_found, TIMEOUT)
    return found[0]


# --- configuration


def test_a_broker_that_is_not_there_is_an_operational_error() -> None:
    app = make_app("nsq://127.0.0.1:1")
    with pytest.raises(OperationalError):
        app.send_task("add", (1, 2), retry=False)


# --- one worker with processes


def test_a_result_comes_back(app: Celery, worker: Worker) -> None:
    assert app.send_task("add", (2, 3), queue="shared").get(timeout=TIMEOUT) == 5


def test_headers_say_what_a_job_is(app: Celery, nsqd: Nsqd) -> None:
    app.send_task("add", (2, 3), queue="seen", task_id="an-id")
    with Connection(url_of(nsqd)) as connection:
        message = get(connection.channel(), "seen")
        assert message.headers["id"] == "an-id"
        message.ack()


def test_a_getter_has_no_more_than_it_has_asked_for(app: Celery, nsqd: Nsqd) -> None:
    for number in range(5):
        app.send_task("add", (number, number), queue="got")
    with Connection(url_of(nsqd)) as first, Connection(url_of(nsqd)) as second:
        channel = first.channel()
        get(channel, "got").ack()
        get(channel, "got", no_ack=True)
        unanswered = get(channel, "got")
        get(second.channel(), "got").ack()
        get(second.channel(), "got").ack()
        eventually(lambda: counts(nsqd, "got") == (0, 0, 1), TIMEOUT)
        assert channel.basic_get("got") is None
        unanswered.ack()
        eventually(lambda: counts(nsqd, "got") == (0, 0, 0), TIMEOUT)


def test_a_job_with_an_eta_is_with_nobody_before_its_time(
    app: Celery, nsqd: Nsqd, worker: Worker, tmp_path: Path
) -> None:
    path = tmp_path / "when"
    eventually(lambda: counts(nsqd, "shared")[2] == 0, TIMEOUT)  # the job of the test before
    due = time.time() + 2
    app.send_task("when", (str(path),), queue="shared", countdown=2)
    assert counts(nsqd, "shared")[1:] == (1, 0) or time.time() >= due
    retries, at = wait_for_lines(path, 1)[0].split()
    assert float(at) >= due - 0.01
    assert retries == "0"


def test_an_operator_may_let_a_job_run_before_its_time(app: Celery, nsqd: Nsqd, worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "now"
    app.send_task("when", (str(path),), queue="shared", countdown=3600)
    [deferred] = nsqd.http("GET", "/channel/deferred?topic=shared&channel=jobs").body.splitlines()
    nsqd.post(f"/message/due?topic=shared&id={json.loads(deferred)['id']}&defer=0")
    assert len(wait_for_lines(path, 1)) == 1


def test_a_task_is_retried_after_its_countdown(app: Celery, worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "again"
    assert app.send_task("again", (str(path), 2, 0.5), queue="shared").get(timeout=TIMEOUT) == "done"
    tries = [line.split() for line in lines(path)]
    assert [retries for retries, _ in tries] == ["0", "1", "2"]
    times = [float(at) for _, at in tries]
    assert times[1] - times[0] >= 0.5
    assert times[2] - times[1] >= 0.5


def test_a_task_with_an_eta_may_be_replaced_by_one_with_the_same_id(
    app: Celery, worker: Worker, tmp_path: Path
) -> None:
    path = tmp_path / "replaced"
    app.send_task("replace", (str(path),), queue="shared", countdown=0.5)
    assert len(wait_for_lines(path, 1)) == 1


def test_a_rejected_job_is_buried(app: Celery, nsqd: Nsqd, worker: Worker) -> None:
    app.send_task("reject", queue="shared")
    eventually(lambda: nsqd.channel("shared", "jobs").get("buried_count") == 1, TIMEOUT)


def test_a_revoked_job_is_cancelled_before_its_time(app: Celery, nsqd: Nsqd, worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    result = app.send_task("when", (str(path),), queue="shared", countdown=3600)
    assert counts(nsqd, "shared")[1] == 1
    result.revoke()
    assert counts(nsqd, "shared")[1] == 0
    worker.wait_for_log(f"Tasks flagged as revoked: {result.id}")
    assert lines(path) == []


def test_a_worker_answers_and_does_not_tell_the_password(app: Celery, worker: Worker) -> None:
    inspect = app.control.inspect([worker.name], timeout=TIMEOUT)
    assert inspect.ping() == {worker.name: {"ok": "pong"}}
    assert "add" in inspect.registered()[worker.name]
    assert inspect.active() == {worker.name: []}
    assert inspect.active_queues()[worker.name][0]["name"] == "shared"


def test_a_passing_queue_is_gone_once_its_consumer_is_cancelled(app: Celery, nsqd: Nsqd) -> None:
    """The next `inspect` has a queue of the same name: its reply must not go with the one of before."""
    for number in range(10):
        with app.connection() as connection:
            channel = connection.channel()
            exchange = Exchange(f"replies-{number}", type="direct", durable=False)
            queue = Queue("", exchange, durable=False, auto_delete=True)
            before = {topic["topic_name"] for topic in nsqd.stats()["topics"]}
            consumer = Consumer(channel, queue, no_ack=True)
            consumer.consume()
            assert eventually(lambda: [*_new_channels(nsqd, before)])  # noqa: B023 - it is called at once
            consumer.cancel()
            assert [*_new_channels(nsqd, before)] == []


def _new_channels(nsqd: Nsqd, before: set[str]) -> Iterator[str]:
    for topic in nsqd.stats()["topics"]:
        if topic["topic_name"] not in before:
            yield from (channel["channel_name"] for channel in topic["channels"])


def test_events_tell_what_tasks_do(app: Celery, worker: Worker) -> None:
    seen: dict[str, str] = {}
    with app.connection() as connection:
        handlers = {"*": lambda event: seen.setdefault(event["type"], event.get("uuid", ""))}
        receiver = app.events.Receiver(connection, handlers=handlers)
        channel = connection.channel()
        with receiver.get_consumers(partial(Consumer, channel), channel)[0]:
            result = app.send_task("add", (1, 2), queue="shared")
            while "task-succeeded" not in seen:
                connection.drain_events(timeout=TIMEOUT)
    assert seen["task-received"] == seen["task-succeeded"] == result.id


def test_queues_can_be_counted_and_purged(app: Celery, nsqd: Nsqd) -> None:
    for _ in range(3):
        app.send_task("add", (1, 2), queue="counted")
    app.send_task("add", (1, 2), queue="counted", countdown=60)
    with app.connection() as connection:
        queue = Queue("counted", Exchange("counted"), "counted")(connection.channel())
        assert queue.queue_declare(passive=True).message_count >= 3
        assert queue.purge() >= 3
        assert queue.queue_declare(passive=True).message_count == 0
        queue.delete()
    assert nsqd.topic("counted") is None


@pytest.mark.parametrize("name", ["x" * 100, "mails to be sent / today", "größe"])
def test_a_queue_may_have_any_name(app: Celery, name: str) -> None:
    with app.connection() as connection:
        simple = connection.SimpleQueue(name)
        simple.put({"a": 1})
        message = simple.get(timeout=TIMEOUT)
        assert message.payload == {"a": 1}
        message.ack()


def test_a_message_for_two_queues_comes_to_both(app: Celery) -> None:
    exchange = Exchange("both", "fanout")
    queues = [Queue("both-1", exchange), Queue("both-2", exchange)]
    got: list[str] = []
    with app.connection() as connection, connection.channel() as channel:
        connection.Producer(channel).publish("hello", exchange=exchange, declare=[exchange, *queues])

        def on_message(message: Any) -> None:
            got.append(message.payload)
            message.ack()

        for queue in queues:
            with Consumer(channel, [queue], on_message=on_message):
                connection.drain_events(timeout=TIMEOUT)
    assert got == ["hello", "hello"]


# --- other workers


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_pools_work_too(nsqd: Nsqd, app: Celery, tmp_path: Path, pool: str) -> None:
    with Worker(
        tmp_path, url_of(nsqd), f"--pool={pool}", "-c", "2", "--without-mingle", name=pool, queues=[pool]
    ) as it:
        results = [app.send_task("add", (n, n), queue=pool) for n in range(20)]
        assert sum(result.get(timeout=TIMEOUT) for result in results) == 380
        assert app.send_task("again", (str(tmp_path / "again"), 1, 0.2), queue=pool).get(timeout=TIMEOUT) == "done"
        assert app.control.ping([it.name], timeout=TIMEOUT) == [{it.name: {"ok": "pong"}}]


def test_two_queues_share_a_prefetch_limit(nsqd: Nsqd, app: Celery, tmp_path: Path) -> None:
    path, go = tmp_path / "held", tmp_path / "go"
    options = "--pool=threads", "-c", "1", "--prefetch-multiplier=1", "--without-mingle"
    for _ in range(4):
        for queue in ("left", "right"):
            app.send_task("hold", (str(path), str(go)), queue=queue)
    with Worker(tmp_path, url_of(nsqd), *options, queues=["left", "right"]):
        wait_for_lines(path, 1)
        eventually(lambda: counts(nsqd, "left")[2] + counts(nsqd, "right")[2] == 1, TIMEOUT)
        go.touch()
        wait_for_lines(path, 16)
        eventually(lambda: counts(nsqd, "left") == counts(nsqd, "right") == (0, 0, 0), TIMEOUT)
    assert sum(line.startswith("done") for line in lines(path)) == 8


def test_higher_priorities_come_first(nsqd: Nsqd, tmp_path: Path) -> None:
    path, held, go = tmp_path / "order", tmp_path / "held", tmp_path / "go"
    settings: dict[str, Any] = {"broker_transport_options": {"priority_steps": [0, 3, 6, 9]}}
    app = make_app(url_of(nsqd), **settings)
    options = "--pool=threads", "-c", "1", "--prefetch-multiplier=1", "--without-mingle"
    with Worker(tmp_path, url_of(nsqd), *options, queues=["urgent"], **settings):
        app.send_task("hold", (str(held), str(go)), queue="urgent", priority=9)
        wait_for_lines(held, 1)
        topics = {0: "urgent", 5: "urgent.p3", 6: "urgent.p6", 9: "urgent.p9"}
        for priority in topics:
            app.send_task("note", (str(path), priority), queue="urgent", priority=priority)
        in_flight = [1, 1, 1, 2]
        eventually(lambda: [counts(nsqd, topic)[2] for topic in topics.values()] == in_flight, TIMEOUT)
        go.touch()
        assert wait_for_lines(path, 4) == ["9", "6", "5", "0"]


def test_a_killed_workers_job_is_run_by_another(nsqd: Nsqd, app: Celery, tmp_path: Path) -> None:
    path, go = tmp_path / "held", tmp_path / "go"
    url = f"{url_of(nsqd)}?msg_timeout=3s"  # after which nsqd gives it to another one
    first = Worker(tmp_path, url, "-c", "1", "--without-mingle", name="first", queues=["killed"])
    with first:
        app.send_task("hold", (str(path), str(go)), queue="killed")
        wait_for_lines(path, 1)
        first.kill()
        go.touch()
        with Worker(tmp_path, url_of(nsqd), "--pool=solo", "--without-mingle", name="second", queues=["killed"]):
            assert wait_for_lines(path, 3)[2].startswith("done")
            eventually(lambda: counts(nsqd, "killed") == (0, 0, 0), TIMEOUT)


def test_an_operator_may_have_a_finished_job_run_again(tmp_path: Path) -> None:
    path = tmp_path / "again"
    with (
        Nsqd(tmp_path / "data", "retention-time=1h") as nsqd,
        make_app(url_of(nsqd)) as app,
        Worker(tmp_path, url_of(nsqd), "--pool=solo", "--without-mingle", queues=["repeated"]),
    ):
        app.send_task("when", (str(path),), queue="repeated")
        wait_for_lines(path, 1)
        eventually(lambda: counts(nsqd, "repeated") == (0, 0, 0), TIMEOUT)
        nsqd.post("/channel/redeliver?topic=repeated&channel=jobs&sequence=0")
        assert len(wait_for_lines(path, 2)) == 2


def test_a_worker_that_stops_finishes_what_runs_and_gives_back_the_rest(
    nsqd: Nsqd, app: Celery, tmp_path: Path
) -> None:
    path, go = tmp_path / "held", tmp_path / "go"
    with Worker(tmp_path, url_of(nsqd), "-c", "1", "--without-mingle", name="stopped", queues=["stopped"]) as worker:
        for _ in range(8):
            app.send_task("hold", (str(path), str(go)), queue="stopped")
        wait_for_lines(path, 1)
        eventually(lambda: counts(nsqd, "stopped")[2] >= 4, TIMEOUT)  # a prefetch of four
        wait_until_it_knows_its_task(worker, app)
        worker.send_signal(signal.SIGTERM)
        worker.wait_for_log("Warm shutdown")
        go.touch()
        assert worker.wait() == 0
        done = sum(line.startswith("done") for line in lines(path))
        assert done >= 1
        eventually(lambda: counts(nsqd, "stopped") == (8 - done, 0, 0), TIMEOUT)


def wait_until_it_knows_its_task(worker: Worker, app: Celery) -> None:
    """Wait until the main process has heard that the task runs. Without that, Celery may wait for ever when it stops."""
    inspect = app.control.inspect([worker.name], timeout=TIMEOUT)
    eventually(lambda: (inspect.active() or {}).get(worker.name), TIMEOUT)


def test_a_worker_that_has_to_stop_at_once_gives_back_what_runs(nsqd: Nsqd, app: Celery, tmp_path: Path) -> None:
    path, go = tmp_path / "held", tmp_path / "go"
    with Worker(tmp_path, url_of(nsqd), "-c", "1", "--without-mingle", name="cold", queues=["cold"]) as worker:
        app.send_task("hold", (str(path), str(go)), queue="cold")
        wait_for_lines(path, 1)
        wait_until_it_knows_its_task(worker, app)
        worker.stop(signal.SIGQUIT)
        eventually(lambda: counts(nsqd, "cold") == (1, 0, 0), TIMEOUT)


def test_a_long_job_is_touched_while_it_runs(tmp_path: Path) -> None:
    path, go = tmp_path / "held", tmp_path / "go"
    with (
        SteadyNsqd(tmp_path / "nsqd", "msg-timeout=6s") as nsqd,
        Worker(tmp_path, url_of(nsqd), "-c", "1", "--without-mingle", queues=["long"]),
    ):
        app = make_app(url_of(nsqd))
        app.send_task("hold", (str(path), str(go)), queue="long")
        wait_for_lines(path, 1)
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 7, TIMEOUT)  # longer than nsqd waits for an answer
        channel = nsqd.channel("long", "jobs")
        assert (channel["in_flight_count"], channel["timeout_count"]) == (1, 0)
        go.touch()
        eventually(lambda: counts(nsqd, "long") == (0, 0, 0), TIMEOUT)
        assert len(lines(path)) == 2


def test_a_restart_of_nsqd_is_not_noticed(tmp_path: Path) -> None:
    path, held, go = tmp_path / "notes", tmp_path / "held", tmp_path / "go"
    with (
        SteadyNsqd(tmp_path / "nsqd") as nsqd,
        Worker(tmp_path, url_of(nsqd), "-c", "2", "--without-mingle", queues=["lasting"]) as worker,
    ):
        app = make_app(url_of(nsqd))
        app.send_task("note", (str(path), "before"), queue="lasting")
        wait_for_lines(path, 1)
        app.send_task("hold", (str(held), str(go)), queue="lasting")
        app.send_task("note", (str(path), "deferred"), queue="lasting", countdown=1)
        wait_for_lines(held, 1)
        nsqd.kill()
        nsqd.start()
        app.send_task("note", (str(path), "after"), queue="lasting")
        assert set(wait_for_lines(path, 3)) == {"before", "deferred", "after"}
        go.touch()
        eventually(lambda: counts(nsqd, "lasting") == (0, 0, 0), TIMEOUT)
        assert app.control.ping([worker.name], timeout=TIMEOUT) == [{worker.name: {"ok": "pong"}}]
        assert len(lines(held)) == 2  # it was delivered again while it ran, and not run again


def test_nsqds_are_found_by_nsqlookupd(tmp_path: Path) -> None:
    with (
        Nsqlookupd() as lookupd,
        Nsqd(
            tmp_path / "nsqd", "broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        ) as nsqd,
    ):
        eventually(lambda: (lookupd.get("/nodes") or {}).get("producers"), TIMEOUT)
        url = f"nsq+lookupd://127.0.0.1:{lookupd.http_address[1]}"
        app = make_app(url)
        with Worker(tmp_path, url, "--pool=solo", "--without-mingle", queues=["found"]):
            assert app.send_task("add", (2, 3), queue="found").get(timeout=TIMEOUT) == 5
        assert nsqd.channel("found", "jobs")["message_count"] == 1


def programs_of_the_page() -> list[str]:
    page = (ROOT / "docs/how-to/celery.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("real_starts")  # as users do it; the others are forked
def test_the_example_of_the_page_runs(nsqd: Nsqd, tmp_path: Path) -> None:
    """It imports nothing of ours: Celery finds the transport by itself, for the URL alone."""
    settings, mails, program, *_ = programs_of_the_page()
    assert "nsqjobs" not in mails + program
    assert 'broker_url = "nsq://' in settings
    (tmp_path / "mails.py").write_text(mails.replace("nsq://127.0.0.1:4150", url_of(nsqd)))
    (tmp_path / "send.py").write_text(program)
    with Worker(tmp_path, url_of(nsqd), "--pool=solo", "--without-mingle", app="mails", queues=["celery"]):
        words = [sys.executable, "-W", "error", "send.py"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.stdout == "sent to ana@example.com\n", done.stderr
        eventually(lambda: counts(nsqd, "celery") == (0, 0, 0), TIMEOUT)


@pytest.mark.usefixtures("real_starts")
def test_the_groups_of_the_page(nsqd: Nsqd, tmp_path: Path) -> None:
    (bills,) = [it for it in programs_of_the_page() if "nsq_group_by" in it]
    (tmp_path / "bills.py").write_text(bills.replace("nsq://127.0.0.1:4150", url_of(nsqd)))
    words = [sys.executable, "-c", "import bills; bills.charge.delay('ana', 5)"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=TIMEOUT)
    with Connection(url_of(nsqd)) as connection:
        message = get(connection.channel(), "celery")
        assert message.headers["nsq-group"] == "ana"
        message.ack()


def test_a_job_that_nobody_runs_has_no_result(app: Celery) -> None:
    with pytest.raises(NoResult):
        app.send_task("add", (1, 2), queue="nobody").get(timeout=0.1)
