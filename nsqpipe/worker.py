"""Functions that run in Spark's Python workers. The module is pickled by value, so it imports none of our modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

GAP_COLUMN: Final = "since_previous_us"


def add_gaps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last: tuple[str, str, int] | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        times = batch.column("timestamp").cast(pa.int64())
        before = pa.concat_arrays([pa.nulls(1, pa.int64()), times.slice(0, batch.num_rows - 1)])
        topic, node = batch.column("topic"), batch.column("node")
        lane = (topic[0].as_py(), node[0].as_py())
        if last is not None and last[:2] == lane:
            before = pa.concat_arrays([pa.array([last[2]], pa.int64()), times.slice(0, batch.num_rows - 1)])
        gaps = pc.subtract(times, before)
        if batch.num_rows > 1:
            same = pc.and_(
                pc.equal(topic.slice(1), topic.slice(0, batch.num_rows - 1)),
                pc.equal(node.slice(1), node.slice(0, batch.num_rows - 1)),
            )
            gaps = pc.if_else(pa.concat_arrays([pa.array([True]), same]), gaps, pa.scalar(None, pa.int64()))
        last = (topic[-1].as_py(), node[-1].as_py(), times[-1].as_py())
        yield pa.RecordBatch.from_arrays(
            [topic, batch.column("timestamp"), batch.column("size"), gaps],
            schema=pa.schema(
                [
                    ("topic", pa.string()),
                    ("timestamp", pa.timestamp("us", tz="UTC")),
                    ("size", pa.int32()),
                    (GAP_COLUMN, pa.int64()),
                ]
            ),
        )
