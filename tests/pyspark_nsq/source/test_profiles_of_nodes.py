"""Batches of real nodes are level."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_nsq.lanes import Lane
from pyspark_nsq.options import source_options
from pyspark_nsq.source import stream_source
from pyspark_nsq.source.rows import COLUMNS
from tests.spark import skew
from tests.support.process import Nsqd
from tests.support.spark import KEPT, address

A, B = (Lane(node, "orders", "log") for node in "ab")


def test_batches_of_real_nodes_are_level_and_all_of_them(tmp_path: Path) -> None:
    found = skew.lanes(150)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Nsqd(skew.written(tmp_path / it.node, known), KEPT)) for it, known in found.items()
        ]
        options = source_options(
            {"nsqd": ",".join(map(address, nodes)), "topic": skew.TOPIC, "maxRowsPerTrigger": "30000"}
        )
        reader = stream_source.NsqStreamReader(options, pa.schema([("timestamp", COLUMNS["timestamp"])]))
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        rows, newest = 0, 0
        while (end := reader.latestOffset(start, ReadMaxRows(30_000))) != start:
            tasks = reader.partitions(start, end)
            times = pa.chunked_array([it["timestamp"] for task in tasks for it in reader.read(task)]).cast(pa.int64())
            assert 1 <= len(times) <= 30_000
            assert pc.min(times).as_py() >= newest
            rows, newest, start = rows + len(times), pc.max(times).as_py(), end
    assert rows == skew.MESSAGES
