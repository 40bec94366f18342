"""The end of a turn: when it writes the journal. tests/model has whole turns, and deaths within them."""

from __future__ import annotations

from functools import partial

from nsqd.broker.turn import finish_turn
from tests.support.fake_store import tell_nobody
from tests.support.node import Node

BODY = b"\0\0\0\1x"


class Disk:
    """A node's store, of which you can say that it does not take the journal."""

    journal_error: str | None = None
    publishing_error: str | None = None

    def __init__(self, node: Node) -> None:
        self._node = node
        self.is_full = False
        self.steps: list[str] = []

    def write_journal(self) -> bool:
        self.steps.append("journal")
        return not self.is_full and self._node.store.write_journal()

    def write_logs(self) -> None:
        self.steps.append("logs")
        self._node.store.write_logs()

    def finish_turn(self) -> list[str]:
        """Return the steps of a turn, which ends here."""
        self.steps = []
        finish_turn(self._node.broker, self, announce=tell_nobody, flush=partial(self.steps.append, "flush"))
        return self.steps


def test_a_publish_that_changes_nothing_else_does_not_write_the_journal() -> None:
    node = Node()
    topic = node.broker.topic("t")
    node.turn()
    disk = Disk(node)
    topic.publish_one(BODY)
    assert disk.finish_turn() == ["logs", "flush"]


def test_a_change_is_written_before_the_messages_that_follow_from_it() -> None:
    node = Node()
    disk = Disk(node)
    topic = node.broker.topic("t")
    topic.publish_one(BODY)
    assert disk.finish_turn() == ["journal", "logs", "flush"]


def test_a_change_without_a_publish_is_written_before_the_frames_leave() -> None:
    node = Node()
    disk = Disk(node)
    node.broker.topic("t").pause()
    assert disk.finish_turn() == ["journal", "flush"]
    assert disk.finish_turn() == ["flush"]


def test_a_change_that_the_disk_does_not_take_is_tried_again_in_each_turn() -> None:
    node = Node()
    disk = Disk(node)
    disk.is_full = True
    node.broker.topic("t").pause()
    assert disk.finish_turn() == ["journal", "flush"]
    assert disk.finish_turn() == ["journal", "flush"]
    disk.is_full = False
    assert disk.finish_turn() == ["journal", "flush"]
    assert disk.finish_turn() == ["flush"]
    assert ("pause", "t", True) in node.store.journal
