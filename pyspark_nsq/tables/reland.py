"""`nsqpipe reland`: decodes a quarantine's rows again, and moves those that fit into the table. Doesn't need Spark.

It handles one partition at a time. A first commit appends the good rows to the table. A second commit removes them from
the quarantine, and updates the errors of the others. If it is killed between the two, the table has rows that are still
in the quarantine. The next run always looks for the rows' keys in the table, finds them there, and only removes them
from the quarantine. It treats messages the same way that another job has appended, for example `backfill`.

Two runs at once collide in the table's log, because their commits end the same turn. So does a run that would land rows
that another run, or a backfill, has just landed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError

from pyspark_nsq.bodies.decoding import ERROR, EXTRA, MISSING, VALUE, Decoder, with_decoded
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.tables.files import PARTITIONS, DataFile, PartitionedWriter
from pyspark_nsq.tables.lease import check_leases
from pyspark_nsq.tables.schemas import widen
from pyspark_nsq.tables.shares import SELECTS
from pyspark_nsq.tables.sink import BadTable, Target, action_of, check_table, taken_turn, turn_of, unnamed

if TYPE_CHECKING:
    from pyspark_nsq.stores.places import Place
    from pyspark_nsq.tables.unnamed import Unnamed

_KEY: Final = ("node", "sequence", "id")  # within a topic
_BY_RULE: Final = "rule: "  # the error of a row that broke a rule begins with this
_TRIES: Final = 10  # to commit, while others change the same table
_SAID: Final = "said"

Key = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reland:
    table: Place
    quarantine: Place
    decoder: Decoder


@dataclass(slots=True)
class Relanded:
    """What happened to the rows of a quarantine."""

    landed: int = 0
    failing: int = 0
    by_rule: int = 0  # rows that could be decoded but broke a rule; they stay as they are
    missing_fields: int = 0  # fields of the schema missing in the bodies landed by this run
    extra_fields: int = 0  # fields of these bodies that the schema doesn't have

    def add(self, other: Relanded) -> None:
        for it in fields(self):
            setattr(self, it.name, getattr(self, it.name) + getattr(other, it.name))


@dataclass(slots=True)
class _Outcome:
    """The changes in one partition of the quarantine: which rows leave it, and which get another error."""

    counts: Relanded = field(default_factory=Relanded)
    errors: dict[Key, str | None] = field(default_factory=dict)  # the new error; None: the row is in the table


def reland(job: Reland, progress: Callable[[Relanded], None] = lambda _: None) -> Relanded:
    """Decode all rows of the quarantine again. Raises PipeFailed; another run then continues from there."""
    _check(job)
    total = Relanded()
    for values in _existing(job.quarantine).partitions():
        total.add(_while_others_write(partial(_partition, job, values), job))
        progress(total)
    return total


def _check(job: Reland) -> None:
    if job.decoder.value_type is None:
        raise PipeFailed("raw bodies never fail: choose the --decoder that the quarantined rows need")
    if _existing(job.table).transaction_version(SELECTS) is not None:
        raise PipeFailed(
            f"the table {job.table} was filled with --select, and reland cannot run SQL: "
            "`nsqpipe backfill` with the corrected --schema and the same --select adds the missing rows"
        )
    came = [it for it in pa.schema(_existing(job.quarantine).schema().to_arrow()) if it.name != ERROR]
    try:
        check_table(job.table, _row_schema(_existing(job.table), came, job.decoder), PARTITIONS)
    except BadTable as error:
        raise PipeFailed(str(error)) from None


def _existing(place: Place) -> DeltaTable:
    if not DeltaTable.is_deltatable(**place.for_delta()):
        raise PipeFailed(f"there is no Delta table at {place}")
    return DeltaTable(**place.for_delta())


def _row_schema(table: DeltaTable, came: Sequence[pa.Field], decoder: Decoder) -> pa.Schema:
    """Return the columns of rows for the table. They have a body only if the table has that column."""
    has_bodies = any(it.name == "body" for it in table.schema().fields)
    kept = [it for it in came if has_bodies or it.name != "body"]
    return pa.schema([*kept, pa.field(VALUE, decoder.value_type)])


def _while_others_write(attempt: Callable[[], T], job: Reland) -> T:
    """Repeat an attempt, from its preparation on, if its commit collides with another writer's."""
    for left in reversed(range(_TRIES)):
        try:
            return attempt()
        except CommitFailedError as failure:
            if not left:
                raise PipeFailed(
                    f"something else, like another reland, keeps writing to {job.table} or {job.quarantine}: {failure}"
                ) from None
    raise AssertionError


def _partition(job: Reland, values: Mapping[str, object]) -> Relanded:
    quarantine, table = _existing(job.quarantine), _existing(job.table)
    here = _condition(quarantine, values)
    rows = quarantine.to_pyarrow_dataset()
    outcome = _Outcome()
    there = _keys_in(table, values, rows.to_table(columns=["sequence"], filter=here)["sequence"])
    came = [it for it in rows.schema if it.name != ERROR]
    target = Target(str(job.table), PARTITIONS, "", _row_schema(table, came, job.decoder), job.table.access)
    filesystem, root = target.filesystem()
    writer = PartitionedWriter(filesystem, root, PARTITIONS, f"part-{uuid4()}")
    try:
        for batch in rows.to_batches(filter=here):
            good = _judged(batch, job.decoder, there, outcome)
            if good.num_rows:
                writer.write(good.select(target.schema.names))
        files = writer.finish()
    except BaseException:
        writer.discard()
        raise
    if files:
        with unnamed(target, files) as brought:
            _append(table, target, files, outcome.counts, brought)
    _while_others_write(lambda: _settle(_existing(job.quarantine), values, outcome.errors), job)
    return outcome.counts


def _judged(batch: pa.RecordBatch, decoder: Decoder, there: set[Key], outcome: _Outcome) -> pa.RecordBatch:
    """Return the rows to land, decoded. Their keys are added to `there`, so that none is landed twice."""
    before = batch.column(ERROR).to_pylist()
    decoded = decoder.decode(batch.column("body"))
    found = with_decoded(batch.drop_columns([ERROR]), decoded)
    after = found.column(ERROR).to_pylist()
    chosen = []
    for key, was, now in zip(_keys_of(batch), before, after, strict=True):
        is_new = False
        if key in there:
            outcome.counts.landed += key not in outcome.errors
            outcome.errors[key] = None
        elif was is not None and was.startswith(_BY_RULE):
            outcome.counts.by_rule += 1
        elif now is None:
            is_new = True
            there.add(key)
            outcome.counts.landed += 1
            outcome.errors[key] = None
        else:
            outcome.counts.failing += 1
            if now != was:
                outcome.errors[key] = now
        chosen.append(is_new)
    good = found.filter(pa.array(chosen, pa.bool_())).drop_columns([ERROR])
    counts = decoded.counts if all(chosen) else decoder.decode(good.column("body")).counts
    outcome.counts.missing_fields += counts.get(MISSING, 0)
    outcome.counts.extra_fields += counts.get(EXTRA, 0)
    return good


def _keys_in(table: DeltaTable, values: Mapping[str, object], sequences: pa.ChunkedArray) -> set[Key]:
    """Return the keys of the rows with these sequences in this version of the table."""
    wanted = _condition(table, values) & pc.field("sequence").isin(sequences.combine_chunks())
    found = table.to_pyarrow_dataset().to_batches(columns=list(_KEY), filter=wanted)
    return {key for batch in found for key in _keys_of(batch)}


def _keys_of(batch: pa.RecordBatch) -> list[Key]:
    return list(zip(*(batch.column(name).to_pylist() for name in _KEY), strict=True))


def _condition(table: DeltaTable, values: Mapping[str, object]) -> Any:
    """Return a filter for the partition with these values, in the types of its columns."""
    schema = pa.schema(table.schema().to_arrow())
    found = None
    for name, value in values.items():
        column = pc.field(name)
        one = column.is_null() if value is None else column == pa.scalar(value).cast(schema.field(name).type)
        found = one if found is None else found & one
    return found


def _append(table: DeltaTable, target: Target, files: Sequence[DataFile], counts: Relanded, brought: Unnamed) -> None:
    told = {f"nsq.{name}": str(getattr(counts, name)) for name in (MISSING, EXTRA)}
    # If this widens the table, `table` is an older version, so the append fails and is prepared again.
    widen(DeltaTable(**target.place.for_delta()), Schema.from_arrow(target.schema))
    check_leases((file.modified / 1000 for file in files), time.time())
    brought.try_commit(
        lambda: table.create_write_transaction(
            [action_of(file) for file in files],
            mode="append",
            schema=target.schema,
            partition_by=list(PARTITIONS),
            commit_properties=CommitProperties(custom_metadata=told, app_transactions=[taken_turn(turn_of(table))]),
        )
    )


def _settle(quarantine: DeltaTable, values: Mapping[str, object], errors: Mapping[Key, str | None]) -> None:
    """Remove landed rows and update the errors of others, in one commit. Rows that arrived in the meantime stay."""
    if not errors:
        return
    schema = pa.schema(quarantine.schema().to_arrow())
    keys = zip(_KEY, zip(*errors, strict=True), strict=True)
    columns = {name: pa.array(column, schema.field(name).type) for name, column in keys}
    columns |= {name: pa.array([value] * len(errors)).cast(schema.field(name).type) for name, value in values.items()}
    columns[_SAID] = pa.array(errors.values(), pa.string())
    same = " and ".join(f"q.{name} = s.{name}" for name in (*values, *_KEY))
    (
        quarantine.merge(pa.table(columns), same, source_alias="s", target_alias="q")
        .when_matched_delete(f"s.{_SAID} is null")
        .when_matched_update({ERROR: f"s.{_SAID}"}, f"s.{_SAID} is not null")
        .execute()
    )
