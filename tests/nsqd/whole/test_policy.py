"""The policy file of a real nsqd: from the start on, changed while it runs, and with mistakes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nsqcommon.wire import commands
from nsqd.policy_copy import POLICY_JSON
from tests.support.brokers import StartNsqd
from tests.support.client import Client
from tests.support.lateness import is_within
from tests.support.process import Nsqd, eventually, run_to_end


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def replace_file(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def policy(nsqd: Nsqd, query: str = "") -> Any:
    return nsqd.http("GET", f"/config/policy?{query}").json


def replace_and_wait(nsqd: Nsqd, file: Path, text: str) -> None:
    replace_file(file, text)
    assert eventually(lambda: policy(nsqd)["digest"] == sha256(text.encode()).hexdigest())


def test_a_changed_file_holds_without_a_restart_and_a_mistake_changes_nothing(
    start_nsqd: StartNsqd, file: Path
) -> None:
    file.write_text('[[policy]]\nack = "synced"\n')
    nsqd = start_nsqd(f"policy-file={file}")
    synced = {"ack": {"value": "synced", "line": 1, "dry_run": False}}
    assert policy(nsqd, "topic=t")["topic"] == synced
    replace_file(file, '[[policy]]\nack = "never"\nmax_atempts = 3\n')
    assert eventually(lambda: policy(nsqd)["error"])
    answer = policy(nsqd, "topic=t")
    assert answer["error"] == (
        'line 1: ack: must be one of "memory", "written", "synced", "remote", not \'never\'; line 1: max_atempts: unknown key'
    )
    assert answer["topic"] == synced
    assert nsqd.http("GET", "/stats?format=json").json["policy_error"] == answer["error"]
    assert b"\nnsqd_policy_file_valid 0\n" in nsqd.http("GET", "/metrics").body
    assert eventually(lambda: f"{answer['error']}; keeping the previous version" in nsqd.log)
    replace_and_wait(nsqd, file, '\n[[policy]]\nack = "memory"\n')
    answer = policy(nsqd, "topic=t")
    assert (answer["error"], answer["topic"]["ack"]["line"]) == ("", 2)
    assert b"\nnsqd_policy_file_valid 1\n" in nsqd.http("GET", "/metrics").body


def test_a_start_with_mistakes_is_refused_with_all_of_them(tmp_path: Path, file: Path) -> None:
    file.write_text('[[policy]]\nack = "never"\n\n[[policy]]\nmax_atempts = 3\n')
    done = run_to_end(f"--data-path={tmp_path}", f"--policy-file={file}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f'failed to read policy file {file} - line 1: ack: must be one of "memory", "written", "synced", "remote", '
        "not 'never'; line 4: max_atempts: unknown key"
    )


def test_a_broken_file_at_a_start_is_replaced_by_the_last_valid_copy_until_it_is_mended(
    start_nsqd: StartNsqd, file: Path
) -> None:
    file.write_text('[[policy]]\nack = "memory"\n')
    nsqd = start_nsqd(f"policy-file={file}")
    replace_and_wait(nsqd, file, '[[policy]]\nack = "synced"\n')
    assert eventually(lambda: b"synced" in (nsqd.data_path / POLICY_JSON).read_bytes())
    replace_file(file, '[[policy]]\nack = "never"\n')
    for is_missing in (False, True):
        if is_missing:
            file.unlink()
        nsqd.kill()
        nsqd.start()
        answer = policy(nsqd, "topic=t")
        assert (answer["is_copy"], answer["topic"]["ack"]["value"]) == (True, "synced")
        assert f"{answer['error']}; using the last valid copy" in nsqd.log
    assert answer["error"] == "no such file or directory"
    assert nsqd.http("GET", "/stats?format=json").json["policy_is_copy"] is True
    assert b"\nnsqd_policy_file_is_copy 1\n" in nsqd.http("GET", "/metrics").body
    replace_and_wait(nsqd, file, '[[policy]]\nack = "written"\n')
    assert "is_copy" not in policy(nsqd)
    assert b"\nnsqd_policy_file_is_copy 0\n" in nsqd.http("GET", "/metrics").body
    assert eventually(lambda: b"written" in (nsqd.data_path / POLICY_JSON).read_bytes())


def synced_at_once(nsqd: Nsqd, numbers: Iterator[int]) -> bool:
    """Publish, and return whether the message was synced when the OK came."""
    number = next(numbers)
    nsqd.post("/pub?topic=t", b"x")
    return bool(nsqd.http("GET", "/topic/log?topic=t").json["next"] == number)


def test_the_acknowledgement_of_a_topic_changes_while_nsqd_runs(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text('[[policy]]\nack = "memory"\n')
    nsqd = start_nsqd(f"policy-file={file}", "topic-ack=t=synced", "sync-timeout=1h", "sync-every=1000000")
    numbers = iter(range(1, 10_000))
    assert not all(synced_at_once(nsqd, numbers) for _ in range(20))  # the file takes precedence over the option
    replace_and_wait(nsqd, file, '[[policy]]\ntopic = "t"\nack = "synced"\n')
    assert eventually(lambda: synced_at_once(nsqd, numbers))
    assert all(synced_at_once(nsqd, numbers) for _ in range(20))
    nsqd.restart()
    assert all(synced_at_once(nsqd, numbers) for _ in range(20))


def test_the_retention_of_a_topic_changes_while_nsqd_runs(start_nsqd: StartNsqd, file: Path) -> None:
    keeping = '[[policy]]\ntopic = "t"\nretention_time = "7d"\n'
    file.write_text(keeping)
    nsqd = start_nsqd(f"policy-file={file}", "max-bytes-per-file=2000")

    def first() -> int:
        return int(nsqd.http("GET", "/topic/log?topic=t").json["first"])

    with nsqd.connect() as client:
        client.subscribe("t", ready=100)
        for _ in range(3):
            client.publish("t", *[bytes(900)] * 10)
            client.finish(*client.messages(10))
        assert eventually(lambda: nsqd.channel("t")["depth"] + nsqd.channel("t")["in_flight_count"] == 0)
    nsqd.restart()  # ages are told by the files now
    assert first() == 0
    replace_and_wait(nsqd, file, '[[policy]]\ntopic = "t"\nretention_bytes = "10GB"\n')
    replace_and_wait(nsqd, file, keeping)  # a time comes to hold while nsqd runs
    nsqd.post("/pub?topic=t", b"x")
    assert first() == 0
    replace_and_wait(nsqd, file, '[[policy]]\ntopic = "t"\nretention_time = "0s"\n')
    assert eventually(lambda: first() > 0)


RATE = 500


def until_finished(clients: list[Client], count: int) -> float:
    """Return when so many messages were delivered and finished, to all of them together."""
    lock, deadline = threading.Lock(), time.monotonic() + 90.0
    got, ended = 0, 0.0

    def consume(client: Client) -> None:
        nonlocal got, ended
        while time.monotonic() < deadline:
            try:
                message = client.message(timeout=1.0)
            except TimeoutError:
                if ended:
                    return
                continue
            client.finish(message)
            with lock:
                got += 1
                if got == count:
                    ended = time.monotonic()
            if ended:
                return

    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(consume, clients))
    assert ended, f"only {got} were delivered"
    return ended


@pytest.mark.parametrize("consumers", [1, 50])
def test_a_channel_delivers_at_its_rate(start_nsqd: StartNsqd, file: Path, consumers: int) -> None:
    seconds = int(os.environ.get("NSQ_TEST_SECONDS", "4"))  # NSQ_TEST_SECONDS=60 shows that a minute is as exact
    file.write_text(f'[[policy]]\nchannel = "slow"\nmax_rate = "{RATE}/s"\n')
    nsqd, topics = start_nsqd(f"policy-file={file}"), itertools.count()

    def lateness() -> float:
        topic = f"t{next(topics)}"
        with ExitStack() as stack:
            clients = [stack.enter_context(nsqd.connect()) for _ in range(consumers)]
            for client in clients:
                client.subscribe(topic, "slow", ready=20)
            began = time.monotonic()
            clients[0].publish(topic, *[b"x"] * (RATE * (seconds + 3)))
            took = until_finished(clients, RATE * (seconds + 1)) - began  # one second's worth came at once
        print(f"{consumers} consumers got {RATE * seconds / took:.1f} a second")
        assert took >= 0.98 * seconds  # never too fast
        return took - 1.02 * seconds

    assert is_within(1.0, lateness)  # the end of a run waits for the machine


def test_a_publish_beyond_a_bound_is_refused_until_there_is_room(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text('[[policy]]\nchannel = "*"\nmax_messages = 3\n\n[[policy]]\nmax_bytes = "1MB"\n')
    nsqd = start_nsqd(f"policy-file={file}")
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    for _ in range(3):
        nsqd.post("/pub?topic=t", b"x")
    full = {"message": "FULL", "reason": "channel t:c is full (max_messages = 3)"}
    for path in ("/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=1000"):
        answer = nsqd.http("POST", path, b"x")
        assert (answer.status, answer.headers["retry-after"], answer.json) == (429, "1", full)
    with nsqd.connect() as client:
        client.send(commands.pub("t", b"x"))
        assert client.error() == b"E_PUB_FAILED PUB failed channel t:c is full (max_messages = 3)"
    with nsqd.connect() as client:
        client.send(commands.mpub("t", [b"x"]))
        assert client.error() == b"E_MPUB_FAILED MPUB failed channel t:c is full (max_messages = 3)"
    assert nsqd.topic("t")["policy_counts"] == {"max_messages, rejected": 5}
    assert b'nsqd_topic_policy_total{topic="t",cause="max_messages, rejected"} 5' in nsqd.http("GET", "/metrics").body
    nsqd.restart()
    assert nsqd.http("POST", "/pub?topic=t", b"x").status == 429
    with nsqd.connect() as client:
        client.subscribe("t", ready=3)
        client.finish(*client.messages(3))
    assert eventually(lambda: nsqd.http("POST", "/pub?topic=t", b"x").status == 200)
    nsqd.post("/pub?topic=u", bytes(900_000))  # a topic without a channel
    answer = nsqd.http("POST", "/pub?topic=u", bytes(200_000))
    assert (answer.status, answer.json["reason"]) == (429, "topic u is full (max_bytes = 1000000)")


def test_a_full_channel_drops_its_oldest_messages(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text('[[policy]]\nchannel = "c"\nmax_bytes = "100kB"\noverflow = "drop-oldest"\n')
    nsqd = start_nsqd(f"policy-file={file}", "max-bytes-per-file=20000", "mem-queue-size=10")
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.post("/channel/create?topic=t&channel=all")
    for number in range(300):
        nsqd.post("/pub?topic=t", b"%d" % number + bytes(997))
    dropped = nsqd.channel("t")["policy_counts"]["overflow, dropped"]
    assert 200 <= dropped <= 210  # 100 messages of a kilobyte, less what their records take
    nsqd.kill()
    nsqd.start()
    with nsqd.connect() as client:
        client.subscribe("t", ready=400)
        numbers = [int(message.body.rstrip(b"\0")) for message in client.messages(300 - dropped)]
        assert numbers[-1] == 299
        assert len(set(numbers)) == len(numbers)
    assert nsqd.channel("t", "all")["depth"] == 300


def test_what_nobody_uses_expires_and_that_is_on_record(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text(
        '[[policy]]\ntopic = "old"\nexpire_after = "2s"\n\n[[policy]]\nchannel = "c"\nexpire_after = "2s"\n'
    )
    nsqd = start_nsqd(f"policy-file={file}")
    for topic in ("old", "t", "full"):
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.post("/pub?topic=full", b"x")
    with nsqd.connect() as client:
        client.subscribe("t", "other")
        assert eventually(lambda: {it["topic_name"] for it in nsqd.stats()["topics"]} == {"t", "full"})
        assert eventually(lambda: [it["channel_name"] for it in nsqd.topic("t")["channels"]] == ["other"])
    changes = nsqd.http("GET", "/changes").json["changes"]
    expired = {
        (it["what"], it["topic"], it["channel"], it["detail"], it["who"]) for it in changes if "expire" in it["what"]
    }
    assert expired >= {
        ("expire_topic", "old", "", "expire_after=2s", "policy file"),
        ("expire_channel", "t", "c", "expire_after=2s", "policy file"),
    }
    said = 'CHANGE: expire_topic topic="old" channel="" "expire_after=2s" who="policy file"'
    assert eventually(lambda: said in nsqd.log)
    assert nsqd.channel("full")["depth"] == 1
    nsqd.restart()
    assert [it["topic_name"] for it in nsqd.stats()["topics"]] == ["full", "t"]
