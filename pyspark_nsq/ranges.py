"""Ranges of lanes as rows, `format("nsq")` with `ranges=true`: for a sink that reads the messages itself.

Messages then cross no pipe on their way to it, while offsets, checkpoints and batches are as they always are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_nsq.lanes import Lane, Offsets, Range

COLUMNS: Final = pa.schema(
    [
        ("lane", pa.string()),
        ("address", pa.string()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("opens", pa.bool_()),
    ]
)
SCHEMA: Final = "lane string, address string, begin bigint, end bigint, opens boolean"


class Part(NamedTuple):
    """A range, and whether the query has read nothing of its lane before."""

    range: Range
    opens: bool


def silent(start: Offsets, end: Offsets) -> list[Range]:
    """Lanes that begin with this batch and have no message in it: whoever lands them is to know where they begin."""
    if start == end:
        return []
    return [Range(lane, "", place, place) for lane, place in sorted(end.begins.items()) if end.lanes.get(lane) == place]


def as_rows(ranges: Sequence[Range], opening: frozenset[tuple[Lane, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "lane": [str(it.lane) for it in ranges],
            "address": [it.address for it in ranges],
            "begin": [it.begin for it in ranges],
            "end": [it.end for it in ranges],
            "opens": [(it.lane, it.begin) in opening for it in ranges],
        },
        COLUMNS,
    )


def parts_of(rows: pa.RecordBatch) -> Iterator[Part]:
    """What `as_rows` has written."""
    for row in rows.to_pylist():
        yield Part(Range(Lane.parse(row["lane"]), row["address"], row["begin"], row["end"]), row["opens"])
