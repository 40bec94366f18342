"""Random lives of one disk and its store: whatever was sent, a kill takes nothing, and the store gets what is on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from nsqd.remote.local_mark import Decision
from tests.nsqd.remote.machines import Machine
from tests.support.lengths import sized
from tests.support.object_stores import Objects

JOURNAL: Final = "journal.000001"
TOPICS: Final = ("a", "b.index")
STEPS: Final = 30
SEEDS: Final[Sequence[int]] = sized(short=(9, 22, 23, 34), long=range(2000))


class Life:
    """An owner that writes, deletes topics and creates them again, cuts what it failed to write, and is killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.machine = Machine(folder / "disk")
        self.machine.start()
        self.machine.send_difference()
        self.machine.append(JOURNAL, b"j")
        self.logs = 0

    def run(self) -> None:
        steps = (self.publish, self.publish, self.publish, self.fail_to_write, self.delete_or_create)
        for _ in range(STEPS):
            self.random.choice((*steps, *steps, self.send_some, self.machine.send, self.root, self.restart))()

    def log_of(self, topic: str) -> str:
        return f"topics/t.{topic}/00000000.log"

    def exists(self, topic: str) -> bool:
        return (self.machine.folder / f"topics/t.{topic}").exists()

    def publish(self) -> None:
        topic = self.random.choice(TOPICS)
        if self.exists(topic):
            self.machine.append(self.log_of(topic), self.random.randbytes(self.random.randint(1, 9)))

    def fail_to_write(self) -> None:
        topic = self.random.choice(TOPICS)
        path = self.machine.folder / self.log_of(topic)
        if not path.exists():
            return
        size = path.stat().st_size
        self.machine.append(self.log_of(topic), self.random.randbytes(9))
        if self.random.random() < 0.5:
            self.send_some()
        self.machine.cut(self.log_of(topic), size)
        self.machine.append(self.log_of(topic), self.random.randbytes(3))  # as the next publish, which may be shorter

    def delete_or_create(self) -> None:
        topic = self.random.choice(TOPICS)
        self.machine.append(JOURNAL, b"j")
        if self.exists(topic):
            self.machine.delete_topic(topic)
            if self.random.random() < 0.5:
                return
        self.logs += 1
        self.machine.create_topic(topic, f"log-{self.logs}")

    def send_some(self) -> None:
        self.machine.messenger.send_some(self.random.randint(1, 3))

    def root(self) -> None:
        self.machine.send()
        self.machine.make_root()

    def restart(self) -> None:
        before = self.machine.content()
        self.machine.die()
        assert self.machine.start().decision is Decision.CONTINUE
        assert (self.machine.content(), self.machine.settled.aside) == (before, None)
        self.machine.send_difference()
        assert self.in_store() == before

    def in_store(self) -> dict[str, bytes]:
        """Return what another machine gets that takes over from a copy of the store."""
        copy = Objects()
        copy.contents |= self.machine.objects.contents
        with TemporaryDirectory() as folder:
            other = Machine(Path(folder), copy)
            other.start()
            other.die()
            return other.content()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_takes_nothing_and_the_store_gets_the_rest(seed: int, tmp_path: Path) -> None:
    Life(tmp_path, seed).run()
