"""Ranges of lanes as rows: the output of `format("nsq")` with `ranges=true`, for a sink that reads the messages itself.

The messages then needn't pass through the pipe between Spark and its Python workers. Offsets, checkpoints and batches
stay the same.
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
    """A range, and whether it opens its lane: the query has read nothing before it."""

    range: Range
    opens: bool


def empty_openings(start: Offsets, end: Offsets) -> list[Range]:
    """Return an empty range for each lane that begins with this batch but has no message in it.

    The landing sink needs them, to know where each lane begins.
    """
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
    """Yield the ranges from the rows of `as_rows`."""
    for row in rows.to_pylist():
        yield Part(Range(Lane.parse(row["lane"]), row["address"], row["begin"], row["end"]), row["opens"])
