"""A real nsqd on the data path of a Go nsqd: what consumers get, and what a kill in between changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import go_import
from tests.support.go_data import GoData, Message, messages
from tests.support.lengths import sized
from tests.support.process import Nsqd, run_to_end


def drain(nsqd: Nsqd, channel: str, count: int) -> list[tuple[bytes, int, int, bytes]]:
    client = nsqd.connect()
    client.subscribe("t", channel, ready=100)
    got = []
    for _ in range(count):
        message = client.message()
        got.append((message.id, message.timestamp, message.attempts, message.body))
        client.finish(message)
    assert client.stays_silent(0.1)
    client.in_step()
    client.close()
    return sorted(got)


def given(*written: Message) -> list[tuple[bytes, int, int, bytes]]:
    return sorted((it.id, it.timestamp, it.attempts + 1, it.body) for it in written)


def test_each_consumer_gets_what_it_would_have_got(tmp_path: Path) -> None:
    a = list(messages(500, seed=1, attempts=(0, 0, 4)))
    b = list(messages(40, seed=1))  # channel a has copies with the same ids
    own = list(messages(60, seed=2, first=1000))
    go = GoData(tmp_path, max_bytes_per_file=10_000)
    go.queue("t:a", a, consumed=123)
    go.queue("t:b", b)
    go.queue("t", own)
    go.queue("p", own)
    go.metadata(
        {"t": {"a": False, "b": False, "held": True, "new": False}, "p": {"c": False}, "alone": {}}, paused=["p"]
    )
    with Nsqd(tmp_path) as nsqd:
        assert drain(nsqd, "a", 437) == given(*a[123:], *own)
        assert drain(nsqd, "b", 100) == given(*b, *own)
        assert drain(nsqd, "new", 60) == given(*own)
        assert nsqd.channel("t", "held")["paused"]
        assert nsqd.channel("t", "held")["depth"] == 60
        assert nsqd.topic("p")["paused"]
        assert nsqd.topic("p")["depth"] == 60
        assert nsqd.channel("p", "c")["depth"] == 0
        assert nsqd.topic("alone")["channels"] == []
        nsqd.restart()
        assert nsqd.channel("t", "a")["depth"] == 0
        nsqd.post("/topic/unpause?topic=p")
        assert nsqd.channel("p", "c")["depth"] == 60
        nsqd.connect().publish("t", b"and on")
        assert drain(nsqd, "b", 1)[0][3] == b"and on"


def test_while_the_go_nsqd_runs_nothing_is_imported(tmp_path: Path) -> None:
    go = GoData(tmp_path)
    go.queue("t:c", messages(3))
    go.metadata({"t": {"c": False}})
    with Nsqd(tmp_path, "import-go=false"):  # it takes the same lock as a Go nsqd
        second = run_to_end(f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert second.returncode == 1
    assert f"failed to lock data-path: cannot flock directory {tmp_path} - " in second.stderr
    assert (tmp_path / "nsqd.dat").exists()


def test_topics_of_both_keep_it_from_starting(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        nsqd.connect().publish("t", b"x")
    GoData(tmp_path).metadata({"t": {}})
    again = run_to_end(f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert again.returncode == 1
    assert (
        "failed to instantiate nsqd - failed to import from nsqd.dat: this data path already has topics" in again.stderr
    )


@pytest.mark.parametrize("seed", range(3))
def test_all_messages_are_equal_whenever_it_is_killed(tmp_path: Path, seed: int) -> None:
    count = sized(short=20_000, long=50_000)
    told = go_import.run(tmp_path / "data", count=count, kills=3, seed=seed, longest=count / 50_000)
    assert told.startswith(f"equal: {count} messages")
