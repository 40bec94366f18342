"""A data path goes from NSQ's nsqd to ours, and back in the documented way (docs/how-to/move-from-go-nsqd.md)."""

from __future__ import annotations

from pathlib import Path

from nsqcommon.wire.commands import rdy
from tests.original.conftest import Daemons
from tests.support.process import Nsqd

SMALL = ("mem-queue-size=2", "max-bytes-per-file=1000", "msg-timeout=60s")
COUNT = 100


def filled(daemons: Daemons, folder: Path) -> None:
    """Leave a data path with all that NSQ's nsqd keeps in one."""
    nsqd = daemons.nsqd("nsq", *SMALL, folder=folder)
    for topic in ("t", "held", "alone"):
        nsqd.post(f"/topic/create?topic={topic}")
    for channel in ("a", "b"):
        nsqd.post(f"/channel/create?topic=t&channel={channel}")
    nsqd.post("/channel/create?topic=held&channel=c")
    nsqd.post("/topic/pause?topic=held")
    nsqd.post("/channel/pause?topic=t&channel=b")
    publisher = nsqd.connect()
    publisher.publish("t", *(b"body %d" % number for number in range(COUNT)))
    publisher.publish("held", b"kept")
    publisher.publish("alone", b"nobody's")
    publisher.defer("t", 600_000, b"later")
    consumer = nsqd.connect()
    consumer.subscribe("t", "a", ready=20)
    some = consumer.messages(20)
    consumer.send(rdy(0))
    consumer.finish(*some[:10])  # the others are in flight when it stops
    consumer.in_step()
    assert nsqd.stop() == 0
    assert list(folder.glob("*.diskqueue.000*.dat"))


def drained(nsqd: Nsqd, topic: str, channel: str, count: int) -> dict[bytes, int]:
    """Consume so many messages, and return their attempts by body."""
    consumer = nsqd.connect()
    consumer.subscribe(topic, channel, ready=count)
    messages = consumer.messages(count)
    consumer.finish(*messages)
    consumer.in_step()
    consumer.close()
    return {message.body: message.attempts for message in messages}


def test_all_that_a_go_nsqd_kept_is_delivered(daemons: Daemons, tmp_path: Path) -> None:
    filled(daemons, tmp_path / "data")
    nsqd = daemons.nsqd("ours", folder=tmp_path / "data")
    assert "complete and verified topics=3" in nsqd.log
    left = drained(nsqd, "t", "a", COUNT - 10 + 1)
    assert sorted(left.values()) == [1] * (COUNT - 20 + 1) + [2] * 10  # attempts of what was in flight are kept
    assert b"later" in left
    assert nsqd.channel("t", "b")["paused"]
    nsqd.post("/channel/unpause?topic=t&channel=b")
    assert len(drained(nsqd, "t", "b", COUNT + 1)) == COUNT + 1
    assert nsqd.topic("held")["paused"]
    nsqd.post("/topic/unpause?topic=held")
    assert drained(nsqd, "held", "c", 1) == {b"kept": 1}
    assert drained(nsqd, "alone", "first", 1) == {b"nobody's": 1}


def test_the_documented_way_back(daemons: Daemons, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    filled(daemons, folder)
    before = {it.name: it.read_bytes() for it in folder.iterdir() if it.name.endswith(".dat")}
    ours = daemons.nsqd("ours", folder=folder)
    drained(ours, "t", "a", COUNT - 10 + 1)
    ours.connect().publish("t", b"new")
    assert ours.stop() == 0

    for file in folder.glob("*.imported"):
        file.rename(file.with_name(file.name.removesuffix(".imported")))
    assert {it.name: it.read_bytes() for it in folder.iterdir() if it.name.endswith(".dat")} == before
    theirs = daemons.nsqd("nsq", *SMALL, folder=folder)
    again = drained(theirs, "t", "a", COUNT - 10 + 1)  # what was consumed meanwhile comes again
    assert sorted(again.values()) == [1] * (COUNT - 20 + 1) + [2] * 10
    assert b"new" not in again
    assert theirs.channel("t", "a")["depth"] == 0
    assert theirs.topic("held")["depth"] == 1


def test_ours_does_not_take_a_data_path_that_is_in_use(daemons: Daemons, tmp_path: Path) -> None:
    daemons.nsqd("nsq", folder=tmp_path / "data")
    try:
        daemons.nsqd("ours", folder=tmp_path / "data")
    except AssertionError as error:
        assert "failed to lock data-path" in str(error)  # noqa: PT017
    else:
        raise AssertionError("two nsqds on one data path")
