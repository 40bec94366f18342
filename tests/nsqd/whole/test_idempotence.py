"""A batch with a key is published once, whatever happens between the request and the answer."""

from __future__ import annotations

import http.client
import random
import threading
from pathlib import Path

import pytest

from tests.support.lengths import sized
from tests.support.process import Nsqd, SteadyNsqd, eventually

WINDOW = "idempotence-window=1h"
KEPT = "retention-bytes=1GB"


def numbers(nsqd: Nsqd) -> list[int]:
    eventually(lambda: nsqd.http("GET", "/topic/log?topic=t").json["next"] == nsqd.topic("t")["depth"])
    lines = nsqd.http("GET", "/topic/read?topic=t").body.splitlines()[:-1]
    return [int(line.split(b'"body":"')[1].rstrip(b'"}')) for line in lines]


def test_a_second_try_publishes_nothing(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", WINDOW, KEPT) as nsqd:
        for _ in range(2):
            nsqd.post("/mpub?topic=t&key=a", b"1\n2")
        nsqd.post("/mpub?topic=t&key=b", b"3")
        nsqd.kill()
        nsqd.start()
        nsqd.post("/mpub?topic=t&key=a", b"1\n2")
        assert numbers(nsqd) == [1, 2, 3]
        nsqd.restart()
        nsqd.post("/mpub?topic=t&key=b", b"3")
        assert numbers(nsqd) == [1, 2, 3]


def test_keys_are_refused_where_they_are_not_remembered(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", "idempotence-window=0") as nsqd:
        assert nsqd.http("POST", "/mpub?topic=t&key=a", b"1").status == 400
        assert nsqd.connect().identify(feature_negotiation=True, extensions=["keys", "bury"])["extensions"] == ["bury"]


def test_a_start_knows_the_keys_of_publishes_that_shared_a_record(tmp_path: Path) -> None:
    commands = [b"PUB t k%d\n\0\0\0\1%d" % (number, number) for number in range(10)]
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        client = nsqd.connect()
        client.identify(feature_negotiation=True, extensions=["keys"])
        client.send(*commands)
        assert [client.response() for _ in commands] == [b"OK"] * 10
        nsqd.kill()
        nsqd.start()
        again = nsqd.connect()
        again.identify(feature_negotiation=True, extensions=["keys"])
        again.send(*reversed(commands), b"PUB t k10\n\0\0\0\2" + b"10")
        assert [again.response() for _ in range(11)] == [b"OK"] * 11
        assert numbers(nsqd) == list(range(11))
        assert nsqd.topic("t")["repeat_count"] == 10


def test_empty_forgets_keys_also_after_kill_9(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        nsqd.post("/pub?topic=t&key=a", b"1")
        nsqd.post("/topic/empty?topic=t")
        nsqd.kill()
        nsqd.start()
        nsqd.post("/pub?topic=t&key=a", b"2")
        assert nsqd.topic("t")["depth"] == 1


def test_the_oldest_keys_go_first(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT, "idempotence-keys=80") as nsqd:
        for _ in range(2):  # a restart knows no more than before
            for number in range(200):
                nsqd.post(f"/pub?topic=t&key={number}", b"x")
            for number in range(199, 129, -1):
                nsqd.post(f"/pub?topic=t&key={number}", b"x")
            assert nsqd.topic("t")["repeat_count"] == 70
            figures = nsqd.http("GET", "/metrics").body
            assert b"\nnsqd_keys_dropped_early_total 1" in figures
            nsqd.http("POST", "/topic/delete?topic=t")
            nsqd.restart()


@pytest.mark.parametrize("kills", [False, True])
def test_a_key_is_known_while_its_message_is_deferred_however_short_the_window_is(tmp_path: Path, kills: bool) -> None:
    with Nsqd(tmp_path / "data", "idempotence-window=100ms", "max-bytes-per-file=1000") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        nsqd.post("/pub?topic=t&key=later&defer=3000000", b"0")
        nsqd.post("/pub?topic=t&key=probe", b"1")

        def is_over() -> bool:
            nsqd.post("/pub?topic=t&key=probe", b"1" * 200)
            return bool(nsqd.topic("t")["message_count"] > 7)

        eventually(is_over)  # the window has passed five times, and the file of the first message was finished
        if kills:
            nsqd.kill()
            nsqd.start()
        before = nsqd.topic("t")["message_count"]
        nsqd.post("/pub?topic=t&key=later&defer=3000000", b"0")
        nsqd.post("/pub?topic=t&key=later", b"0")
        assert nsqd.topic("t")["message_count"] == before
        assert nsqd.channel("t", "c")["deferred_count"] == 1
        assert nsqd.topic("t")["repeat_count"] >= 2


@pytest.mark.slow
def test_kill_9_between_the_try_and_the_answer_makes_no_duplicate(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    count, lives = sized(short=(1000, 4), long=(2000, 6))
    published = threading.Event()
    done = 0

    def publish() -> None:
        """Repeat each batch until there is an OK, like a publisher that knows nothing else."""
        nonlocal done
        for number in range(count):
            while True:
                try:
                    answer = nsqd.http(
                        "POST", f"/mpub?topic=t&key=q/{number}", b"%d\n%d" % (2 * number, 2 * number + 1)
                    )
                except (OSError, http.client.HTTPException):
                    continue
                if answer.status == 200:
                    break
            done = number + 1
        published.set()

    with SteadyNsqd(tmp_path / "data", WINDOW, KEPT, "max-bytes-per-file=20000") as nsqd:
        publisher = threading.Thread(target=publish, daemon=True)
        publisher.start()
        for life in range(lives):
            eventually(lambda: done > count * (life + draw.random() / 2) / (lives + 1), timeout=60)  # noqa: B023
            nsqd.kill()
            nsqd.start()
        assert published.wait(60)
        assert numbers(nsqd) == list(range(2 * count)), f"seed {seed}"
