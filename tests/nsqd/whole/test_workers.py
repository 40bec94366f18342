"""`nsqd --workers=2`: each worker is an nsqd of its own; killed, drained or stopped, none loses a message.

Run with `pytest -rP` to see how long a worker was away.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import nsqclient
import nsqclient.sync
from tests.nsqd.whole.workers import Workers
from tests.support.client import Client, Disconnected
from tests.support.process import (
    Nsqadmin,
    Nsqd,
    Nsqlookupd,
    eventually,
    needs_module,
    run_to_end,
)

TOPIC: Final = "t"
LIMIT: Final = 30.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_killed_worker_comes_back_with_all_it_has_confirmed_and_the_other_does_not_notice(data: Path) -> None:
    with Workers(data, 2) as nsqd:
        other = nsqd.connect(1)
        other.publish(TOPIC, b"before")
        others_pid = nsqd.worker_pid(1)
        confirmed = _publish_until_disconnected(nsqd.connect(0), lambda: os.kill(nsqd.worker_pid(0), signal.SIGKILL))
        killed_at = time.monotonic()
        nsqd.wait_for("worker-0 is ready", 2)
        print(f"ready {time.monotonic() - killed_at:.2f} s after kill -9, {confirmed} messages were confirmed")
        assert nsqd.depth(0) >= confirmed
        other.publish(TOPIC, b"after")
        assert nsqd.depth(1) == 2
        assert nsqd.worker_pid(1) == others_pid
        assert "worker-0 was killed by SIGKILL, restarting it now" in nsqd.log


def _publish_until_disconnected(client: Client, kill: Callable[[], None]) -> int:
    """Publish one by one, kill after a hundred, and return how many were confirmed."""
    confirmed = 0
    with suppress(Disconnected, OSError):
        while True:
            client.publish(TOPIC, b"m")
            confirmed += 1
            if confirmed == 100:
                kill()
    return confirmed


def test_a_rolling_restart_under_traffic_loses_nothing(data: Path) -> None:
    with Nsqlookupd() as lookupd, Workers(data, 2, f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}") as nsqd:
        before = [nsqd.worker_pid(it) for it in range(2)]
        address = f"127.0.0.1:{lookupd.http_address[1]}"
        received: set[bytes] = set()
        sent = 0

        def consume() -> None:
            for message in consumer.messages():
                received.add(message.body)
                message.finish()

        with (
            nsqclient.sync.consumer(TOPIC, "c", lookupd=[address]) as consumer,
            nsqclient.sync.producer(lookupd=[address]) as producer,
        ):
            thread = threading.Thread(target=consume)
            thread.start()
            try:
                producer.publish(TOPIC, b"first", timeout=LIMIT)
                nsqd.send_signal(signal.SIGUSR2)
                deadline = time.monotonic() + 4 * LIMIT
                while "restarted all workers" not in nsqd.log:
                    assert time.monotonic() < deadline, nsqd.log
                    producer.publish(TOPIC, b"%d" % sent, timeout=LIMIT)
                    sent += 1
                    time.sleep(0.002)  # several hundred in a second: more would only make the restart slower
                wanted = {b"first", *(b"%d" % it for it in range(sent))}
                eventually(lambda: wanted <= received, LIMIT)
            finally:
                consumer.stop()
                thread.join(LIMIT)
        assert {nsqd.worker_pid(it) for it in range(2)}.isdisjoint(before)
        assert sent > 0


@pytest.mark.usefixtures("real_starts")  # a forked worker gets a SIGTERM as well
def test_workers_stop_in_good_order_when_the_supervisor_is_killed(data: Path) -> None:
    with Workers(data, 2) as nsqd:
        pids = [nsqd.worker_pid(it) for it in range(2)]
        nsqd.kill()  # returns at the end of the log, which the workers write, too
        eventually(lambda: not any(map(_is_running, pids)), LIMIT)
        assert nsqd.log.count("the supervisor is gone: stopping this worker") == 2
        assert nsqd.log.count("NSQ: bye") == 2


def _is_running(pid: int) -> bool:
    """Return whether a process of this id runs. A dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_sigterm_stops_all_workers_with_status_0(data: Path) -> None:
    with Workers(data, 2) as nsqd:
        assert nsqd.stop() == 0
        assert nsqd.log.count("NSQ: bye") == 3  # two workers and the supervisor


def test_sigusr1_drains_all_workers_and_then_the_whole_ends(data: Path) -> None:
    with Workers(data, 2) as nsqd:
        nsqd.send_signal(signal.SIGUSR1)
        assert nsqd.wait() == 0
        assert nsqd.log.count("NSQ: drained") == 2


def test_a_worker_that_was_drained_alone_stays_down_until_the_workers_are_restarted(data: Path) -> None:
    with Workers(data, 2) as nsqd:
        nsqd.ask(0, "POST", "/drain")
        nsqd.wait_for("worker-0 has drained or was stopped")
        assert nsqd.ask(1, "GET", "/ping").status == 200
        nsqd.send_signal(signal.SIGUSR2)
        nsqd.wait_for("restarted all workers")
        assert nsqd.ask(0, "GET", "/ping").status == 200


def test_sigusr1_during_a_rolling_restart_ends_that_and_drains_all(data: Path) -> None:
    with Workers(data, 2) as nsqd:
        nsqd.send_signal(signal.SIGUSR2)
        nsqd.wait_for("restarting worker-0")
        nsqd.send_signal(signal.SIGUSR1)
        assert nsqd.wait() == 0  # whichever of them were between two processes


def test_each_worker_has_its_own_name_ids_and_folder(data: Path) -> None:
    with Workers(data, 2, "node-id=1023") as nsqd:
        assert [nsqd.ask(it, "GET", "/info").json["worker"] for it in range(2)] == [0, 1]
        assert [nsqd.ask(it, "GET", "/config/id").body for it in range(2)] == [b"1023", b"0"]
        assert [nsqd.ask(it, "GET", "/config/data_path").body.decode() for it in range(2)] == [
            str(data / "worker-0"),
            str(data / "worker-1"),
        ]
        if sys.platform == "linux":  # for ps, top and pgrep
            names = [Path(f"/proc/{nsqd.worker_pid(it)}/comm").read_text() for it in range(2)]
            assert names == ["nsqd worker 0\n", "nsqd worker 1\n"]


def test_each_line_of_a_log_in_json_names_its_worker(data: Path) -> None:
    data.mkdir()  # without a folder for the worker, which says so and ends
    ended = run_to_end(f"--data-path={data}", "--worker=1", "--workers=2", "--log-format=json")
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert "no such file or directory" in lines[-1]["message"]
    assert all(line["worker"] == 1 for line in lines)


def test_nsqadmin_joins_the_workers_in_its_topics_and_keeps_them_apart_as_nodes(data: Path) -> None:
    needs_module("starlette")
    with Nsqlookupd() as lookupd, Workers(data, 2, f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}") as nsqd:
        for worker, count in ((0, 2), (1, 3)):
            for _ in range(count):
                assert nsqd.ask(worker, "POST", f"/pub?topic={TOPIC}", b"m").status == 200
        with Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", "sample-interval=300ms") as admin:
            eventually(lambda: _depth_in(admin) == 5, LIMIT)
            text = admin.http("GET", "/nodes").body.decode()
            assert all(f"127.0.0.1:{nsqd.http_port(it)}" in text for it in range(2))
            assert all(f">Worker {it}<" in text for it in range(2))


def _depth_in(admin: Nsqadmin) -> int:
    answer = admin.http("GET", f"/api/v2/topics/{TOPIC}")
    return int(answer.json["depth"]) if answer.status == 200 else -1


# What is refused


def test_a_worker_that_cannot_start_ends_the_whole(data: Path, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "other") as other:
        data.mkdir()
        taken = f"--tcp-address=127.0.0.1:{other.tcp[1]}"
        ended = run_to_end(f"--data-path={data}", taken, "--http-address=127.0.0.1:0", "--workers=2")
        assert ended.returncode == 1
        assert "address already in use" in ended.stderr
        assert re.search(r"failed to instantiate nsqd - worker-\d ended with exit status 1; see its own", ended.stderr)


@pytest.mark.parametrize(
    ("before", "options", "said"),
    [
        ("worker-1/topics", ["--workers=1"], "worker-1, which --workers=1 would not serve: start with --workers=2"),
        ("worker-0/topics", [], "worker-0, which --workers=0 would not serve: start with --workers=1"),
        ("topics", ["--workers=2"], "then move everything in"),
        ("", ["--workers=-1"], "--workers must be [0,64]"),
        ("", ["--workers=2", "--worker=2"], "--worker must be [0,2), as --workers=2"),
        ("", ["--workers=2", "--tcp-address=/tmp/nsqd.sock"], "not the unix socket /tmp/nsqd.sock"),
        ("", ["--workers=2", "--http-address=127.0.0.1:4250"], "would both be port 4250"),
        ("", ["--workers=2", "--broadcast-http-port=65500"], "would need port 65600 for --broadcast-http-port"),
    ],
)
def test_what_would_leave_messages_behind_or_cannot_work_is_refused(
    data: Path, before: str, options: list[str], said: str
) -> None:
    (data / before).mkdir(parents=True)
    ended = run_to_end(f"--data-path={data}", *options)
    assert ended.returncode == 1
    assert said in ended.stderr


def test_no_data_path_is_refused_in_the_words_of_a_single_nsqd(data: Path) -> None:
    for workers in (0, 2):
        ended = run_to_end(f"--data-path={data}", f"--workers={workers}")
        assert ended.returncode == 1
        assert f"failed to lock data-path: open {data}: no such file or directory" in ended.stderr
