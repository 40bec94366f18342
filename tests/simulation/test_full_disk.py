"""A real file system of 32 MiB fills up: publishing stops, everything else goes on, and no restart is needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.wire.commands import dpub, mpub, pub
from tests.support.client import Client, Refused
from tests.support.lengths import sized
from tests.support.process import Nsqd, eventually
from tests.support.small_disk import SmallDisk, mounted_for_test

MEBIBYTE: Final = 1 << 20
SIZE: Final = 32 * MEBIBYTE
RESERVE: Final = 4 * MEBIBYTE
WAIT: Final = 60.0
PADDING: Final = b"." * 24_000  # what a test takes depends on how many messages fill the disk

with_and_without = pytest.mark.parametrize("reserve", [RESERVE, 0], ids=["reserve", "none"])
ACKS: Final = ("written", "synced", "memory")
acks = pytest.mark.parametrize("ack", ACKS)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_for_test(tmp_path / "disk", SIZE) as small:
        yield small


class Full:
    """An nsqd on the small disk, and the messages that it has answered with OK."""

    def __init__(self, disk: SmallDisk, *options: str) -> None:
        self.disk = disk
        self.nsqd = Nsqd(disk.folder, "max-bytes-per-file=1048576", "mem-queue-bytes=1048576", *options)
        self.nsqd.under = disk.under
        self.acknowledged: list[bytes] = []

    def publish_until_refused(self, topic: str = "t", at_once: int = 20) -> str:
        """Publish until the first error, and return its text."""
        client = self.nsqd.connect()
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            first = len(self.acknowledged)
            bodies = [b"%d " % number + PADDING for number in range(first, first + at_once)]
            try:
                client.publish(topic, *bodies)
            except Refused as error:
                return str(error)
            self.acknowledged += bodies
        raise AssertionError("never refused")

    def is_refused(self) -> bool:
        client = self.nsqd.connect()
        client.send(pub("probe", PADDING))
        return client.frame().data.startswith(b"E_PUB_FAILED PUB failed ")

    def consume(self, count: int, topic: str = "t") -> list[bytes]:
        """Finish this many messages, all of which have to come."""
        found = []
        with Client(self.nsqd.tcp) as consumer:
            consumer.subscribe(topic, ready=50)
            for _ in range(count):
                message = consumer.message(WAIT)
                consumer.finish(message)
                found.append(message.body)
            consumer.in_step()
            assert consumer.stays_silent(0.01)
        return found

    def goes_on_by_itself(self) -> None:
        """Wait, without publishing or restarting, until nsqd is healthy; then it has to accept messages reliably."""
        eventually(lambda: self.nsqd.http("GET", "/ping").body == b"OK", WAIT)
        eventually(lambda: not self.is_refused(), WAIT)
        client = self.nsqd.connect()
        topic = f"after-{len(self.nsqd.stats()['topics'])}"
        for number in range(100):
            client.publish(topic, b"%d" % number)
        assert self.consume(100, topic) == [b"%d" % number for number in range(100)]
        assert "Traceback" not in self.nsqd.log

    @property
    def ping(self) -> str:
        answer = self.nsqd.http("GET", "/ping")
        return f"{answer.status} {answer.body.decode()}"


@acks
def test_reserve_stops_publishing_and_consuming_opens_it_again(disk: SmallDisk, ack: str) -> None:
    full = Full(disk, f"disk-reserve={RESERVE}", f"ack={ack}")
    with full.nsqd as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        error = full.publish_until_refused()
        assert error.startswith(f"E_MPUB_FAILED MPUB failed write {disk.folder}: ")
        assert error.endswith("MiB left on the disk, and --disk-reserve keeps 4.0 MiB free")
        assert len(full.acknowledged) * len(PADDING) > SIZE - RESERVE - 3 * MEBIBYTE
        assert disk.free > RESERVE - MEBIBYTE // 2  # indexes and the journal use some of the reserve
        until_closed(full)
        for command, word in ((pub("t", b"x"), b"PUB"), (mpub("t", [b"x"]), b"MPUB"), (dpub("t", 9, b"x"), b"DPUB")):
            client = nsqd.connect()
            client.send(command)
            assert client.frame().data.startswith(b"E_%b_FAILED %b failed write " % (word, word))
        assert nsqd.http("POST", "/pub?topic=t", b"x").body == b'{"message":"EXITING"}'
        assert full.ping.startswith("500 NOK - write ")
        nsqd.connect().publish("not-on-disk#ephemeral", b"x")
        nsqd.post("/channel/create?topic=t&channel=new")
        nsqd.post("/channel/delete?topic=t&channel=new")
        assert full.consume(len(full.acknowledged)) == full.acknowledged
        full.goes_on_by_itself()
        assert disk.free > SIZE // 2
        assert "publishing stopped until there is space" in nsqd.log
        assert eventually(lambda: "publishing resumed" in nsqd.log)


def until_closed(full: Full) -> None:
    """Publish smaller and smaller batches, because one that does not fit leaves room for smaller ones."""
    client = full.nsqd.connect()
    try:
        while True:
            body = b"%d " % len(full.acknowledged) + PADDING
            client.publish("t", body)
            full.acknowledged.append(body)
    except Refused:
        pass


@pytest.mark.parametrize(
    ("at_once", "ack"),
    sized(short=[(1, "written"), (100, "synced"), (1, "memory")], long=[*product((1, 100), ACKS)]),
)
def test_really_full_disk_is_consumed_empty(disk: SmallDisk, ack: str, at_once: int) -> None:
    full = Full(disk, "disk-reserve=0", f"ack={ack}")
    with full.nsqd as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        assert full.publish_until_refused(at_once=at_once).endswith(": no space left on device")
        full.disk.fill()  # also the room that a batch has left which did not fit
        assert disk.free == 0
        assert full.ping.startswith("500 NOK - ")
        assert full.consume(len(full.acknowledged)) == full.acknowledged
        full.goes_on_by_itself()


def test_journal_has_space_of_its_own(disk: SmallDisk) -> None:
    """The journal records a requeue before its message comes again, so attempts survive a kill even now."""
    full = Full(disk, "disk-reserve=0")
    with full.nsqd as nsqd:
        nsqd.connect().publish("t", *[b"%d" % number for number in range(200)])
        consumer = nsqd.connect()
        consumer.subscribe("t", ready=1)
        disk.fill()
        for _ in range(2000):
            consumer.requeue(consumer.message(WAIT))
        consumer.message(WAIT)
        assert disk.free == 0
        assert "journal.0" not in nsqd.log
        nsqd.kill()
        nsqd.start()
        consumer = nsqd.connect()
        consumer.subscribe("t", ready=200)
        messages = consumer.messages(200, WAIT)
        assert sum(message.attempts for message in messages) == 2000 + 200 + 1
        consumer.finish(*messages)
        consumer.in_step()
        (disk.seen / "somebody-elses").unlink()
        full.goes_on_by_itself()


@with_and_without
def test_somebody_else_fills_the_disk_and_makes_room_again(disk: SmallDisk, reserve: int) -> None:
    full = Full(disk, f"disk-reserve={reserve}")
    with full.nsqd as nsqd:
        nsqd.connect().publish("t", b"before")
        theirs = disk.fill()
        assert eventually(full.is_refused, WAIT)
        assert full.ping.startswith("500 NOK - ")
        theirs.unlink()
        full.goes_on_by_itself()
        nsqd.restart()
        assert full.consume(1) == [b"before"]


@with_and_without
def test_deleting_and_emptying_free_space_on_a_full_disk(disk: SmallDisk, reserve: int) -> None:
    full = Full(disk, f"disk-reserve={reserve}")
    with full.nsqd as nsqd:
        nsqd.connect().publish("small", b"1")
        client = nsqd.connect()
        for _ in range(12):
            client.publish("big", *[PADDING] * 43)
        nsqd.post("/channel/create?topic=big&channel=c")
        full.publish_until_refused()
        disk.fill()
        nsqd.post("/topic/delete?topic=t")
        eventually(lambda: disk.free > 8 * MEBIBYTE, WAIT)
        full.goes_on_by_itself()
        disk.seen.joinpath("somebody-elses").unlink()
        disk.fill()
        assert eventually(full.is_refused, WAIT)
        nsqd.post("/channel/empty?topic=big&channel=c")
        eventually(lambda: disk.free > 8 * MEBIBYTE, WAIT)
        full.goes_on_by_itself()


@pytest.mark.parametrize(
    ("reserve", "ack"),
    sized(short=[(RESERVE, "written"), (0, "synced"), (RESERVE, "memory")], long=[*product((RESERVE, 0), ACKS)]),
)
def test_killed_and_started_on_a_full_disk(disk: SmallDisk, ack: str, reserve: int) -> None:
    full = Full(disk, f"disk-reserve={reserve}", f"ack={ack}")
    with full.nsqd as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        full.publish_until_refused()
        disk.fill()
        nsqd.kill()
        nsqd.start()
        assert full.is_refused()
        found = full.consume(nsqd.channel("t")["depth"])
        if ack == "memory":  # NSQ's promise: messages in memory are lost
            assert found == full.acknowledged[: len(found)]
            assert len(found) > len(full.acknowledged) - 100
        else:
            assert found == full.acknowledged
        full.goes_on_by_itself()
        nsqd.kill()
        nsqd.start()
        full.goes_on_by_itself()
