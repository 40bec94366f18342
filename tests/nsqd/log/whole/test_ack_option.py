"""--ack and --topic-ack: what an OK waits for. For example, with `memory` it waits for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.nsqd.log.harness import opened

if TYPE_CHECKING:
    from pathlib import Path


def test_messages_acknowledged_in_memory_are_written_later_or_when_there_are_many(tmp_path: Path) -> None:
    with opened(tmp_path, ack="memory") as store:
        store.publish(b"a")
        assert store.segments() == []
        store.store.flush()
        assert len(store.segments()) == 1
        store.publish(bytes(2 << 20))
        assert store.segments()[0].stat().st_size > 2 << 20


def test_the_ack_of_a_topic_goes_before_that_of_the_node(tmp_path: Path) -> None:
    with opened(tmp_path, topic_ack={"safe": "synced", "quick": "memory"}) as store:
        assert not store.publish(b"a", topic="safe").settled
        assert store.publish(b"a", topic="other").settled
        assert store.append(b"a", topic="quick").settled
