"""A node with a copy in a shared folder: what an OK means, and what happens when the folder or the name is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from nsqcommon.wire import commands
from nsqcommon.wire.frames import FrameType
from tests.support.client import Client, Disconnected
from tests.support.process import PYTHON, PYTHONPATH, Nsqd, eventually, run_to_end


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def node_at(data_path: Path, shared: Path, *options: str) -> Nsqd:
    return Nsqd(
        data_path,
        f"remote=file://{shared}",
        "remote-name=orders",
        "remote-interval=2ms",
        "remote-timeout=1s",
        "topic-ack=fast=written",
        "ack=remote",
        *options,
    )


def slots_in(shared: Path) -> bytes:
    return b"".join(it.read_bytes() for it in sorted(shared.glob("orders/wal/*/*")))


class Away:
    """The shared folder isn't mounted for a while."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._elsewhere = shared.with_name("unmounted")

    def __enter__(self) -> None:
        self._shared.rename(self._elsewhere)

    def __exit__(self, *_: object) -> None:
        self._elsewhere.rename(self._shared)


def numbers(nsqd: Nsqd, count: int) -> list[int]:
    client = nsqd.connect()
    client.subscribe("t", ready=count)
    return sorted(map(int, client.bodies(count)))


def test_an_ok_means_that_the_store_has_the_message(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared) as nsqd:
        client = nsqd.connect()
        for number in range(20):
            body = b"message %d of this test" % number
            client.publish("t", body)
            assert body in slots_in(shared)


def test_every_message_that_was_answered_is_on_the_next_machine_after_kill_9(tmp_path: Path, shared: Path) -> None:
    answered: set[int] = set()

    def publish(client: Client, first: int) -> None:
        try:
            for number in range(first, first + 1_000_000):
                client.publish("t", b"%d" % number)
                answered.add(number)
        except (Disconnected, OSError):
            pass

    with node_at(tmp_path / "a", shared) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        threads = [
            threading.Thread(target=publish, args=(nsqd.connect(), worker * 1_000_000), daemon=True)
            for worker in range(4)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answered) >= 100)
        nsqd.kill()
        for thread in threads:
            thread.join()
    with node_at(tmp_path / "b", shared, "take-over") as elsewhere:
        count = elsewhere.channel("t")["depth"]
        assert answered <= set(numbers(elsewhere, count))


def test_topics_that_do_not_wait_for_the_store_go_on_without_it(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared) as nsqd:
        client = nsqd.connect()
        client.publish("t", b"before")
        with Away(shared):
            client.publish("fast", b"1")
            waiting = nsqd.connect()
            waiting.send(commands.pub("t", b"2"))
            error = waiting.error()
            assert error.startswith(b"E_PUB_FAILED PUB failed remote: file://")
            assert error.endswith(b"there is no such folder: mount it, or make it; it may be stored")
            refused = nsqd.connect()
            refused.send(commands.pub("t", b"3"))
            assert refused.error().endswith(b"mount it, or make it")
            client.publish("fast", b"4")
            assert nsqd.http("GET", "/ping").body.startswith(b"NOK - remote: file://")
            assert nsqd.http("GET", "/topic/log?topic=fast").json["next"] == 0
        eventually(lambda: nsqd.http("GET", "/ping").body == b"OK")
        client.publish("t", b"5")
        eventually(lambda: nsqd.http("GET", "/topic/log?topic=fast").json["next"] == 2)
        lines = nsqd.http("GET", "/topic/read?topic=t").body
        assert [body in lines for body in (b'"before"', b'"2"', b'"3"', b'"5"')] == [True, True, False, True]


def test_a_strict_node_refuses_every_topic_until_the_store_answers(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared, "remote-strict", "remote-timeout=300ms") as nsqd:
        with Away(shared):
            nsqd.post("/pub?topic=fast", b"before the timeout")
            eventually(lambda: nsqd.http("GET", "/ping").status == 500)
            refused = nsqd.http("POST", "/pub?topic=fast", b"after it")
            assert (refused.status, nsqd.http("POST", "/pub?topic=memory%23ephemeral", b"x").status) == (503, 200)
        eventually(lambda: nsqd.http("POST", "/pub?topic=fast", b"again").status == 200)
        assert nsqd.topic("fast")["depth"] == 2


def test_a_clean_stop_answers_publishers_before_it_closes_their_connections(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared, "remote-timeout=30s") as nsqd:
        client = nsqd.connect()
        client.publish("t", b"before")
        with Away(shared):
            client.send(commands.pub("t", b"under way"))
            eventually(lambda: nsqd.http("GET", "/remote").json["waiting_publishes"] == 1)
            nsqd.send_signal(signal.SIGTERM)
            eventually(lambda: "closing" in nsqd.log)
        assert client.response() == b"OK"
        assert nsqd.wait() == 0
        assert any(b"under way" in it.read_bytes() for it in shared.rglob("*") if it.is_file())


def test_publishers_wait_for_a_store_that_takes_less_than_they_send(tmp_path: Path, shared: Path) -> None:
    answers: list[bytes] = []
    count = 20  # of a megabyte each, from three clients: several times what is kept

    def receive(client: Client) -> None:
        answers.extend(client.response() for _ in range(count))

    def publish(client: Client) -> None:
        for number in range(count):
            client.send(commands.pub("t", b"%07d" % number * (1 << 17)))

    options = ("remote-timeout=60s", "remote-buffer=16777216")  # the least that is kept in memory
    with node_at(tmp_path / "a", shared, *options) as nsqd:
        clients = [nsqd.connect() for _ in range(3)]
        threads = [threading.Thread(target=do, args=(it,), daemon=True) for do in (receive, publish) for it in clients]
        with Away(shared):
            for thread in threads:
                thread.start()
            eventually(lambda: nsqd.http("GET", "/remote").json["behind_bytes"] > 8 << 20)
            nsqd.connect().publish("fast", b"1")
        for thread in threads:
            thread.join(60)
        assert answers == [b"OK"] * 3 * count
        remote = nsqd.http("GET", "/remote").json
    assert remote["roots"] == 0, "nothing was dropped"


def test_a_publish_that_was_repeated_with_its_key_is_stored_once(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared) as nsqd:
        nsqd.post("/pub?topic=t", b"before")
        with Away(shared):
            assert nsqd.http("POST", "/pub?topic=t&key=k", b"1").status == 503
            repeated = nsqd.http("POST", "/pub?topic=t&key=k", b"1")
            assert repeated.status == 503, repeated.body
        eventually(lambda: nsqd.http("POST", "/pub?topic=t&key=k", b"1").status == 200)
        assert nsqd.topic("t")["message_count"] == 2


def test_a_node_says_how_far_its_copy_goes(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared) as nsqd:
        client = nsqd.connect()
        client.publish("t", b"1")
        client.publish("fast", b"2")

        def copied() -> Any:
            """Return what it says when all is in the store. A start records something now and then, also later."""
            remote = nsqd.http("GET", "/remote").json
            return remote if (remote["behind_seconds"], remote["recorded"]) == (0, remote["confirmed"]) else None

        remote = eventually(copied)
        assert (remote["state"], remote["store"], remote["name"]) == ("owner", f"file://{shared}", "orders")
        assert remote["pid"] == nsqd.pid
        assert remote["requests"]["create"]["created"] >= remote["slots"] >= 2
        assert (remote["rate"], remote["strict"]) == (100_000_000, False)
        stats = nsqd.stats()
        assert stats["remote"]["waiting_publishes"] == 0
        assert {it["topic_name"]: it["ack"] for it in stats["topics"]} == {"t": "remote", "fast": "written"}
        with Away(shared):
            waiting = nsqd.connect()
            waiting.send(commands.pub("t", b"3"))
            waiting.error()
            remote = nsqd.http("GET", "/remote").json
            assert remote["state"] == "down"
            assert remote["refusal"].endswith("mount it, or make it")
            assert remote["behind_bytes"] > 0
            assert b'\nnsqd_remote_state{state="down"} 1\n' in nsqd.http("GET", "/metrics").body


def test_a_node_without_a_copy_says_nothing_of_one(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        nsqd.connect().publish("t", b"1")
        assert nsqd.http("GET", "/remote").status == 404
        assert "remote" not in nsqd.stats()
        assert "ack" not in nsqd.topic("t")
        assert b"nsqd_remote" not in nsqd.http("GET", "/metrics").body


def test_an_nsqd_whose_name_was_taken_over_says_so_and_ends(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", shared) as nsqd:
        client = nsqd.connect()
        client.publish("t", b"before")
        nsqd.send_signal(signal.SIGSTOP)  # so that it finds out when there is a publisher to be answered
        with node_at(tmp_path / "b", shared, "take-over") as elsewhere:
            client.send(commands.pub("t", b"after"))
            nsqd.send_signal(signal.SIGCONT)
            frame = client.frame()
            assert frame.type is FrameType.ERROR
            assert frame.data.startswith(
                b"E_PUB_FAILED PUB failed fenced: the name was taken over by process %d on " % elsewhere.pid
            )
            assert nsqd.wait() == 3
            assert "orders: the name was taken over by process" in nsqd.log
            assert elsewhere.topic("t")["depth"] == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--ack=remote"], "--ack=remote needs --remote, which names the store"),
        (["--remote=file:///no/such/folder"], "file:///no/such/folder: there is no such folder: mount it, or make it"),
        (["--remote=gcs://bucket"], "write gs:// for gcs://"),
    ],
)
def test_a_store_that_cannot_be_is_refused_at_the_start(tmp_path: Path, options: list[str], why: str) -> None:
    ended = run_to_end(f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *options)
    assert ended.returncode == 1
    assert why in ended.stderr.splitlines()[-1]


def test_a_node_without_a_copy_loads_nothing_of_it() -> None:
    code = "import sys, nsqd.daemon; print(*(it for it in sys.modules if it.startswith(('nsqd.remote.', 'obstore'))))"
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([PYTHON, "-P", "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
