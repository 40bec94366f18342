"""dramatiq on a real nsqd: what its users rely on, with workers in this process and in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import ConnectionFailed, QueueJoinTimeout
from dramatiq.middleware import CurrentMessage, GroupCallbacks
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend as StubResults

from nsqjobs.dramatiq import NsqBroker
from tests.nsqjobs.program import TIMEOUT, Program
from tests.support.brokers import StartNsqd
from tests.support.process import PYTHONPATH, Nsqd, Nsqlookupd, SteadyNsqd, eventually

ACTORS = Path(__file__).parents[2] / "e2e" / "peers" / "dramatiq_actors.py"


def url_of(nsqd: Nsqd, options: str = "") -> str:
    return f"nsq://{nsqd.tcp[0]}:{nsqd.tcp[1]}{options}"


@contextmanager
def as_the_broker(broker: NsqBroker) -> Iterator[NsqBroker]:
    dramatiq.set_broker(broker)
    try:
        yield broker
    finally:
        broker.close()
        dramatiq.set_broker(StubBroker())


@pytest.fixture
def broker(nsqd: Nsqd) -> Iterator[NsqBroker]:
    with as_the_broker(NsqBroker(url_of(nsqd))) as it:
        yield it


@pytest.fixture
def queue(topic: str) -> str:
    return topic


@contextmanager
def working(broker: NsqBroker, threads: int = 2) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def jobs(nsqd: Nsqd, queue: str) -> dict[str, int]:
    """Return the figures of a queue's channel."""
    return nsqd.channel(queue, "jobs") or {}


def buried(nsqd: Nsqd, queue: str) -> list[str]:
    """Return the reasons of the buried messages."""
    lines = nsqd.http("GET", f"/channel/buried?topic={queue}&channel=jobs").body.splitlines()
    return [said["reason"] for said in map(json.loads, lines) if "reason" in said]


# In this process


def test_a_job_goes_to_a_worker_and_back(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    seen = []

    @dramatiq.actor(queue_name=queue)
    def add(x: int, y: int) -> None:
        seen.append(x + y)

    for number in range(100):
        add.send(number, 1)
    with working(broker):
        broker.join(queue, timeout=30_000)
    assert sorted(seen) == list(range(1, 101))
    assert broker.get_queue_message_counts(queue) == (0, 0, 0)


def test_nobody_holds_a_delayed_job_and_it_is_not_early(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    ran_at = []

    @dramatiq.actor(queue_name=queue)
    def note() -> None:
        ran_at.append(time.time())

    with working(broker):
        eventually(lambda: jobs(nsqd, queue), TIMEOUT)
        due = time.time() + 1.5
        note.send_with_options(delay=1500)
        figures = jobs(nsqd, queue)
        assert (figures["deferred_count"], figures["in_flight_count"]) == (1, 0) or time.time() >= due
        broker.join(queue, timeout=30_000)
    assert len(ran_at) == 1
    assert ran_at[0] >= due


def test_an_operator_may_let_a_delayed_job_run_now(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    ran = []

    @dramatiq.actor(queue_name=queue)
    def note() -> None:
        ran.append(1)

    with working(broker):
        eventually(lambda: jobs(nsqd, queue), TIMEOUT)
        note.send_with_options(delay=3_000_000)
        [deferred] = nsqd.http("GET", f"/channel/deferred?topic={queue}&channel=jobs").body.splitlines()
        nsqd.post(f"/message/due?topic={queue}&id={json.loads(deferred)['id']}&defer=0")
        eventually(lambda: ran, TIMEOUT)


def test_an_eta_in_the_options_is_a_delay(broker: NsqBroker, queue: str) -> None:
    ran_at = []

    @dramatiq.actor(queue_name=queue)
    def note() -> None:
        ran_at.append(time.time())

    due = time.time() + 0.5
    note.send_with_options(eta=int(due * 1000) + 1)
    with working(broker):
        broker.join(queue, timeout=30_000)
    assert ran_at[0] >= due


def test_a_delay_may_be_longer_than_nsqd_accepts(start_nsqd: StartNsqd, queue: str) -> None:
    ran_at = []
    with as_the_broker(NsqBroker(url_of(start_nsqd("max-req-timeout=300ms")))) as broker:

        @dramatiq.actor(queue_name=queue)
        def note() -> None:
            ran_at.append(time.time())

        with working(broker):
            due = time.time() + 1
            note.send_with_options(delay=1000)
            broker.join(queue, timeout=30_000)
    assert len(ran_at) == 1
    assert ran_at[0] >= due


def test_a_job_that_fails_is_tried_again_later(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    retries = []

    @dramatiq.actor(queue_name=queue, min_backoff=50, max_backoff=100)
    def fail_twice() -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        retries.append(message.options.get("retries", 0))
        if len(retries) < 3:
            raise ValueError("not yet")

    broker.add_middleware(CurrentMessage())
    fail_twice.send()
    with working(broker):
        eventually(lambda: len(retries) == 3, TIMEOUT)
        broker.join(queue, timeout=30_000)
    assert retries == [0, 1, 2]
    assert broker.get_queue_message_counts(queue) == (0, 0, 0)


def test_dead_letters_are_buried_with_the_reason(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    @dramatiq.actor(queue_name=queue, max_retries=0)
    def fail() -> None:
        raise ValueError("no such order")

    fail.send()
    broker.enqueue(dramatiq.Message(queue, "nobody", (), {}, {}))
    nsqd.post(f"/pub?topic={queue}", b"no message of dramatiq")
    with working(broker):
        eventually(lambda: len(buried(nsqd, queue)) == 3, TIMEOUT)
    reasons = sorted(buried(nsqd, queue))
    assert reasons[0].startswith("ActorNotFound: nobody")
    assert reasons[1].startswith("Failed to decode message.")
    assert reasons[2] == "ValueError: no such order"
    assert broker.get_queue_message_counts(queue) == (0, 0, 3)


def test_pipelines_groups_and_results(broker: NsqBroker, queue: str) -> None:
    broker.add_middleware(GroupCallbacks(StubLimits()))
    broker.add_middleware(Results(backend=StubResults()))
    together = Event()

    @dramatiq.actor(queue_name=queue, store_results=True)
    def add(x: int, y: int) -> int:
        return x + y

    @dramatiq.actor(queue_name=queue)
    def all_done() -> None:
        together.set()

    with working(broker):
        more: list[dramatiq.Message[Any]] = [dramatiq.Message(queue, "add", (number,), {}, {}) for number in (3, 4)]
        pipe = dramatiq.pipeline([add.message(1, 2), *more]).run()
        assert pipe.get_result(block=True, timeout=30_000) == 10
        group = dramatiq.group([add.message(1, 1), add.message(2, 2)])
        group.add_completion_callback(all_done.message())
        assert sorted(group.run().get_results(block=True, timeout=30_000)) == [2, 4]
        assert together.wait(TIMEOUT)


def test_a_job_longer_than_the_timeout_of_its_message_runs_once(nsqd: Nsqd, queue: str) -> None:
    starts = []
    with as_the_broker(NsqBroker(url_of(nsqd, "?msg_timeout=4s"))) as broker:

        @dramatiq.actor(queue_name=queue)
        def linger(seconds: float) -> None:
            starts.append(seconds)
            time.sleep(seconds)

        linger.send(5)
        linger.send(0)  # waits in the worker
        with working(broker, threads=1):
            broker.join(queue, timeout=30_000)
    assert sorted(starts) == [0, 5]


def test_a_worker_has_as_many_messages_as_it_prefetches(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    broker.declare_queue(queue)
    for _ in range(10):
        broker.enqueue(dramatiq.Message(queue, "any", (), {}, {}))
    consumer = broker.consume(queue, prefetch=3, timeout=30_000)
    messages = [next(consumer) for _ in range(3)]
    assert all(messages)
    assert jobs(nsqd, queue)["in_flight_count"] == 3
    consumer.requeue([it for it in messages if it])
    consumer.close()
    eventually(lambda: jobs(nsqd, queue)["depth"] == 10, TIMEOUT)
    again = broker.consume(queue, prefetch=1, timeout=30_000)
    message = next(again)
    assert message
    assert message.held.attempts == 1  # giving back does not count
    again.ack(message)
    again.close()


def test_what_kills_its_workers_is_buried_in_the_end(nsqd: Nsqd, queue: str) -> None:
    with as_the_broker(NsqBroker(url_of(nsqd, "?max_attempts=1"))) as broker:
        broker.declare_queue(queue)
        broker.enqueue(dramatiq.Message(queue, "any", (), {}, {}))
        consumer = broker.consume(queue, prefetch=1, timeout=30_000)
        message = next(consumer)
        assert message
        message.held.give_back(count=True)  # as if nobody had ever answered
        eventually(lambda: buried(nsqd, queue), TIMEOUT)
        consumer.close()
    assert buried(nsqd, queue) == ["attempted 2 times"]


def test_nsqlookupd_tells_where_the_queues_are(tmp_path: Path, start_nsqd: StartNsqd, queue: str) -> None:
    ran = []
    with Nsqlookupd() as lookupd:
        told = f"lookupd-tcp-address={lookupd.tcp[0]}:{lookupd.tcp[1]}"
        nsqds = [start_nsqd(told, "broadcast-address=127.0.0.1") for _ in range(2)]
        url = f"nsq+lookupd://{lookupd.http_address[0]}:{lookupd.http_address[1]}"
        with as_the_broker(NsqBroker(url)) as broker:

            @dramatiq.actor(queue_name=queue)
            def note(number: int) -> None:
                ran.append(number)

            eventually(lambda: len(lookupd.get("/nodes")["producers"]) == 2, TIMEOUT)
            note.send(0)
            for number, nsqd in enumerate(nsqds, 1):
                nsqd.post(f"/pub?topic={queue}", note.message(number).encode())
            with working(broker):
                eventually(lambda: len(ran) == 3, TIMEOUT)
                broker.join(queue, timeout=30_000)
    assert sorted(ran) == [0, 1, 2]


def test_a_paused_worker_gives_back_what_it_has_not_begun(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    seen = []

    @dramatiq.actor(queue_name=queue)
    def note(number: int) -> None:
        seen.append(number)

    with working(broker) as worker:
        note.send(0)
        eventually(lambda: seen, TIMEOUT)
        worker.pause()
        note.send(1)
        assert seen == [0]
        worker.resume()
        broker.join(queue, timeout=30_000)
    assert seen == [0, 1]


def test_join_gives_up_and_flush_drops(broker: NsqBroker, queue: str) -> None:
    broker.declare_queue(queue)
    broker.enqueue(dramatiq.Message(queue, "any", (), {}, {}))
    broker.consume(queue).close()
    broker.enqueue(dramatiq.Message(queue, "any", (), {}, {}), delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join(queue, timeout=100)
    broker.flush_all()
    broker.join(queue, timeout=30_000)


def test_an_nsqd_that_is_not_there() -> None:
    broker = NsqBroker("nsq://127.0.0.1:1")
    with pytest.raises(ConnectionFailed):
        broker.enqueue(dramatiq.Message("q", "any", (), {}, {}))
    broker.close()


def test_a_forked_process_connects_anew(broker: NsqBroker, queue: str, nsqd: Nsqd) -> None:
    broker.declare_queue(queue)
    broker.enqueue(dramatiq.Message(queue, "parent", (), {}, {}))
    child = multiprocessing.get_context("fork").Process(
        target=broker.enqueue, args=(dramatiq.Message(queue, "child", (), {}, {}),)
    )
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
    broker.enqueue(dramatiq.Message(queue, "parent", (), {}, {}))
    assert nsqd.topic(queue)["message_count"] == 3


# In processes of their own


class Workers:
    """`dramatiq` with one worker process, which notes in a file what its jobs do."""

    def __init__(self, nsqd: Nsqd, queue: str, folder: Path) -> None:
        self.notes = folder / "notes"
        self._environ = {
            "PYTHONPATH": f"{PYTHONPATH}:{ACTORS.parent}",
            "NSQ_URL": url_of(nsqd, "?msg_timeout=4s"),  # after which nsqd takes back what a killed worker had
            "NSQ_QUEUE": queue,
            "NOTES": str(self.notes),
        }
        self._log = folder / "worker.log"
        self._started: list[Program] = []

    def start(self, threads: int = 1) -> Program:
        words = ["-m", "dramatiq", ACTORS.stem, "--processes", "1", "--threads", str(threads)]
        self._started.append(Program(words, self._log, environ=self._environ))
        return self._started[-1].start()

    def noted(self, what: str) -> list[str]:
        """Return the names of the jobs that have noted this."""
        lines = self.notes.read_text().split("\n") if self.notes.exists() else []
        return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]

    def wait_for(self, what: str, count: int = 1) -> None:
        eventually(lambda: len(self.noted(what)) >= count, TIMEOUT)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="backslashreplace") if self._log.exists() else ""

    def close(self) -> None:
        for program in self._started:
            program.kill()


@pytest.fixture
def workers(nsqd: Nsqd, queue: str, tmp_path: Path) -> Iterator[Workers]:
    with closing(Workers(nsqd, queue, tmp_path)) as it:
        yield it
        sys.stderr.write(it.log)  # pytest shows it when the test fails


def send(nsqd: Nsqd, queue: str, actor: str, *arguments: object, **options: object) -> None:
    broker = NsqBroker(url_of(nsqd))
    delay = options.pop("delay", None)
    broker.enqueue(dramatiq.Message(queue, actor, arguments, {}, options), delay=delay)  # type: ignore[arg-type]
    broker.close()


@pytest.mark.usefixtures("real_starts")  # as users do it; the others are forked
def test_a_job_of_a_killed_worker_is_done_by_another(workers: Workers, nsqd: Nsqd, queue: str) -> None:
    send(nsqd, queue, "linger", "first", 60)
    first = workers.start()
    workers.wait_for("begin")
    first.kill()
    send(nsqd, queue, "linger", "second", 0)
    workers.start(threads=2)
    eventually(lambda: workers.noted("begin").count("first") == 2, TIMEOUT)
    workers.wait_for("end")
    assert workers.noted("end") == ["second"]


def test_a_worker_that_is_to_stop_finishes_its_job_and_gives_back_the_others(
    workers: Workers, nsqd: Nsqd, queue: str
) -> None:
    first = workers.start()
    eventually(lambda: jobs(nsqd, queue), TIMEOUT)
    send(nsqd, queue, "wait_for_file", "first", str(workers.notes.parent / "go"))
    workers.wait_for("begin")
    send(nsqd, queue, "linger", "second", 0)
    eventually(lambda: jobs(nsqd, queue)["in_flight_count"] == 2, TIMEOUT)
    first.send_signal(signal.SIGTERM)
    eventually(lambda: "Shutting down" in workers.log, TIMEOUT)
    (workers.notes.parent / "go").touch()
    assert first.wait() == 0
    assert workers.noted("begin") == workers.noted("end")
    left = 2 - len(workers.noted("end"))
    eventually(lambda: (it := jobs(nsqd, queue)) and (it["depth"], it["in_flight_count"]) == (left, 0), TIMEOUT)
    assert jobs(nsqd, queue)["timeout_count"] == 0
    workers.start()
    workers.wait_for("end", 2)
    assert workers.noted("begin") == ["first", "second"]


def test_jobs_outlive_a_killed_nsqd(start_nsqd: StartNsqd, queue: str, tmp_path: Path) -> None:
    nsqd = start_nsqd(kind=SteadyNsqd)
    with closing(Workers(nsqd, queue, tmp_path)) as workers:
        workers.start()
        eventually(lambda: jobs(nsqd, queue), TIMEOUT)
        due = time.time() + 2
        send(nsqd, queue, "linger", "later", 0, delay=2000)
        nsqd.kill()
        nsqd.start()
        workers.wait_for("end")
        send(nsqd, queue, "linger", "new", 0)
        workers.wait_for("end", 2)
        assert time.time() >= due
        assert workers.noted("begin") == ["later", "new"]
