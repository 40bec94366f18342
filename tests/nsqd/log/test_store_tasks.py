"""The store in a running loop: what happens by itself, and when."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from nsqd.broker.batch import Receipt
from nsqd.broker.journal_replay import replay
from nsqd.broker.store import NotSynced
from nsqd.log.files import Files
from nsqd.log.journal import rotation
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import OpenStore, TroubledFiles, flip, opened
from tests.support.jumping import run_with_threads


@asynccontextmanager
async def running(path: Path, files: Files | None = None, **settings: Any) -> AsyncIterator[OpenStore]:
    opened = OpenStore(path, files or TroubledFiles(), **settings)
    opened.clock.now = trio.current_time()
    opened.clock.follows = trio.current_time
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(opened.run)
            yield opened
            nursery.cancel_scope.cancel()
    finally:
        opened.kill()


async def settled(receipt: Receipt) -> None:
    event = trio.Event()
    receipt.when_settled(event.set)
    await event.wait()


def test_sync_returns_when_everything_before_it_is_on_disk(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.append(b"a")
            store.store.record(("topic", "t"), urgent=False)
            await store.store.sync()
            assert store.log().synced_tail == 1
            synced = [name for operation, name in files.calls if operation == "sync"]
            assert synced[-4:-1] == ["log.json", f"{0:020}.log", "journal.000001"]
            assert synced[-1] == "journal.000001"  # which tells now how far the log is synced

    run_with_threads(test)


def test_sync_with_nothing_to_sync_returns_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as store:
            await store.store.sync()
            await store.store.sync()

    run_with_threads(test)


def test_many_that_wait_for_a_sync_share_it(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.publish(b"a")
            await store.store.sync()
            files.calls.clear()
            store.publish(b"b")
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(store.store.sync)
            assert 1 <= files.calls.count(("sync", f"{0:020}.log")) <= 2

    run_with_threads(test)


def test_sync_waits_for_no_log_that_becomes_unsynced_after_it(tmp_path: Path) -> None:
    topics = "abcde"

    async def test() -> None:
        store = OpenStore(tmp_path)
        async with trio.open_nursery() as nursery:
            for topic in topics:
                store.publish(b"before", topic=topic)
            nursery.start_soon(store.store.sync)
            await trio.testing.wait_all_tasks_blocked()
            for syncs in range(6):  # three for the logs, and as many for the journal's word of them
                assert nursery.child_tasks, syncs
                sync = store.store.syncer.collect(2)
                sync.perform(store.store.files)
                store.store.syncer.settle(sync)
                for topic in topics:
                    store.publish(b"after", topic=topic)
                await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks
            assert all(store.log(topic).synced_tail for topic in topics)
            nursery.cancel_scope.cancel()
        store.store.close()
        with opened(tmp_path) as again:
            assert {again.log(topic).synced_tail for topic in topics} == {7}

    run_with_threads(test)


def test_sync_ends_though_the_logs_it_waits_for_were_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        store = OpenStore(tmp_path)
        async with trio.open_nursery() as nursery:
            for topic in "abc":
                store.publish(b"x", topic=topic)
            nursery.start_soon(store.store.sync)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                sync = store.store.syncer.collect(1)
                sync.perform(store.store.files)
                store.store.syncer.settle(sync)
                store.store.drop_log("b")
                store.store.drop_log("c")
                await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks
            nursery.cancel_scope.cancel()
        store.kill()

    run_with_threads(test)


def test_failed_sync_is_told_to_who_waits(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fails_for = lambda name: not name.startswith("journal")

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.publish(b"a")
            files.fail("sync", errno.EIO)
            with pytest.raises(NotSynced, match="input/output error"):
                await store.store.sync("t")
            await store.store.sync("other")
            await store.store.sync()

    run_with_threads(test)


@pytest.mark.parametrize("cancelled_after", range(6))
def test_sync_that_is_cancelled_before_its_thread_began_is_not_lost(tmp_path: Path, cancelled_after: int) -> None:
    async def test() -> None:
        opened = OpenStore(tmp_path)
        async with trio.open_nursery() as nursery:
            await nursery.start(opened.run)
            opened.publish(b"a")
            opened.store.topology.set_names({"n": 1})
            for _ in range(cancelled_after):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        opened.store.close()

    run_with_threads(test)
    found = OpenStore(tmp_path)
    assert found.log().synced_tail == 1
    assert found.recovered.topology == {"n": 1}
    found.kill()


def test_dirty_log_is_synced_without_being_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as store:
            store.publish(b"a")
            await trio.sleep(0.05)
            assert store.log().synced_tail == 1

    run_with_threads(test)


def test_synced_publishers_are_answered_and_the_shell_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, ack="synced") as store:
            told: list[bool] = []
            receipts = [store.append(b"a"), store.append(b"b")]
            store.on_settled = lambda: told.append(all(receipt.settled for receipt in receipts))
            store.store.write_logs()
            await settled(receipts[1])
            await trio.lowlevel.checkpoint()
            assert told == [True]

    run_with_threads(test)


def test_nobody_is_told_when_nobody_waited(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as store:
            told: list[None] = []
            store.on_settled = lambda: told.append(None)
            store.publish(b"a")
            await store.store.sync()
            assert told == []

    run_with_threads(test)


def test_acknowledged_messages_are_written_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, ack="memory") as store:
            store.publish(b"a")
            assert store.segments() == []
            await trio.sleep(0.11)
            assert store.segments()[0].stat().st_size == 61

    run_with_threads(test)


def test_changes_are_written_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as store:
            for n in range(5):
                store.store.record(("n", n), urgent=False)
                assert store.store.journal.waiting
                await trio.sleep(0.11)
                assert store.store.journal.waiting == 0

    run_with_threads(test)


def test_checkpoint_follows_a_sync(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as store:
            store.publish(b"a")
            await trio.sleep(0.3)
        assert b"checkpoint" in (tmp_path / "journal.000001").read_bytes()

    run_with_threads(test)


def test_what_was_emptied_stays_so_when_a_later_part_of_the_journal_is_lost(tmp_path: Path) -> None:
    journal = tmp_path / "journal.000001"
    synced = []

    async def test() -> None:
        async with running(tmp_path) as store:
            for change in (("topic", "t"), ("channel", "t", "c", 0)):
                store.store.record(change, urgent=True)
            store.publish(b"a", b"b")
            store.store.record(("empty", "t", "c", 2), urgent=True)
            await store.store.sync()
            synced.append(journal.stat().st_size)
            for paused in (True, False):
                store.store.record(("hold", "t", "c", paused), urgent=True)
                store.store.write_journal()

    run_with_threads(test)
    flip(journal, synced[0])  # of the two frames that were not synced, the power cut loses the first
    with opened(tmp_path) as again:
        assert replay(again.recovered.changes)["t"].channels["c"].cursor == 2


def test_the_checkpoint_is_synced_that_a_flush_has_recorded_meanwhile(tmp_path: Path) -> None:
    async def test() -> None:
        store = OpenStore(tmp_path)
        store.publish(b"a")
        store.sync()
        store.store.record(("topic", "t"), urgent=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.store.sync)
            await trio.testing.wait_all_tasks_blocked()
            while nursery.child_tasks:
                sync = store.store.syncer.collect()
                sync.perform(store.store.files)
                store.store.flush()
                store.store.syncer.settle(sync)
                await trio.testing.wait_all_tasks_blocked()
        assert store.store.journal.synced_end == store.store.journal.end
        store.kill()

    run_with_threads(test)


def test_a_checkpoint_before_a_rotation_is_synced_with_what_comes_after_it(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.publish(b"a")
            await store.store.sync()
            store.publish(b"b")
            await trio.sleep(1)  # its checkpoint is written now
            files.calls.clear()
            assert store.store.start_rotation()
            store.store.record(("topic", "t"), urgent=True)
            await store.store.sync()
            assert ("sync", "journal.000001") in files.calls

    run_with_threads(test)


def test_store_at_rest_does_nothing(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            for n in range(50):
                store.publish(b"a", topic=f"t{n}")
            store.store.record(("topic", "t"), urgent=True)
            store.store.topology.set_names({})
            await trio.sleep(60)
            files.calls.clear()
            instrument = CountSteps()
            trio.lowlevel.add_instrument(instrument)
            await trio.sleep(3600)
            trio.lowlevel.remove_instrument(instrument)
            assert files.calls == []
            assert instrument.steps <= 3  # these are this task's own

    run_with_threads(test)


def journals_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("journal.*"))


class CountSteps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += "autojump" not in task.name


def test_idle_topics_give_back_descriptors_and_blocks(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, mem_queue_size=0) as store:
            for _ in range(3):
                store.publish(b"a")
            await trio.sleep(15)
            store.read()
            assert len(store.store.reads.descriptors) == 1
            await trio.sleep(30)
            assert len(store.store.reads.descriptors) == 0
            assert store.log().reader._blocks is None
            assert store.log().writer._descriptor == -1
            store.publish(b"b")
            assert len(store.read()) == 4

    run_with_threads(test)


def test_cold_batch_is_loaded_by_a_thread(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fail("read cached", errno.EAGAIN)

    async def test() -> None:
        async with running(tmp_path, files, mem_queue_size=0) as store:
            for n in range(10):
                store.publish(b"%d" % n, topic="cold")
            arrived = trio.Event()
            topics: list[str] = []

            def loaded(topic: str) -> None:
                topics.append(topic)
                arrived.set()

            store.on_loaded = loaded
            assert store.log("cold").batch_at(3) is None
            await arrived.wait()
            assert topics == ["cold"]
            batch = store.log("cold").batch_at(3)
            assert batch is not None
            assert batch.body(3) == b"3"

    run_with_threads(test)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ESTALE, errno.ELOOP])
def test_load_that_fails_for_a_passing_reason_is_tried_again_later(on_disk: Path, code: int) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(on_disk, files, mem_queue_size=0) as store:
            store.publish(b"a")
            store.publish(b"b")
            await store.store.sync()
            loaded: list[float] = []
            store.on_loaded = lambda topic: loaded.append(trio.current_time())
            files.fail("open to read", code)
            started = trio.current_time()
            assert store.log().batch_at(0) is None
            await trio.sleep(1)
            assert len(loaded) == 1
            assert loaded[0] - started >= 0.1
            assert store.store.damage == []
            files.recover()
            assert store.log().batch_at(0) is not None

    run_with_threads(test)


def test_topology_is_saved_in_the_background_and_not_too_often(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            for n in range(20):
                store.store.topology.set_names({"n": n})
                await trio.sleep(0.05)
            await trio.sleep(1)
        assert json.loads((tmp_path / "topology.json").read_text())["topology"] == {"n": 19}
        assert files.calls.count(("rename", "topology.json")) <= 7

    run_with_threads(test)


def test_names_are_not_forgotten_when_the_end_comes_while_they_are_collected(tmp_path: Path) -> None:
    async def test() -> None:
        opened = OpenStore(tmp_path)
        seconds = count()
        opened.store.now = lambda: float(next(seconds))
        async with trio.open_nursery() as nursery:

            def names() -> Iterator[dict[str, object]]:
                yield {"a": {}}
                nursery.cancel_scope.cancel()
                yield {"b": {}}

            await nursery.start(opened.run)
            opened.store.names_changed(names)
            await trio.sleep_forever()
        opened.store.close()
        assert json.loads((tmp_path / "topology.json").read_text())["topology"] == {"a": {}, "b": {}}

    run_with_threads(test)


def test_topology_that_could_not_be_saved_is_saved_later(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            files.fail("write")
            store.store.topology.set_names({"n": 1})
            await trio.sleep(1)
            assert b'"n"' not in (tmp_path / "topology.json").read_bytes()
            files.recover()
            await trio.sleep(5)
            assert store.store.health == "OK"
        assert json.loads((tmp_path / "topology.json").read_text())["topology"] == {"n": 1}

    run_with_threads(test)


def test_journal_is_rotated_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "ROTATE_AT", 10_000)

    async def test() -> None:
        async with running(tmp_path) as store:
            store.log("t")
            store.state_of = lambda name: [("topic", name)]
            for n in range(1000):
                store.store.record(("n", n, "x" * 20), urgent=True)
                store.store.write_journal()
            await trio.sleep(1)
            assert journals_in(tmp_path) == ["journal.000002"]

    run_with_threads(test)


def test_files_of_a_dropped_topic_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as store:
            store.publish(b"a")
            store.store.drop_log("t")
            await trio.sleep(0.1)
            assert list((tmp_path / "topics").iterdir()) == []

    run_with_threads(test)


def test_topic_that_could_not_be_renamed_goes_later(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.publish(b"a")
            files.fail("rename", errno.EACCES)
            store.store.drop_log("t")
            assert "permission denied" in store.store.health
            await store.store.sync()
            files.recover()
            await trio.sleep(3)
            assert store.store.health == "OK"
            assert list((tmp_path / "topics").iterdir()) == []

    run_with_threads(test)


def test_what_was_renamed_is_synced_before_the_deletion_is_reported(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.publish(b"a")
            await store.store.sync()
            files.calls.clear()
            store.store.drop_log("t")
            await store.store.sync()
            assert ("sync folder", "topics") in files.calls

    run_with_threads(test)


def test_descriptor_that_cannot_be_closed_ends_nothing(on_disk: Path) -> None:
    class Unclosable(TroubledFiles):
        def close(self, descriptor: int) -> None:
            super().close(descriptor)
            if "close" in self.failing and threading.current_thread() is threading.main_thread():
                raise OSError(errno.EIO, "Input/output error")

    files = Unclosable()

    async def test() -> None:
        async with running(on_disk, files, mem_queue_size=0, max_bytes_per_file=61) as store:
            store.publish(b"a")
            await store.store.sync()
            files.fail("close", errno.EIO)
            store.publish(b"b")
            assert store.log().batch_at(0) is not None
            store.state_of = lambda name: [("topic", name)]
            store.store.start_rotation()
            await trio.sleep(30)
            assert store.log().writer._descriptor == -1
            assert store.publish(b"c").error is None
            files.recover()

    run_with_threads(test)


def test_disk_is_tried_every_second_until_it_works_again(tmp_path: Path) -> None:
    files = TroubledFiles()

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.publish(b"a")
            files.fail("write")
            assert store.publish(b"b").error is not None
            await trio.sleep(5)
            assert store.store.health.startswith("NOK")
            files.recover()
            await trio.sleep(2)
            assert store.store.health == "OK"
            assert store.publish(b"c").error is None
            assert not (tmp_path / "probe.tmp").exists()

    run_with_threads(test)


@pytest.mark.parametrize("operation", ["unlink", "remove folder"])
def test_what_could_not_be_removed_is_removed_later(tmp_path: Path, operation: str) -> None:
    class Stubborn(TroubledFiles):
        def remove_folder(self, path: Path) -> None:
            self._note("remove folder", path)
            super().remove_folder(path)

    files = Stubborn()

    async def test() -> None:
        async with running(tmp_path, files, max_bytes_per_file=61) as store:
            for body in (b"a", b"b", b"c"):
                store.publish(body)
            store.publish(b"a", topic="dropped")
            files.fail(operation, errno.EIO)
            store.log().release(2)
            store.store.drop_log("dropped")
            await trio.sleep(5)
            assert store.store.health.startswith("NOK - remove ")
            assert store.publish(b"d").error is None
            files.recover()
            await trio.sleep(3)
            assert store.store.health == "OK"
            assert len(store.segments()) == 2
        assert store.store.data_path.dropped_folders() == []

    run_with_threads(test)


def test_journal_needs_no_more_space_than_it_needs(tmp_path: Path) -> None:
    """There is room for a change but not for the probe: finished segments have to go all the same."""
    files = TroubledFiles()
    files.fails_for = lambda name: name == "probe.tmp" or (name == "journal.000001" and not healed)
    healed = False

    async def test() -> None:
        nonlocal healed
        async with running(tmp_path, files, max_bytes_per_file=61) as store:
            for body in (b"a", b"b", b"c"):
                store.publish(body)
            files.fail("write")
            store.store.record(("finished",), urgent=False)
            store.log().release(2)
            await trio.sleep(5)
            assert len(store.segments()) == 3
            assert "journal.000001" in store.store.health
            healed = True
            await trio.sleep(5)
            assert len(store.segments()) == 1
            assert store.store.health == "OK"

    run_with_threads(test)


def test_journal_whose_sync_failed_is_written_anew_by_itself(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fails_for = lambda name: name == "journal.000001"

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.log("t")
            store.state_of = lambda name: [("topic", name)]
            files.fail("sync", errno.EIO)
            store.store.record(("topic", "t"), urgent=True)
            store.store.write_journal()
            await trio.sleep(5)
            assert store.store.health == "OK"
            assert journals_in(tmp_path) == ["journal.000002"]

    run_with_threads(test)


def test_journal_that_cannot_be_synced_is_not_written_anew_all_the_time(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fails_for = lambda name: name.startswith("journal.")

    async def test() -> None:
        async with running(tmp_path, files) as store:
            store.log("t")
            store.state_of = lambda name: [("topic", name)]
            files.fail("sync", errno.EIO)
            store.store.record(("topic", "t"), urgent=True)
            store.store.write_journal()
            await trio.sleep(10)
            assert 1 < len(journals_in(tmp_path)) < 13
            files.recover()
            await trio.sleep(3)
            assert store.store.health == "OK"
            assert len(journals_in(tmp_path)) == 1

    run_with_threads(test)


def test_close_after_a_cancelled_run_loses_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        opened = OpenStore(tmp_path, ack="memory")
        async with trio.open_nursery() as nursery:
            await nursery.start(opened.run)
            log = opened.log()
            for n in range(100):
                log.append(make_batch(log.tail, [b"%d" % n]), Receipt())
                opened.store.record(("n", n), urgent=False)
            nursery.cancel_scope.cancel()
        opened.store.close()

    run_with_threads(test)
    found = OpenStore(tmp_path)
    assert found.log().synced_tail == 100
    assert len(list(found.recovered.changes)) == 100
    found.kill()


def test_close_says_when_the_last_sync_of_the_journal_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TroubledFiles()
    files.fails_for = lambda name: name.startswith("journal.")
    opened = OpenStore(tmp_path, files)
    files.fail("write")
    opened.store.record(("n", 1), urgent=True)
    assert not opened.store.write_journal()  # and rests, so that the next write is the one at the end
    files.recover()
    files.fail("sync", errno.EIO)
    opened.store.close()
    assert opened.store.health != "OK"
    assert "shut down with unsynced data error=fsync" in caplog.text
