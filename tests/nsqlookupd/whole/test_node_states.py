"""What nsqlookupd says of a node that should get no messages, how soon, and when it stops saying so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.client import Client, Refused
from tests.support.process import PYTHON, Nsqd, Nsqlookupd
from tests.support.process import eventually as eventually_within
from tests.support.small_disk import mounted_for_test

MEBIBYTE: Final = 1 << 20
PATIENCE: Final = 100.0  # seconds; half a second on an idle machine
NOTICE: Final = 6.0  # seconds between the announcement of a drain and the first refusal
# An nsqd whose regular pings come once an hour. So whatever a nsqlookupd hears within our patience was told at once, and
# not by the next ping. On a busy machine, an answer of nsqlookupd may take longer than the second that nsqd waits for it,
# and a client may hear of a drain later than in the second that publishers have until the first refusal.
NSQD: Final = (
    PYTHON,
    "-P",
    "-c",
    "from nsqd.lookup import times; times.PING_INTERVAL = times.FIRST_PING = 3600.0; "
    f"times.IO_LIMIT = {PATIENCE}; "
    f"from nsqd import drain; drain.NOTICE = {NOTICE}; "
    "from nsqd.cli import main; main()",
)

eventually = partial(eventually_within, timeout=PATIENCE)


@pytest.fixture
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as started:
        yield started


def nsqd_of(lookupd: Nsqlookupd, folder: Path, *more: str, under: Sequence[str] = ()) -> Nsqd:
    """Return an nsqd, which the test has to start."""
    nsqd = Nsqd(folder, f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}", "broadcast-address=127.0.0.1", *more)
    nsqd.command, nsqd.under = NSQD, under
    return nsqd


def states(lookupd: Nsqlookupd, path: str = "/nodes") -> list[str]:
    return [it.get("state", "") for it in lookupd.get(path)["producers"]]


def is_refused(nsqd: Nsqd) -> bool:
    try:
        nsqd.connect().publish("t", b"." * 100_000)
    except Refused:
        return True
    return False


class Nodes:
    """A client that waits for the nodes, as a producer does, and notes when it has heard of each state."""

    def __init__(self, lookupd: Nsqlookupd) -> None:
        self.heard: dict[str, float] = {}
        self._lookupd = lookupd
        self._thread = threading.Thread(target=self._wait)

    def _wait(self) -> None:
        index = ""
        while "draining" not in self.heard:
            answer = self._lookupd.http("GET", f"/nodes?wait=20s{index}", timeout=PATIENCE)
            index = f"&index={answer.headers['x-nsq-index']}"
            for node in answer.json["producers"]:
                self.heard.setdefault(node.get("state", ""), time.monotonic())

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_a_full_disk_is_told_before_anybody_publishes_and_room_again(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    with (
        mounted_for_test(tmp_path / "disk", 32 * MEBIBYTE) as disk,
        nsqd_of(lookupd, disk.folder, f"disk-reserve={4 * MEBIBYTE}", under=disk.under) as nsqd,
    ):
        nsqd.connect().publish("t", b"before")
        eventually(lambda: states(lookupd) == [""])
        theirs = disk.fill(leave=MEBIBYTE)
        eventually(lambda: states(lookupd) == ["full"])
        assert states(lookupd, "/lookup?topic=t") == ["full"], "consumers still find it"
        with pytest.raises(Refused):
            nsqd.connect().publish("t", b"no room")
        theirs.unlink()
        eventually(lambda: states(lookupd) == [""])
        nsqd.connect().publish("t", b"after")


def test_a_disk_without_a_reserve_is_full_when_a_write_finds_no_room(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    with (
        mounted_for_test(tmp_path / "disk", 32 * MEBIBYTE) as disk,
        nsqd_of(lookupd, disk.folder, "disk-reserve=0", under=disk.under) as nsqd,
    ):
        nsqd.connect().publish("t", b"before")
        disk.fill()
        eventually(lambda: is_refused(nsqd))
        eventually(lambda: states(lookupd) == ["full"])


def test_a_node_whose_data_path_is_gone_is_unhealthy_until_it_is_back(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    with nsqd_of(lookupd, tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"before")
        eventually(lambda: states(lookupd) == [""])
        (tmp_path / "data").rename(tmp_path / "away")
        eventually(lambda: states(lookupd) == ["unhealthy"])
        (tmp_path / "away").rename(tmp_path / "data")
        eventually(lambda: states(lookupd) == [""])


def test_a_node_that_drains_says_so_before_it_refuses_anything(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    with nsqd_of(lookupd, tmp_path / "data") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        publisher = nsqd.connect()
        publisher.publish("t", b"first")
        eventually(lambda: states(lookupd) == [""])
        published = 1
        with Nodes(lookupd) as nodes:
            eventually(lambda: "" in nodes.heard)
            nsqd.post("/drain?stay=1h")
            assert nsqd.http("GET", "/readyz").body == b"draining"
            refused = 0.0
            until = time.monotonic() + PATIENCE
            while not refused and time.monotonic() < until:
                try:
                    publisher.publish("t", b"more")
                    published += 1
                    time.sleep(0.01)  # as the consumer has to finish them all
                except Refused:
                    refused = time.monotonic()
        assert refused - nodes.heard["draining"] > 0.5
        assert states(lookupd, "/lookup?topic=t") == ["draining"], "what waits has to be delivered"
        with Client(nsqd.tcp) as consumer:
            consumer.subscribe("t", "c", ready=100)
            for _ in range(published):
                consumer.finish(consumer.message())
        assert nsqd.stop() == 0
        (gone,) = lookupd.get("/nodes?missing=true")["missing"]
        assert (gone["drained"], gone["retired"]) == (True, False)


def test_a_drain_that_is_taken_back_is_told(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    with nsqd_of(lookupd, tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"first")
        eventually(lambda: states(lookupd) == [""])
        nsqd.post("/drain?stay=1h")
        eventually(lambda: states(lookupd) == ["draining"])
        nsqd.post("/undrain")
        eventually(lambda: states(lookupd) == [""])
        nsqd.connect().publish("t", b"second")


@pytest.mark.parametrize("retire", [False, True])
def test_a_drained_node_that_is_killed_has_drained(lookupd: Nsqlookupd, tmp_path: Path, retire: bool) -> None:
    with nsqd_of(lookupd, tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"first")
        eventually(lambda: states(lookupd) == [""])
        nsqd.post(f"/drain?stay=1h{'&retire=true' if retire else ''}")
        eventually(lambda: states(lookupd) == ["draining"])
        nsqd.kill()
        (gone,) = eventually(lambda: lookupd.get("/nodes?missing=true")["missing"])
        assert (gone["drained"], gone["retired"]) == (True, retire)


def test_a_node_that_starts_on_a_full_disk_says_so(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    with mounted_for_test(tmp_path / "disk", 32 * MEBIBYTE) as disk:
        disk.fill(leave=MEBIBYTE)
        with nsqd_of(lookupd, disk.folder, f"disk-reserve={4 * MEBIBYTE}", under=disk.under):
            eventually(lambda: states(lookupd) == ["full"])
