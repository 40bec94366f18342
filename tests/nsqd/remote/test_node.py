"""A store of topics on a disk, with a copy in a shared folder: real files, real threads, and machines that are lost."""

from __future__ import annotations

import select
import shutil
from pathlib import Path

import pytest

from nsqcommon.startup import StartupError, TakenOver
from nsqd.broker.batch import Receipt
from nsqd.log.data_path import DataPath
from nsqd.log.files import Files
from nsqd.log.store import DiskStore
from nsqd.log.topic_log import DiskLog
from nsqd.options import Options
from nsqd.remote.fetching import Abandoned
from nsqd.remote.local_mark import Decision
from nsqd.remote.location import StoreLocation, StoreScheme
from nsqd.remote.node import RemoteNode, RemoteSettings
from nsqd.remote.recorder import RecordedFiles
from nsqd.remote.root_job import RootJob
from nsqd.start import opened_store
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings
from tests.support.object_stores import IgnoresCondition, Objects
from tests.support.open_files import only_high_descriptors

PATIENCE = 30.0


class Running:
    """What nsqd does with a store between its start and its end, without clients."""

    def __init__(self, folder: Path, shared: Path, *, name: str = "orders", takes_over: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        shared.mkdir(exist_ok=True)
        files = Files()
        recorded = RecordedFiles(files, folder, lambda change: None)
        self.store = DiskStore.open(folder, log_settings(), files=recorded)
        location = StoreLocation(StoreScheme.FILE, "", str(shared))
        self.node = RemoteNode(
            RemoteSettings(
                location=location,
                options={},
                name=name,
                interval=0.002,
                delay=0.002,
                timeout=PATIENCE,
                http_address="127.0.0.1:1",  # where nothing answers
                takes_over=takes_over,
            )
        )
        try:
            self.node.claim(self.store.data_path, files, recorded)
            self.recovered = self.store.recover()
            self.node.begin()
        except BaseException:
            self.store.abandon()
            raise

    def publish(self, *bodies: bytes, topic: str = "t") -> None:
        is_new = topic not in self.store.logs
        log = self.log(topic)
        if is_new:
            self.store.record(("topic", topic), urgent=True)
            self.store.write_journal()
        log.append(make_batch(log.tail, bodies), Receipt())
        self.store.write_logs()

    def log(self, topic: str = "t") -> DiskLog:
        log = self.store.create_log(topic)
        assert isinstance(log, DiskLog)
        return log

    def wait_until_confirmed(self) -> None:
        owner, doorbell = self.node.owner, self.node.sender.doorbell
        while owner.confirmed < owner.position and owner.fenced is None:
            assert select.select([doorbell.descriptor], [], [], PATIENCE)[0], "the store gives no answer"
            doorbell.answer()

    def stop(self) -> None:
        self.store.close()
        self.node.close(PATIENCE)

    def die(self) -> None:
        """End as if by kill -9. Requests that are under way may still arrive."""
        self.store.abandon()
        self.node.sender.close()


def odd(running: Running) -> list[str]:
    """Return the findings of the recovery that a start on another machine doesn't have to have."""
    return [it.text for it in running.recovered.damage if not it.text.startswith("topology.json is missing")]


def test_every_confirmed_message_is_on_the_next_machine(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = Running(tmp_path / "a", shared)
    for number in range(20):
        first.publish(b"message %d" % number)
    first.wait_until_confirmed()
    first.die()
    shutil.rmtree(tmp_path / "a")
    second = Running(tmp_path / "a", shared)
    assert (second.node.claimed.decision, odd(second)) == (Decision.ADOPT, [])
    assert second.log().tail == 20
    assert second.store.data_path.node == first.store.data_path.node
    second.publish(b"message 20")
    second.stop()
    third = Running(tmp_path / "b", shared, takes_over=False)
    assert (third.log().tail, odd(third)) == (21, [])
    third.stop()


def test_a_start_waits_for_the_store_also_with_very_many_open_files(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = Running(tmp_path / "a", shared)
    first.publish(b"one")
    first.die()
    with only_high_descriptors():
        again = Running(tmp_path / "a", shared, takes_over=False)
        again.stop()


def test_after_a_kill_the_same_disk_is_continued_and_the_store_gets_the_rest(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = Running(tmp_path / "a", shared)
    first.publish(b"one")
    first.wait_until_confirmed()
    first.node.sender.close()
    first.publish(b"two", topic="late")
    first.store.abandon()
    again = Running(tmp_path / "a", shared, takes_over=False)
    assert again.node.owner.confirmed == again.node.owner.position, "before it serves anything"
    assert (again.node.claimed.decision, odd(again)) == (Decision.CONTINUE, [])
    again.die()
    elsewhere = Running(tmp_path / "b", shared)
    assert [elsewhere.log(it).tail for it in ("t", "late")] == [1, 1]
    elsewhere.die()


def test_an_owner_that_was_overtaken_finds_out(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = Running(tmp_path / "a", shared)
    second = Running(tmp_path / "b", shared)
    first.publish(b"too late")
    first.wait_until_confirmed()
    with pytest.raises(TakenOver, match=r"orders: the name was taken over by process \d+ on \S+") as raised:
        first.node.raise_if_lost()
    assert raised.value.exit_status == 3
    assert second.node.owner.fenced is None
    first.die()
    second.die()


def test_an_owner_that_was_overtaken_saves_no_mark_when_its_data_path_is_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(RootJob, "leave", lambda self: steps.append("leave"))
    close = DataPath.close

    def unlock(self: DataPath) -> None:
        steps.append("unlock")
        close(self)

    monkeypatch.setattr(DataPath, "close", unlock)
    options = Options(
        data_path=str(tmp_path), remote=f"file://{tmp_path}/shared", remote_name="orders", http_address=""
    )
    (tmp_path / "shared").mkdir()
    with opened_store(options, None) as store:
        monkeypatch.setattr(type(store.remote), "is_lost", True)
    assert steps[:2] == ["leave", "unlock"]


def test_a_data_path_with_messages_gets_its_copy_before_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqd.remote.difference.MOST_BODY", 1000)
    without = DiskStore.open(_made(tmp_path / "a"), log_settings())
    without.recover()
    log = without.create_log("t")
    assert isinstance(log, DiskLog)
    for number in range(100):
        log.append(make_batch(number, [b"x" * 100]), Receipt())
    without.write_logs()
    without.close()
    first = Running(tmp_path / "a", tmp_path / "shared")
    first.publish(b"and one more")
    first.wait_until_confirmed()
    first.die()
    second = Running(tmp_path / "b", tmp_path / "shared")
    assert (second.log().tail, odd(second)) == (101, [])
    second.die()


def test_a_start_that_is_stopped_before_its_store_has_everything_leaves_nothing_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **named: object) -> None:
        raise Abandoned

    nodes: list[RemoteNode] = []

    def begin_and_keep(node: RemoteNode) -> None:
        nodes.append(node)
        begin(node)

    begin = RemoteNode.begin
    monkeypatch.setattr(RemoteNode, "begin", begin_and_keep)
    monkeypatch.setattr("nsqd.remote.node.begin_chain", stop)
    monkeypatch.setattr(RootJob, "close", lambda job, timeout: pytest.fail("waits for a sender that isn't there"))
    with pytest.raises(StartupError, match="stopped before the store had the data path of orders"):
        Running(tmp_path / "a", tmp_path / "shared")
    nodes[0].close(1.0)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_store_that_ignores_the_condition_never_gets_a_node(tmp_path: Path) -> None:
    objects = Objects()
    node = RemoteNode(
        RemoteSettings(
            location=StoreLocation(StoreScheme.S3, "bucket", ""), options={}, name="n", interval=1, delay=1, timeout=1
        ),
        open_store=lambda location, options, *, node="", on_unknown: IgnoresCondition(objects, on_unknown=on_unknown),
    )
    files = Files()
    recorded = RecordedFiles(files, tmp_path, lambda change: None)
    store = DiskStore.open(tmp_path, log_settings(), files=recorded)
    with pytest.raises(
        StartupError, match="--remote=s3://bucket can't be used: the second create of a name was accepted"
    ):
        node.claim(store.data_path, files, recorded)
    store.abandon()
    assert not objects.contents
