"""Which messages of a log that went aside the node doesn't have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsqd.broker.batch import Receipt
from nsqd.log.files import Files
from nsqd.log.store import DiskStore
from nsqd.log.topic_log import DiskLog
from nsqd.remote.aside import AsideMessage, messages_aside
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings

TIME = 1_700_000_000_000_000_000
BEHIND = 1 << 26  # by which a later owner's ids are ahead


def log_at(
    folder: Path, *bodies: bytes, base_id: int = 1, topic: str = "t", delay_ms: int = 0, key: bytes = b""
) -> None:
    """Append these messages to the log of a node, each as a record of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    store = DiskStore.open(folder, log_settings(max_bytes_per_file=300))
    store.recover()
    log = store.create_log(topic)
    assert isinstance(log, DiskLog)
    for number, body in enumerate(bodies):
        batch = make_batch(log.tail, [body], base_id=base_id + number, timestamp=TIME, delay_ms=delay_ms, key=key)
        log.append(batch, Receipt())
        store.write_logs()
    store.close()


def aside(folder: Path, *bodies: bytes, topic: str = "t", **more: Any) -> None:
    """Have a log of the same topic among the files that went aside."""
    other = folder.parent / "other"
    log_at(other, *bodies, topic=topic, **more)
    target = folder / "aside-20261128T070000Z" / "topics" / f"t.{topic}"
    target.parent.mkdir(parents=True, exist_ok=True)
    (other / "topics" / f"t.{topic}").rename(target)


def found_in(folder: Path) -> list[tuple[bytes, bool]]:
    return [(it.body, it.is_certain) for it in messages_aside(folder, Files())]


def test_nothing_went_aside(tmp_path: Path) -> None:
    log_at(tmp_path / "node", b"one")
    assert found_in(tmp_path / "node") == []


def test_a_tail_that_the_store_never_got(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    log_at(folder, b"one", b"two")
    log_at(folder, b"another's", base_id=BEHIND)
    aside(folder, b"one", b"two", b"lost", b"lost, too")
    assert found_in(folder) == [(b"lost", True), (b"lost, too", True)]


def test_a_topic_that_the_node_does_not_have(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    log_at(folder, b"one")
    aside(folder, b"lost", topic="late")
    assert [(it.topic, it.body) for it in messages_aside(folder, Files())] == [("late", b"lost")]


def test_what_the_nodes_log_does_not_reach_back_to_is_uncertain(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    log_at(folder, *[b"x" * 200] * 4)
    for name in sorted(it.name for it in (folder / "topics/t.t").glob("*.log"))[:2]:
        (folder / "topics/t.t" / name).unlink()
    aside(folder, *[b"x" * 200] * 4, b"lost")
    assert found_in(folder) == [(b"x" * 200, False), (b"x" * 200, False), (b"lost", True)]


def test_a_segment_that_the_node_removes_meanwhile_is_one_that_it_has_removed(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    log_at(folder, *[b"x" * 200] * 4)
    aside(folder, *[b"x" * 200] * 4, b"lost")
    assert [(it.body, it.is_certain) for it in messages_aside(folder, Removing(folder / "topics/t.t"))] == [
        (b"x" * 200, False),
        (b"lost", True),
    ]


class Removing(Files):
    """A disk on which nsqd removes the first segment of a log when its names were read."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def names_in(self, folder: Path) -> list[str]:
        names = super().names_in(folder)
        if folder == self._log:
            (folder / min(it for it in names if it.endswith(".log"))).unlink()
        return names


def test_a_message_keeps_the_key_that_its_publisher_may_have_published_it_with_again(tmp_path: Path) -> None:
    aside(tmp_path / "node", b"lost", key=b"order-7")
    (message,) = messages_aside(tmp_path / "node", Files())
    assert message.key == "order-7"
    assert message.as_object()["key"] == "order-7"


def test_a_message_without_a_key_gets_one_of_its_own(tmp_path: Path) -> None:
    aside(tmp_path / "node", b"lost", b"lost, too")
    messages = list(messages_aside(tmp_path / "node", Files()))
    assert [it.key for it in messages] == [f"aside-{TIME:x}-{it.id:016x}" for it in messages]
    assert not any("key" in it.as_object() for it in messages)


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    aside(folder, b"one", b"two")
    (path,) = folder.glob("aside-*/topics/t.t/*.log")
    path.write_bytes(path.read_bytes()[:-1])
    assert found_in(folder) == [(b"one", True)]


def test_a_message_as_json() -> None:
    message = AsideMessage("t", 7, 255, TIME, 1000, {"k": b"v", "b": b"\xff"}, b"\x00\xff", is_certain=True)
    assert message.as_object() == {
        "topic": "t",
        "sequence": 7,
        "id": "00000000000000ff",
        "timestamp": TIME,
        "delay_ms": 1000,
        "certain": True,
        "headers": {"k": "v", "b": {"base64": "/w=="}},
        "body": {"base64": "AP8="},
    }
