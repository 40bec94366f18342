"""A data source for Delta tables. Its sink appends each micro-batch exactly once.

The commit that adds a batch's files also stores the query and the number of the batch. When Spark repeats a batch after
a crash, the table shows that it already has the batch, and the rewritten files are removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_nsq.errors import BadOption
from pyspark_nsq.options import names_for, unknown_in
from pyspark_nsq.stores.places import Place, StoreAccess, is_storage_option, parse_place
from pyspark_nsq.tables.files import DataFile, PartitionedWriter
from pyspark_nsq.tables.lease import check_leases
from pyspark_nsq.tables.reading import UNREADABLE, TableReader, schema_of
from pyspark_nsq.tables.schemas import Misfit, additions, retried, widen
from pyspark_nsq.tables.unnamed import Unnamed, is_made

# The name under which a table counts its turns. A backfill chooses rows that the table lacks, so two backfills at once
# would both add the same rows. Each therefore ends the turn in which it has chosen, and only one of them can.
TURNS: Final = "nsq/turns"


class BadTable(Exception):
    """The table and the new rows differ in a field or in their partitioning, or we can't read the table."""


class Overtaken(Exception):
    """Another backfill or reland has written since these rows were found missing, or a landing has begun."""

    def __init__(self, path: str) -> None:
        super().__init__(f"another job has begun to add rows to {path} meanwhile: run this one again")


@dataclass(frozen=True, slots=True)
class Target:
    path: str
    partitioning: tuple[str, ...]
    write_id: str
    schema: pa.Schema
    access: StoreAccess = field(default_factory=StoreAccess)  # sent to the executors, whose environment may lack it
    turn: int | None = None  # None: the rows don't depend on the table's content

    @property
    def place(self) -> Place:
        return replace(parse_place(self.path, environ={}), access=self.access)

    def filesystem(self) -> tuple[FileSystem, str]:
        return self.place.filesystem()

    def table(self) -> DeltaTable:
        partitioning = list(self.partitioning) or None
        return DeltaTable.create(**self.place.for_delta(), schema=self.schema, mode="ignore", partition_by=partitioning)


@dataclass
class Written(WriterCommitMessage):
    """A task's files. An executor passes them to the driver."""

    query: str
    files: list[DataFile]


class TableSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nsqtable"

    def schema(self) -> StructType:
        return schema_of(self._version())

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(_place(self.options), self._version().version(), schema)

    def _version(self) -> DeltaTable:
        """Return the version to read. Raises if the table uses features for which a list of files isn't enough."""
        table = DeltaTable(**_place(self.options).for_delta(), version=_number(self.options, "version"))
        if features := UNREADABLE.intersection(table.protocol().reader_features or ()):
            raise BadTable(f"the table uses {', '.join(sorted(features))}, which we cannot read")
        return table

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise BadOption('nsqtable only appends: use .mode("append")')
        return TableWriter(target_of(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return TableStreamWriter(target_of(self.options, schema))


class TableStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(messages)
        if written:
            _append_once(self._target, written, written[0].query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if was_not_committed(messages):
            unnamed(self._target, _files(_written(messages))).remove()


class TableWriter(DataSourceArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _append_once(self._target, _written(messages), self._target.write_id, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if was_not_committed(messages):
            unnamed(self._target, _files(_written(messages))).remove()


def _given(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): text.strip() for name, text in options.items()}
    if (name := unknown_in(given, "nsqtable")) is not None:
        raise BadOption(f"nsqtable has no option {name}; there are: {', '.join(names_for('nsqtable'))}")
    if not given.get("path"):
        raise BadOption("nsqtable needs a path, the table's folder")
    return given


def _place(options: Mapping[str, str]) -> Place:
    given = _given(options)
    return parse_place(given["path"], {name: text for name, text in given.items() if is_storage_option(name)})


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = _given(options).get(name, "")
    if text and not (text.isdecimal() and len(text) < 19):
        raise BadOption(f"{name}: expected a number, not {text}")
    return int(text) if text else None


def target_of(options: Mapping[str, str], schema: StructType) -> Target:
    """Read the options of the sink for rows of this schema. Raises BadOption."""
    given = _given(options)
    columns = tuple(word.strip() for word in given.get("partitioning", "").split(",") if word.strip())
    for column in columns:
        if column not in schema.names:
            raise BadOption(f"partitioning: there is no column {column}; there are: {', '.join(schema.names)}")
    place = _place(options)
    rows = nullable(to_arrow_schema(schema, timezone="UTC"))
    return Target(str(place), columns, given.get("writeid", ""), rows, place.access, _number(options, "turn"))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Make all columns nullable: a later query may have null where this one doesn't, and both write to one table."""
    return pa.schema([field.with_nullable(True) for field in schema])


# In the executors


def _write(target: Target, batches: Iterator[pa.RecordBatch]) -> Written:
    task: Any = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") or ""
    filesystem, root = target.filesystem()
    writer = PartitionedWriter(filesystem, root, target.partitioning, f"part-{task.partitionId():05d}")
    try:
        for batch in batches:
            if batch.num_rows:
                writer.write(batch)
        return Written(query, writer.finish())
    except BaseException:
        writer.discard()
        raise


# In the driver


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _files(written: list[Written]) -> list[DataFile]:
    return [file for message in written for file in message.files]


def turn_of(table: DeltaTable) -> int:
    """Return the turn of this version; see `TURNS`."""
    return table.transaction_version(TURNS) or 0


def taken_turn(turn: int) -> Transaction:
    """Return the transaction that ends this turn. Delta lets only one of two commits with it succeed."""
    return Transaction(TURNS, turn + 1)


def was_not_committed(messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Return True if it is certain, in an abort, that no commit was tried.

    Spark aborts after a failed task, but also after a failed commit, which may have succeeded or still be on its way.
    Commit and abort run in separate processes, so only the messages tell the two cases apart: a failed task has no
    message, and Spark commits only if every task has one.
    """
    return None in messages


def unnamed(target: Target, files: Sequence[DataFile]) -> Unnamed:
    return Unnamed(*target.filesystem(), files)


def _append_once(target: Target, written: list[Written], writer: str, version: int) -> None:
    """Add the files, unless the table already has this version of the writer. An empty batch makes no commit."""
    files = _files(written)
    if not files:
        return
    with unnamed(target, files) as brought:
        table = target.table()

        def attempt() -> None:
            check_fits(table, target)
            if _has(table, writer, version):
                return
            if target.turn is not None and turn_of(table) != target.turn:
                raise Overtaken(target.path)
            check_leases((file.modified / 1000 for file in files), time.time())
            # If this widens the table, `table` is an older version, so the append fails and `attempt` is repeated.
            widen(target.table(), Schema.from_arrow(target.schema))
            transactions = [Transaction(writer, version)] if writer else []
            brought.try_commit(lambda: _append(table, target, files, transactions))

        try:
            retried(attempt, again=table.update_incremental)
        except Exception:
            if not is_made(lambda: _names(target.table(), files) or _has(target.table(), writer, version)):
                raise


def _has(table: DeltaTable, writer: str, version: int) -> bool:
    known = table.transaction_version(writer) if writer else None
    return known is not None and known >= version


def _names(table: DeltaTable, files: Sequence[DataFile]) -> bool:
    named = {uri.rpartition("/")[2] for uri in table.file_uris()}
    return named.issuperset(file.path.rpartition("/")[2] for file in files)


def _append(table: DeltaTable, target: Target, files: Sequence[DataFile], transactions: list[Transaction]) -> None:
    turns = [] if target.turn is None else [taken_turn(target.turn)]
    try:
        table.create_write_transaction(
            [action_of(file) for file in files],
            mode="append",
            schema=target.schema,
            partition_by=list(target.partitioning) or None,
            commit_properties=CommitProperties(app_transactions=[*turns, *transactions]),
        )
    except CommitFailedError as failure:
        if turns and "Concurrent transaction" in str(failure):
            raise Overtaken(target.path) from failure
        raise


def check_table(place: Place, schema: pa.Schema, partitioning: tuple[str, ...]) -> None:
    """Raise BadTable if the table exists and rows of this schema don't fit into it."""
    if DeltaTable.is_deltatable(**place.for_delta()):
        check_fits(DeltaTable(**place.for_delta()), Target(str(place), partitioning, "", nullable(schema)))


def check_fits(table: DeltaTable, target: Target) -> None:
    """Raise BadTable if the rows don't fit.

    New fields fit: the first rows that have them add them to the table.
    """
    try:
        additions(table.schema(), Schema.from_arrow(target.schema))
    except Misfit as misfit:
        raise BadTable(f"the rows do not fit into the table at {target.path}: {misfit}; name another table") from None
    columns = table.metadata().partition_columns
    if columns != list(target.partitioning):
        raise BadTable(f"the table at {target.path} is partitioned by {', '.join(columns) or 'nothing'}")


def action_of(file: DataFile, *, adds: bool = True) -> AddAction:
    """Return the action that adds the file in a commit. With `adds` false, its rows were in the table before."""
    return AddAction(file.path, file.size, dict(file.partition), file.modified, adds, file.stats)
