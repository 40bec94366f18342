"""The disk of a real nsqd refuses to read, for a moment or for good: everything is delivered, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import copytree

import pytest

from nsqcommon.wire.commands import dpub, fin, rdy, sub
from nsqd.log.owner import OWNER_JSON
from tests.simulation.refusing import RefusingDisk
from tests.support.client import Client
from tests.support.process import PYTHON, PYTHONPATH, Nsqd, eventually

pytestmark = pytest.mark.needs("C compiler")

DEFERRED = 20
SEGMENT = 10_000  # bytes
OTHERS = [bytes(SEGMENT // 6)] * 5  # these fill the rest of a segment
REFUSED = ("journal.0", "carried.0", "node.json", "log.json", "topology.json", "topics", "+journal.0", "+carried.0")
LONG = 30.0  # seconds, on a busy machine


@pytest.fixture
def disk(tmp_path: Path) -> RefusingDisk:
    folder = tmp_path / "shim"
    folder.mkdir()
    return RefusingDisk(folder, tmp_path / "data")


def broker(tmp_path: Path, disk: RefusingDisk, *, mem_queue_size: int = 0) -> Nsqd:
    return Nsqd(
        tmp_path / "data",
        f"max-bytes-per-file={SEGMENT}",
        f"mem-queue-size={mem_queue_size}",
        "ack=written",
        environ=disk.environ,
    )


def publish(nsqd: Nsqd, *, delay_ms: int) -> Client:
    """Publish deferred messages, each in a segment of others, all in flight to one consumer.

    The consumer finishes the others.
    """
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    producer = nsqd.connect()
    for number in range(DEFERRED):
        producer.send(dpub("t", delay_ms, b"deferred %d" % number))
        assert producer.response() == b"OK"
        producer.publish("t", *OTHERS)
    consumer = nsqd.connect()
    consumer.send(sub("t", "c"), rdy(10))
    assert consumer.response() == b"OK"
    return consumer


def finish(consumer: Client, count: int) -> list[bytes]:
    """Finish what comes, and return it."""
    bodies = []
    for _ in range(count):
        message = consumer.message(LONG)
        consumer.send(fin(message.id))
        bodies.append(message.body)
    return bodies


def deferred(bodies: list[bytes]) -> set[bytes]:
    return {body for body in bodies if body.startswith(b"deferred")}


ALL = {b"deferred %d" % number for number in range(DEFERRED)}


def files_of(nsqd: Nsqd) -> list[str]:
    return [path.name for path in (nsqd.data_path / "topics" / "t.t").iterdir()]


def has_compacted(nsqd: Nsqd) -> bool:
    names = files_of(nsqd)
    return any(name.startswith("carried.0") for name in names) and sum(name.endswith(".log") for name in names) <= 2


def said(nsqd: Nsqd, text: str) -> bool:
    return text in nsqd.log


def fsck(nsqd: Nsqd, environ: Mapping[str, str]) -> tuple[int, dict[str, int]]:
    done = subprocess.run(
        [PYTHON, "-P", "-m", "nsqd", "fsck", "--json", str(nsqd.data_path)],
        env={"PYTHONPATH": PYTHONPATH, **environ},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_compacted_file_that_is_refused_for_a_moment_costs_no_message(tmp_path: Path, disk: RefusingDisk) -> None:
    with broker(tmp_path, disk) as nsqd:
        consumer = publish(nsqd, delay_ms=5000)
        finish(consumer, DEFERRED * len(OTHERS))
        eventually(lambda: has_compacted(nsqd), LONG)
        with disk.refusing("carried.0"):
            eventually(lambda: said(nsqd, "cannot read now"), LONG)
            time.sleep(0.3)  # for as long as the disk refuses
        assert deferred(finish(consumer, DEFERRED)) == ALL
        assert not [name for name in files_of(nsqd) if "damaged" in name]


def test_segments_that_are_refused_while_they_are_compacted_stay(tmp_path: Path, disk: RefusingDisk) -> None:
    with broker(tmp_path, disk, mem_queue_size=1000) as nsqd:  # the consumer reads from memory
        consumer = publish(nsqd, delay_ms=9000)
        before = {name for name in files_of(nsqd) if name.endswith(".log")}
        with disk.refusing(".log"):
            finish(consumer, DEFERRED * len(OTHERS))
            eventually(lambda: said(nsqd, "compaction failed"), LONG)
            time.sleep(1.2)
            assert before <= set(files_of(nsqd))
            assert not [name for name in files_of(nsqd) if name == "carried.000001"]
        eventually(lambda: has_compacted(nsqd), LONG)
        assert not [name for name in files_of(nsqd) if "damaged" in name]
        nsqd.kill()
        status, report = fsck(nsqd, {})
        assert (status, report["damage"], report["unreadable"]) == (0, 0, 0)
        nsqd.start()
        consumer = nsqd.connect()
        consumer.send(sub("t", "c"), rdy(10))
        assert consumer.response() == b"OK"
        bodies: list[bytes] = []
        while deferred(bodies) != ALL:  # after a kill some finished messages may come again
            bodies += finish(consumer, 1)


def test_compacted_file_that_is_refused_for_good_is_kept_and_shown(tmp_path: Path, disk: RefusingDisk) -> None:
    with broker(tmp_path, disk) as nsqd:
        consumer = publish(nsqd, delay_ms=5000)
        finish(consumer, DEFERRED * len(OTHERS))
        eventually(lambda: has_compacted(nsqd), LONG)
        disk.refuse("carried.0")
        eventually(lambda: said(nsqd, "read failed, retrying later"), LONG)
        consumer.publish("t", b"behind")
        assert finish(consumer, 1) == [b"behind"]
        ping = nsqd.http("GET", "/ping")
        assert ping.status == 500
        assert b"/carried." in ping.body
        assert ping.body.endswith(b": input/output error")
        metrics = nsqd.http("GET", "/metrics").body.decode()
        assert 'nsqd_log_waiting_for_disk{topic="t"} 0' not in metrics
        assert "nsqd_disk_reads_refused_total 0" not in metrics
        nsqd.kill()
        refused = [name for name in files_of(nsqd) if name.startswith("carried.0")]  # on a busy machine there are two
        status, report = fsck(nsqd, disk.environ)
        assert (status, report["damage"], report["unreadable"]) == (1, 0, len(refused))
        disk.heal()
        assert fsck(nsqd, disk.environ)[0] == 0
        nsqd.start()
        assert nsqd.channel("t")["deferred_count"] + nsqd.channel("t")["depth"] >= DEFERRED


def test_start_waits_for_the_disk_and_changes_nothing(tmp_path: Path, disk: RefusingDisk) -> None:
    with broker(tmp_path, disk) as nsqd:
        consumer = publish(nsqd, delay_ms=600_000)
        finish(consumer, DEFERRED * len(OTHERS))
        eventually(lambda: has_compacted(nsqd), LONG)
        nsqd.kill()
        before = contents(nsqd.data_path)
    with ThreadPoolExecutor(len(REFUSED)) as threads:  # each start waits for some seconds
        ended = [*threads.map(partial(refused_start, nsqd), REFUSED)]
    for copy, _ in ended:
        assert contents(copy.data_path) == before, copy.data_path
    copy, healed = ended[-1]
    healed.heal()
    with copy:
        assert copy.channel("t")["deferred_count"] == DEFERRED


def refused_start(nsqd: Nsqd, refused: str) -> tuple[Nsqd, RefusingDisk]:
    """Start an nsqd on a copy of the data path, on a disk that refuses this. Return both when it has ended."""
    folder = nsqd.data_path.with_name(f"without-{refused}")
    folder.mkdir()
    disk = RefusingDisk(folder, folder / "data")
    copytree(nsqd.data_path, folder / "data")
    disk.refuse(refused)
    copy = Nsqd(folder / "data", *nsqd.options, environ=disk.environ)
    with pytest.raises(AssertionError, match="input/output error"), copy:
        pass
    return copy, disk


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of all files but the one that names the process."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != OWNER_JSON]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
