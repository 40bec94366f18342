"""How much groups look at in a turn, counted by replacing what they call. Compiled code can't be replaced like that."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.commands import fin
from nsqcommon.wire.headers import encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.groups import Groups
from nsqd.log.reading.log_reader import LogReader
from tests.nsqd.broker.grouping import ORDER, SHARE, Grouped, NodeOnDisk


def test_a_turn_reads_only_so_many_batches_for_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = NodeOnDisk(tmp_path, monkeypatch, **SHARE)
    node, topic = it.node, it.topic
    record = (2000).to_bytes(4, "big") + b"x" * 2000
    for number in range(300):
        for _ in range(3):
            topic.publish(record * 10, range(0, 20_041, 2004), headers=encode_headers({"nsq-group": f"g{number}"}) * 10)
            node.turn()
    client = node.consumer(ready=1)

    while it.channel.ledger.cursor < topic.log.tail:
        client.say(b"".join(fin(message.id) for message in client.messages()))
        node.pass_time(0.001)
        it.load()
    read_cached, reads = LogReader._read_cached, Mock(return_value=None)
    with patch.object(LogReader, "_read_cached", lambda *arguments: reads() or read_cached(*arguments)):
        client.say(b"RDY 2500\n")
    assert 0 < reads.call_count <= 100


def test_a_delivery_compares_only_what_has_changed() -> None:
    it = Grouped(**ORDER)
    client = it.consumer()
    it.publish("a1 b1 c1")
    it.got(client)
    it.requeue(client, "a1", 60_000)
    it.requeue(client, "b1", 60_000)
    with patch.object(Groups, "_take_deferred") as compared:
        it.groups.follow()
        compared.assert_not_called()
        operator_actions.cancel(it.real, BitMap64(it.of("b1")))
        it.groups.follow()
        assert [*compared.call_args.args] == [BitMap64(), BitMap64(it.of("b1"))]
