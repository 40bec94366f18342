"""Messages as rows for SQL, with marks between them.

The rows of each range follow its *mark*: a row that says which range begins. As long as the order of rows within a
partition is kept, the marks show the sink which messages the rows cover, even if SQL has dropped some of the rows, or
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.options import SourceOptions
from pyspark_nsq.source.ranges import Part, parts_of
from pyspark_nsq.source.reading import RangeReader
from pyspark_nsq.source.rows import ALL_COLUMNS, GAP_COLUMN, HEADERS_COLUMN
from pyspark_nsq.tables.ends import Span

MARK: Final = "_range"  # the column of marks; null in rows of messages
SELECTED: Final = "_selected"  # the column with the result of a SELECT, if there is one
SCHEMA: Final = f"{MARK} struct<lane: string, begin: bigint, end: bigint, opens: boolean>"
_VANISHED: Final = "vanished"
TYPE: Final = pa.struct([("lane", pa.string()), ("begin", pa.int64()), ("end", pa.int64()), ("opens", pa.bool_())])


def spans_of(part: Part) -> list[Span]:
    """Return the spans covered by a range; its rows belong to the last one.

    A lane that is gone without a known end covers no messages, because it may come back with its messages: its span is
    empty, and if it comes back, it continues where it ended. The row that reports the loss gets a span in its own lane,
    so that it lands exactly once, too.
    """
    range_ = part.range
    if range_.end is not None:
        return [Span(str(range_.lane), range_.begin, range_.end, part.opens)]
    stays = Span(str(range_.lane), range_.begin, range_.begin, part.opens)
    return [stays, Span(f"{range_.lane}/{_VANISHED}", 0, range_.begin + 1, True)]


def columns_of(source: SourceOptions) -> pa.Schema:
    """Return the columns that the source makes of a message."""
    asked = {HEADERS_COLUMN: source.include_headers, GAP_COLUMN: source.gap_rows}
    return pa.schema([(name, kind) for name, kind in ALL_COLUMNS.items() if asked.get(name, True)])


@dataclass(frozen=True, slots=True)
class Marking:
    """A function for `mapInArrow`: replaces the rows of ranges with marks and messages."""

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
    """Yield the rows before the first mark, with None; and then each mark's span with the rows that follow it."""
    marks = batch.column(MARK)
    rows = batch.drop_columns([MARK])
    places = [] if marks.null_count == len(marks) else pc.indices_nonzero(pc.is_valid(marks)).to_pylist()
    yield None, rows.slice(0, places[0] if places else None)
    for place, following in pairwise([*places, batch.num_rows]):
        yield Span(**marks[place].as_py()), rows.slice(place + 1, following - place - 1)
