"""Ranges of lanes as rows that SQL can see: the rows of each range stand behind its *mark*, a row that says which range follows.

Where nothing changes the order of rows within a partition, whoever gets them knows by the marks which messages they cover, also
if SQL has left some of them out, or all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.options import SourceOptions
from pyspark_nsq.ranges import Part, parts_of
from pyspark_nsq.reading import RangeReader
from pyspark_nsq.rows import COLUMNS, GAP, GAP_COLUMN
from pyspark_nsqtable.ends import Span

MARK: Final = "_range"  # the column; null in a message
SELECTED: Final = "_selected"  # the column with what SQL has made of a message, where it makes something else of it
SCHEMA: Final = f"{MARK} struct<lane: string, begin: bigint, end: bigint, opens: boolean>"
_VANISHED: Final = "vanished"
TYPE: Final = pa.struct([("lane", pa.string()), ("begin", pa.int64()), ("end", pa.int64()), ("opens", pa.bool_())])


def spans_of(part: Part) -> list[Span]:
    """What a range covers; of several spans the last one is that of its rows.

    A lane that is gone, and nobody knows how far it went, covers no message, as it may come back with those that it had. The
    row that says so is one of a lane of its own, so it is there once, too, and the lane itself goes on where it ended.
    """
    range_ = part.range
    if range_.end is not None:
        return [Span(str(range_.lane), range_.begin, range_.end, part.opens)]
    stays = Span(str(range_.lane), range_.begin, range_.begin, part.opens)
    return [stays, Span(f"{range_.lane}/{_VANISHED}", 0, range_.begin + 1, True)]


def columns_of(source: SourceOptions) -> pa.Schema:
    """What the source makes of a message."""
    return pa.schema([*COLUMNS.items(), *([(GAP_COLUMN, GAP)] if source.gap_rows else [])])


@dataclass(frozen=True, slots=True)
class Marking:
    """For `mapInArrow` over ranges."""

    source: SourceOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = columns_of(self.source)
        reader = RangeReader(self.source, columns)
        for batch in batches:
            for part in parts_of(batch):
                for span in spans_of(part):
                    yield _mark(span, columns)
                if part.range.end != part.range.begin:
                    for rows in reader.rows(part.range):
                        yield rows.append_column(MARK, pa.nulls(rows.num_rows, TYPE))


def _mark(span: Span, columns: pa.Schema) -> pa.RecordBatch:
    mark = {"lane": span.lane, "begin": span.begin, "end": span.end, "opens": span.opens}
    empty = [pa.nulls(1, kind) for kind in columns.types]
    return pa.RecordBatch.from_arrays([*empty, pa.array([mark], TYPE)], names=[*columns.names, MARK])


def between_marks(batch: pa.RecordBatch) -> Iterator[tuple[Span | None, pa.RecordBatch]]:
    """What stands before the first mark, and then each mark with what follows it."""
    marks = batch.column(MARK)
    rows = batch.drop_columns([MARK])
    places = [] if marks.null_count == len(marks) else pc.indices_nonzero(pc.is_valid(marks)).to_pylist()
    yield None, rows.slice(0, places[0] if places else None)
    for place, following in pairwise([*places, batch.num_rows]):
        yield Span(**marks[place].as_py()), rows.slice(place + 1, following - place - 1)
