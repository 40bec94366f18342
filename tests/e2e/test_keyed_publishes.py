"""nsqclient's default retry publishes everything once, whatever happens to nsqd and to connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqclient import sync
from tests.e2e.keyed_kill9 import run
from tests.support.process import Nsqd

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("colour", ["trio", "aio"])
@pytest.mark.parametrize(("kills", "cuts"), [(8, 0), (0, 40)], ids=["kills", "cuts"])
def test_what_is_published_while_nsqd_dies_is_stored_once(tmp_path: Path, colour: str, kills: int, cuts: int) -> None:
    run(tmp_path, kills=kills, cuts=cuts, seed=7, colour=colour, tell=print)


def test_a_plain_call_may_name_its_publish(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd, sync.producer(f"127.0.0.1:{nsqd.tcp[1]}") as producer:
        for _ in range(2):
            producer.publish("t", b"one", key="order-7", timeout=10)
            producer.publish_many("t", [b"two", b"three"], key="order-8", timeout=10)
        assert nsqd.topic("t")["message_count"] == 3
