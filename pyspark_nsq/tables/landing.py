"""Lands ranges of lanes in a table and its quarantine. The same Python task reads, decodes and writes the messages.

The rows from Spark only say which ranges to read (`format("nsq")` with `ranges=true`), so messages don't pass through
Spark. If SQL has to see the messages, they come as rows between marks (`marks`). In both cases the sink knows which
messages a batch covers, and appends them in the same commit as the ends of their lanes; `ends` has the rules.

The quarantine is a table with its own ends. A batch is written to it first, and only if the batch has rows for it. So
it always goes at least as far as the table, whatever its own ends say. After a crash between the two commits the
quarantine is ahead: the next run repeats the batch, and adds it to the table only.

Tables may share a quarantine, so the names of its ends contain the id of their table. With each end it keeps a
fingerprint of the decoder and the rules: with others, other rows would fail, so the query may not continue where the
quarantine is ahead of the table.
"""

from __future__ import annotations

import base64
import hashlib
import pickle  # nosec B403
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_nsq.bodies.decoding import COUNTS, ERROR, VALUE, Decoder, with_decoded
from pyspark_nsq.errors import BadOption
from pyspark_nsq.lanes import Range
from pyspark_nsq.options import SourceOptions, source_options
from pyspark_nsq.source.ranges import COLUMNS as RANGES
from pyspark_nsq.source.ranges import Part, parts_of
from pyspark_nsq.source.reading import RangeReader
from pyspark_nsq.stores.places import is_storage_option
from pyspark_nsq.tables import iceberg_destination
from pyspark_nsq.tables.appending import Beside, DeltaDestination
from pyspark_nsq.tables.ends import Span, first_lacking
from pyspark_nsq.tables.files import PARTITIONS, PartitionedWriter
from pyspark_nsq.tables.iceberg_target import LOCATION
from pyspark_nsq.tables.marks import MARK, SELECTED, between_marks, columns_of, spans_of
from pyspark_nsq.tables.shares import SELECTS, Batch, Share
from pyspark_nsq.tables.sink import TableSource, Target, nullable, target_of, was_not_committed
from pyspark_nsq.tables.unnamed import Unnamed

BODY: Final = "body"
SOURCE: Final = "source."  # prefix of options of the source
QUARANTINE: Final = "quarantine."  # prefix of options of the quarantine's store
# A job's options for its own sink have these two prefixes and those of `iceberg_target`. `pyspark_nsq.options` only has
# options for users, so that the list in an error and the reference don't offer these.
_OWN: Final = ("quarantine", "decoder", "dropbody", "judge")
_HOUR: Final = 3_600_000_000  # microseconds


class Destination(Protocol):
    """A table that landing appends to, in any format."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def partitioning(self) -> tuple[str, ...]: ...

    @property
    def keeps_columns(self) -> bool:
        """True if the files themselves have the partition columns."""

    def filesystem(self) -> tuple[FileSystem, str]:
        """Return where to write files."""

    def ends_of(self, lanes: Iterable[str]) -> dict[str, int | None]:
        """Return the table's ends, as a task knows them. A quarantine goes at least as far as its table."""

    def check_judge(self, shares: Sequence[Share]) -> None:
        """Raise NotJoined if this is a quarantine ahead of its table that another decoder or other rules filled."""

    def prepare(self, shares: Sequence[Share]) -> None:
        """Check the tasks' files, without adding them. Raises NotJoined or AnotherJob."""

    def append(self, shares: Sequence[Share], batch: Batch, brought: Unnamed) -> None:
        """Add the tasks' files, and the new ends of their lanes, in one commit."""


@dataclass(frozen=True, slots=True)
class Landing:
    table: Destination
    quarantine: Destination | None
    source: SourceOptions | None = None  # where to read messages; None: the rows from Spark have them
    decoder: Decoder | None = None
    selects: bool = False  # the rows are the result of a SELECT


@dataclass
class Landed(WriterCommitMessage):
    """A task's files, for the driver."""

    query: str
    table: Share
    quarantine: Share | None
    counts: Mapping[str, int]  # of fields in which records and the schema differed


class DefaultSource(TableSource):
    """The data source with the name `nsqtable` in Spark. Rows of ranges or marks go to the landing sink."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if MARK in schema.names or schema.names == RANGES.names:
            return LandingWriter(landing_of(self.options, schema))
        return super().streamWriter(schema, overwrite)


def packed(decoder: Decoder) -> str:
    """Return a decoder as the text of an option."""
    return base64.b64encode(pickle.dumps(decoder)).decode()


def landing_of(options: Mapping[str, str], schema: StructType) -> Landing:
    """Read from a sink's options what to land, and where, for rows of this schema. Raises BadOption."""
    given = {name.lower(): text for name, text in options.items()}
    drops_body = given.get("dropbody", "false").lower() == "true"
    source, decoder = None, None
    if MARK in schema.names:
        rows = to_arrow_schema(schema, timezone="UTC")
        table, quarantine = seen_by_sql(rows, drops_body=drops_body)
        fails = ERROR in rows.names
    else:
        source = source_options(
            {name.removeprefix(SOURCE): text for name, text in given.items() if name.startswith(SOURCE)}
        )
        # Unpickling runs code, but the person who sets a job's options chooses its code anyway.
        decoder = pickle.loads(base64.b64decode(given["decoder"])) if given.get("decoder") else None  # nosec B301
        table, quarantine = schemas(source, decoder, drops_body=drops_body)
        fails = decoder is not None
    if fails and not given.get("quarantine"):
        raise BadOption(
            "rows may fail to be decoded or break a rule, so the option quarantine, a table's folder, is needed"
        )
    of_table, of_quarantine = _apart(given)
    judge = _fingerprint(given.get("judge", "") if decoder is None else repr(decoder.identity))
    into = _into_iceberg if LOCATION in given else _into_delta
    destinations = into((of_table, table), (of_quarantine, quarantine) if fails else None, judge)
    return Landing(*destinations, source, decoder, SELECTED in schema.names)


_Asked = tuple[Mapping[str, str], pa.Schema]  # options of a table, and the schema of its rows


def _into_delta(good: _Asked, bad: _Asked | None, judge: int) -> tuple[Destination, Destination | None]:
    table = _target(*good)
    quarantine = None if bad is None else DeltaDestination(_target(*bad), Beside(table, judge))
    return DeltaDestination(table), quarantine


def _into_iceberg(good: _Asked, bad: _Asked | None, judge: int) -> tuple[Destination, Destination | None]:
    table = _iceberg_table(*good)
    return table, None if bad is None else replace(_iceberg_table(*bad), beside=table, judge=judge)


def _apart(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the table's options and the quarantine's options, which have a different path and store."""
    rest = {
        name: text for name, text in given.items() if name not in _OWN and not name.startswith((SOURCE, QUARANTINE))
    }
    beside = {name: text for name, text in rest.items() if not is_storage_option(name)}
    beside |= {name.removeprefix(QUARANTINE): text for name, text in given.items() if name.startswith(QUARANTINE)}
    return rest, {**beside, "path": given.get("quarantine", "")}


def _fingerprint(text: str) -> int:
    """Return 56 bits of a hash: Delta keeps the fingerprint as a transaction's version, which has 63 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def _target(options: Mapping[str, str], schema: pa.Schema) -> Target:
    return replace(target_of(options, StructType()), schema=nullable(schema), partitioning=PARTITIONS)


def _iceberg_table(options: Mapping[str, str], schema: pa.Schema) -> iceberg_destination.IcebergDestination:
    return iceberg_destination.of_options(options, nullable(schema), PARTITIONS)


def schemas(source: SourceOptions, decoder: Decoder | None, *, drops_body: bool) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns of the table and of the quarantine."""
    came = columns_of(source)
    when = [pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
    value = [] if decoder is None or decoder.value_type is None else [pa.field(VALUE, decoder.value_type)]
    kept = [column for column in came if not (drops_body and column.name == "body")]
    return pa.schema([*kept, *value, *when]), pa.schema([*came, pa.field(ERROR, pa.string()), *when])


def seen_by_sql(rows: pa.Schema, *, drops_body: bool) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns of the table and of the quarantine for rows that come between marks."""
    selects = SELECTED in rows.names
    not_good = {MARK, COUNTS, ERROR, SELECTED, *([BODY] if drops_body or selects else [])}
    made = list(rows.field(SELECTED).type) if selects else []
    return (
        pa.schema([*(column for column in rows if column.name not in not_good), *made]),
        pa.schema([column for column in rows if column.name not in (MARK, COUNTS, VALUE, SELECTED)]),
    )


def _unfolded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return good rows in the table's form: with the fields of `_selected` as columns.

    One of these fields may have the name of a column that it replaces, like `body`.
    """
    if SELECTED not in rows.schema.names:
        return rows
    made = rows.column(SELECTED)
    kept = rows.drop_columns([BODY, SELECTED])
    columns = [*kept.columns, *made.flatten()]
    return pa.RecordBatch.from_arrays(columns, names=[*kept.schema.names, *(it.name for it in made.type)])


class LandingWriter(DataSourceStreamArrowWriter):
    def __init__(self, landing: Landing) -> None:
        self._landing = landing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Landed:
        task: Any = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId") or ""
        batch = task.getLocalProperty("streaming.sql.batchId") or ""
        return land(self._landing, iterator, query=query, name=f"{query}-{batch}-{task.partitionId():05d}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        landed = [message for message in messages if isinstance(message, Landed)]
        if not any(message.table.spans for message in landed):
            return
        good = [message.table for message in landed]
        bad = [message.quarantine for message in landed if message.quarantine is not None]
        rows, quarantined = (sum(share.rows for share in shares) for shares in (good, bad))
        counts = {"rows": rows, "quarantined": quarantined, **_summed(message.counts for message in landed)}
        batch = Batch(landed[0].query, batchId, {f"nsq.{name}": str(count) for name, count in counts.items()})
        table, quarantine = self._landing.table, self._landing.quarantine
        with self._brought(landed) as (brought, also_brought):
            if quarantine is not None:
                quarantine.check_judge(good)
                if quarantined:
                    table.prepare(good)  # if the table refuses the batch, the quarantine must not have it
                    quarantine.append(bad, batch, also_brought)
            table.append(good, replace(batch, marks=(SELECTS,) if self._landing.selects else ()), brought)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if was_not_committed(messages):
            with self._brought([message for message in messages if isinstance(message, Landed)]):
                pass

    @contextmanager
    def _brought(self, landed: Sequence[Landed]) -> Iterator[tuple[Unnamed, Unnamed]]:
        """Yield the tasks' files for the table and for the quarantine.

        Leaving the block removes files that no commit has tried to add.
        """
        table, quarantine = self._landing.table, self._landing.quarantine or self._landing.table
        good = [file for message in landed for file in message.table.files]
        bad = [file for message in landed if message.quarantine is not None for file in message.quarantine.files]
        with Unnamed(*table.filesystem(), good) as first, Unnamed(*quarantine.filesystem(), bad) as second:
            yield first, second


def _summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return total


# In the executors


def land(landing: Landing, batches: Iterator[pa.RecordBatch], *, query: str, name: str) -> Landed:
    """Write the rows or ranges of one task into files.

    Files are named after query, batch and task, so that you can tell the origin of a file that no table names.
    """
    task = _Task(landing, f"part-{name}")
    try:
        if landing.source is None:
            task.take_rows(batches)
        else:
            task.take_ranges([part for rows in batches for part in parts_of(rows)], landing.source)
        return task.finish(query)
    except BaseException:
        task.discard()
        raise


class _Task:
    def __init__(self, landing: Landing, prefix: str) -> None:
        self._decoder = landing.decoder
        self._counts: Counter[str] = Counter()
        self._good = _Adding(landing.table, prefix)
        self._bad = None if landing.quarantine is None else _Adding(landing.quarantine, prefix)
        self._all = [self._good] if self._bad is None else [self._good, self._bad]

    def finish(self, query: str) -> Landed:
        bad = None if self._bad is None else self._bad.finish()
        return Landed(query, self._good.finish(), bad, self._counts)

    def discard(self) -> None:
        for adding in self._all:
            adding.discard()

    def take_ranges(self, parts: Sequence[Part], source: SourceOptions) -> None:
        reader = RangeReader(source, columns_of(source))
        self._good.look(str(part.range.lane) for part in parts)
        for part in parts:
            begin = [self._begin(span) for span in spans_of(part)][-1]
            rest = _lacking(part, begin)
            if rest is not None:
                for rows in reader.rows(rest):
                    self._add(_dated(self._decoded(rows)))

    def take_rows(self, batches: Iterator[pa.RecordBatch]) -> None:
        is_begun = False
        for batch in batches:
            if COUNTS in batch.schema.names:
                self._counts.update(_summed(batch.column(COUNTS).drop_null().to_pylist()))
            for span, rows in between_marks(batch):
                if span is not None:
                    self._begin(span)
                    is_begun = True
                if rows.num_rows:
                    if not is_begun:
                        raise RuntimeError(
                            "rows came before the mark of their range: something has changed the order of rows"
                        )
                    self._add(rows)

    def _begin(self, span: Span) -> int:
        """Begin a span in all tables.

        Return the first sequence that the table lacks; the quarantine never lacks more.
        """
        for adding in self._all:
            adding.begin(span)
        return self._good.lacking()

    def _decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._decoder is None:
            return rows
        decoded = self._decoder.decode(rows.column("body"))
        self._counts.update(decoded.counts)
        return with_decoded(rows, decoded)

    def _add(self, rows: pa.RecordBatch) -> None:
        errors = None if self._bad is None else rows.column(ERROR)
        if self._bad is None or errors is None or errors.null_count == rows.num_rows:
            self._good.add(_unfolded(rows))
            return
        is_good = pc.is_null(errors)
        self._good.add(_unfolded(rows.filter(is_good)))
        self._bad.add(rows.filter(pc.invert(is_good)))


def _lacking(part: Part, begin: int) -> Range | None:
    """Return the unread part of a range, or None."""
    range_ = part.range
    if range_.end is None:
        return range_ if begin <= range_.begin else None
    return replace(range_, begin=begin) if begin < range_.end else None


class _Adding:
    """Collects a task's rows for one table."""

    def __init__(self, to: Destination, prefix: str) -> None:
        self._to = to
        self._share = Share()
        filesystem, root = to.filesystem()
        self._writer = PartitionedWriter(filesystem, root, to.partitioning, prefix, keeps_columns=to.keeps_columns)
        self._from: int | None = None

    def look(self, lanes: Iterable[str]) -> None:
        new = set(lanes) - self._share.ends.keys()
        if new:
            self._share.ends.update(self._to.ends_of(new))

    def begin(self, span: Span) -> None:
        self._share.spans.append(span)
        self._from = None

    def lacking(self) -> int:
        """Return the first sequence of the current span that the table lacks."""
        if self._from is None:
            span = self._share.spans[-1]
            self.look([span.lane])
            self._from = first_lacking(span, self._share.ends[span.lane])
        return self._from

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        sequences, begin = rows.column("sequence"), self.lacking()
        if sequences[0].as_py() < begin:
            rows = rows.filter(pc.greater_equal(sequences, begin))
        if rows.num_rows:
            self._share.rows += rows.num_rows
            self._writer.write(rows.select(self._to.schema.names))

    def finish(self) -> Share:
        self._share.files = self._writer.finish()
        return self._share

    def discard(self) -> None:
        self._writer.discard()


def _dated(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add the columns date and hour, in UTC. In nearly all batches they are the same for all rows."""
    times, count = rows.column("timestamp"), rows.num_rows
    found = pc.min_max(times.cast(pa.int64())).as_py()
    if not times.null_count and found["min"] // _HOUR == found["max"] // _HOUR:
        when = times[0].as_py()
        day: pa.Array = pa.repeat(pa.scalar(when.date(), pa.date32()), count)
        hour: pa.Array = pa.repeat(pa.scalar(when.hour, pa.int32()), count)
    else:
        day, hour = times.cast(pa.date32()), pc.hour(times).cast(pa.int32())
    return rows.append_column("date", day).append_column("hour", hour)
