"""How much an action on a group reads in a turn, counted by replacing what it calls. Compiled code can't be replaced so."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from nsqcommon.wire.headers import encode_headers
from nsqd.broker.group_actions import GroupAction
from tests.nsqd.broker.grouping import SHARE, NodeOnDisk


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_slice_reads_only_so_much_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_sorted: bool
) -> None:
    """The group has one message in each batch, and the batches are large."""
    it = NodeOnDisk(tmp_path, monkeypatch, **SHARE)
    node, topic, channel = it.node, it.topic, it.channel
    record = (70_000).to_bytes(4, "big") + b"x" * 70_000
    headers = b"".join(encode_headers({"nsq-group": it}) for it in "abb")
    for _ in range(120):
        topic.publish(record * 3, range(0, 210_013, 70_004), headers=headers)
        node.turn()

    if is_sorted:
        node.consumer(ready=1)
        while channel.ledger.cursor < topic.log.tail:
            node.pass_time(0.001)
            it.load()
    action = GroupAction(topic, channel, b"a", "bury", delay_ms=0, who="ana", started_at=7)
    files, sizes = it.store.store.files, list[int]()
    read_cached_at = files.read_cached_at

    def read(descriptor: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return read_cached_at(descriptor, size, offset)

    with patch.object(files, "read_cached_at", read):
        while not action.is_over:
            sizes.clear()
            action.step()
            assert sum(sizes) < 10_000_000
            node.turn()
            it.load()
    action.end()
    assert action.acted == 120 - is_sorted
