"""The process dies at any change of the disk, or the power is cut: everything that was promised is there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.broker.batch import Receipt
from nsqd.broker.store import Entry
from nsqd.log.files import Files
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import Crash, CrashingFiles, ForgetfulFiles, OpenStore, opened
from tests.support.examples import examples
from tests.support.lengths import sized


class Life:
    """A store in use, and what its users were promised."""

    def __init__(self, path: Path, files: Files, ack: str) -> None:
        self.appended: dict[int, bytes] = {}
        self.receipts: list[tuple[int, Receipt]] = []  # end of the batch
        self.finished = 0  # messages below this are finished; the journal has that before they are released
        self.finished_written = 0
        self.reserved = 0
        self.log_id = ""
        self.open = OpenStore(path, files, ack=ack, max_bytes_per_file=400, mem_queue_size=5)
        self.store = self.open.store
        self.open.state_of = self.snapshot
        self.log = self.open.log()
        self.log_id = self.log.log_id

    def snapshot(self, topic: str) -> list[Entry]:
        return [("finished", topic, self.finished)]

    def publish(self, random: Random) -> None:
        for _ in range(random.randint(1, 3)):
            tail = self.log.tail
            bodies = [b"%d." % n + bytes(random.choice((0, 10, 150))) for n in range(tail, tail + random.randint(1, 3))]
            receipt = Receipt()
            self.appended.update(enumerate(bodies, tail))
            self.receipts.append((tail + len(bodies), receipt))
            self.log.append(make_batch(tail, bodies), receipt)
        self.store.write_logs()

    def finish(self, random: Random) -> None:
        self.finished = random.randint(self.finished, self.log.tail)
        urgent = random.random() < 0.5
        self.store.record(("finished", "t", self.finished), urgent=urgent)
        if self.store.write_journal() and urgent:
            self.finished_written = self.finished
        self.log.release(self.finished)

    def sync(self, _: Random) -> None:
        self.open.sync()

    def flush(self, _: Random) -> None:
        self.store.flush()
        self.finished_written = self.finished

    def rotate(self, _: Random) -> None:
        if not self.store.journal.is_rotating:
            self.store.start_rotation()
        else:
            self.open.write_next_snapshot()

    def reserve(self, _: Random) -> None:
        self.store.reserve_ids(self.reserved + 100)
        self.reserved += 100

    def other_topics(self, random: Random) -> None:
        if "other" in self.store.logs:
            self.store.drop_log("other")
        else:
            self.open.publish(b"x", topic="other")

    def live(self, random: Random, steps: int) -> None:
        actions: list[Callable[[Random], None]] = [
            *[self.publish] * 4,
            *[self.finish] * 2,
            *[self.sync] * 2,
            self.flush,
            self.rotate,
            self.rotate,
            self.reserve,
            self.other_topics,
        ]
        for _ in range(steps):
            random.choice(actions)(random)

    def check(self, path: Path, *, promised: int, finished: int) -> None:
        """Check what a start finds; twice, as the first start may have changed something."""
        for _ in range(2):
            with opened(path, mem_queue_size=5) as found:
                log = found.recovered.logs.get("t")
                if log is None:
                    assert promised == 0
                    return
                known = [change[2] for change in found.recovered.changes if change[0] == "finished"]
                known_finished = known[-1] if known else 0
                assert isinstance(known_finished, int)
                assert known_finished >= finished
                assert found.recovered.ids_reserved >= self.reserved
                assert log.tail >= promised
                assert log.first <= known_finished or known_finished >= promised
                assert log.log_id == self.log_id or promised == 0
                readable = found.read()
                assert set(range(log.first, log.tail)) - set(readable) <= set(range(promised, log.tail))
                assert all(self.appended[sequence] == body for sequence, body in readable.items())
        with opened(path) as found:
            assert found.publish(b"and on").error is None


def settled(receipts: list[tuple[int, Receipt]]) -> int:
    return max((end for end, receipt in receipts if receipt.settled and receipt.error is None), default=0)


@given(st.randoms(use_true_random=False), st.integers(0, 150))
@settings(max_examples=examples(sized(short=75, long=300)))
def test_acknowledged_messages_survive_the_end_of_the_process_anywhere(random: Random, changes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        files = CrashingFiles(10**9)
        life = Life(path, files, "written")
        files.left = changes
        with pytest.raises(Crash):
            life.live(random, 10**6)
        life.open.kill()
        life.check(path, promised=settled(life.receipts), finished=life.finished_written)


@given(st.randoms(use_true_random=False), st.integers(0, 60))
@settings(max_examples=examples(sized(short=75, long=300)))
def test_synced_messages_survive_a_power_cut(random: Random, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        files = ForgetfulFiles()
        life = Life(path, files, "synced")
        life.live(random, steps)
        life.open.kill()
        files.cut_power(path, random)
        life.check(path, promised=max(settled(life.receipts), life.log.synced_tail), finished=0)


@given(st.randoms(use_true_random=False), st.integers(0, 60))
@settings(max_examples=examples(sized(short=25, long=100)))
def test_clean_stop_keeps_everything(random: Random, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        files = ForgetfulFiles()
        life = Life(path, files, "memory")
        life.live(random, steps)
        life.store.close()
        files.cut_power(path, random)
        life.check(path, promised=life.log.tail, finished=life.finished)
