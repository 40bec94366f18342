"""Reads the ends of lanes stored in an Iceberg table, and appends batches accordingly. Driver only.

**Where the ends are.** They are properties of the table, set in the same commit that adds the snapshot with the rows.
The summary of the snapshot would be just as atomic, but a compaction makes a snapshot without our words, and once the
older snapshots have expired, the ends would be gone. Properties outlive both.

**Two writers.** A commit to Iceberg names the snapshot that it follows, and the catalog refuses the commit if there is
a newer one. So every commit that moves the ends makes a snapshot, even if it has no rows. On its own, pyiceberg would
repeat a refused commit on top of the newer snapshot, with ends that are no longer right, and rows would be there twice.
So its own retries are off, and we compare a refused batch with the table's new ends before we try again.

**Uncertain commits.** A catalog's answer may be lost; or the refusal may answer a repeat of the request, while the
first request is still on its way. So once we have tried a commit, we remove neither its data files nor its lists of
them, whatever the answer (`unnamed` says why), and we look if the table has the batch.

**Rolling back.** If a user sets the table back to an earlier snapshot, its properties stay, and the ends would count
rows that are gone. So the property `nsq/snapshot` names the snapshot that set the ends, and that has to be an ancestor
of the current snapshot. For example, snapshots 1, 2 and 3 were made, and 3 set the ends. Set back to 2, the table has
the ancestors 2 and 1 without 3, so the ends are refused. Snapshots expire, and then 3 may be missing without a
rollback. Its sequence number (`nsq/snapshot/order`) tells the two apart: if the chain of ancestors reaches snapshots
older than 3 without meeting 3, the table was rolled back; if the chain ends before that, 3 has expired. If the chain
ends before that and 3 is still there, we can't tell, and refuse the ends. Our own upkeep doesn't let it come to that
(`needed_by_ends`).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
from deltalake import Schema
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import parquet_files_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile as Listed
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import CommitTableResponse, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType

from pyspark_nsq.tables.ends import ACCOUNTED, application, judgement, known_ends
from pyspark_nsq.tables.files import DataFile
from pyspark_nsq.tables.iceberg_catalogs import open_catalog
from pyspark_nsq.tables.iceberg_target import IcebergTarget
from pyspark_nsq.tables.lease import check_leases
from pyspark_nsq.tables.schemas import Misfit, additions
from pyspark_nsq.tables.shares import (
    SELECTS,
    Batch,
    NotJoined,
    Share,
    are_there,
    check_ahead,
    files_of,
    lanes_of,
    new_ends,
    rows_without_ends,
)
from pyspark_nsq.tables.sink import BadTable
from pyspark_nsq.tables.unnamed import Unnamed, is_made

SNAPSHOT: Final = "nsq/snapshot"  # property that names the snapshot that set the ends
# The property with that snapshot's sequence number, by which Iceberg orders all snapshots of a table.
_ORDER: Final = "nsq/snapshot/order"
_TRIES: Final = 20  # to commit; another writer's commit may come first each time
_PAUSE: Final = 0.1  # seconds before a second try; more before each further one
_LONGEST_PAUSE: Final = 2.0
_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "2",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",  # or each commit leaves one more file for all readers to read
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",  # each commit rewrites all metadata
    f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.body": "none",  # our files have no statistics of bodies
}


@dataclass(frozen=True, slots=True)
class Standing:
    """The table's messages, by its metadata."""

    id: str
    numbers: Mapping[str, int]  # see `ends`
    has_rows: bool
    fault: str  # why the ends may count rows that are gone; empty if they don't

    @property
    def is_accounted(self) -> bool:
        """True if the ends of its lanes account for all its rows."""
        return ACCOUNTED in self.numbers

    @property
    def is_selected(self) -> bool:
        """True if its rows are the result of a SELECT."""
        return SELECTS in self.numbers

    def end_of(self, lane: str) -> int | None:
        return self.numbers.get(application(lane))

    def check(self, path: str) -> None:
        """Raise NotJoined if the ends don't describe the rows: rolled back, or filled by other tools."""
        if self.fault:
            raise NotJoined(f"the table {path} {self.fault}")
        if self.has_rows and not self.is_accounted:
            raise NotJoined(rows_without_ends(f"the table {path}"))


# Tables


def existing(catalog: Catalog, path: str) -> Table | None:
    """Return the table, or None if it does not exist."""
    try:
        return catalog.load_table(path)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def made(catalog: Catalog, target: IcebergTarget) -> Table:
    """Return the table; create it if it doesn't exist."""
    table = existing(catalog, target.path)
    if table is not None:
        return table
    _make_namespace(catalog, target.path)
    schema = _with_iceberg_types(target.schema)
    try:
        with (
            catalog.create_table_transaction(target.path, schema, properties=dict(_PROPERTIES)) as transaction,
            transaction.update_spec() as update,
        ):
            for column in target.partitioning:
                update.add_identity(column)
    except (TableAlreadyExistsError, CommitFailedException):
        pass  # another job was faster
    return catalog.load_table(target.path)


def _make_namespace(catalog: Catalog, path: str) -> None:
    namespace = catalog.namespace_from(path)
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:  # if another job was faster; databases report that in different words
        if not catalog.namespace_exists(namespace):
            raise


def location_of(table: Table) -> str:
    """Return the location of the table's data files."""
    said = table.properties.get(TableProperties.WRITE_DATA_PATH)
    return (said or f"{table.location()}/data").rstrip("/")


def standing(table: Table) -> Standing:
    prefix = application("")
    numbers = {name: int(text) for name, text in table.properties.items() if name.startswith(prefix)}
    fault = _fault(table, numbers.get(SNAPSHOT), numbers.get(_ORDER))
    return Standing(str(table.metadata.table_uuid), numbers, _has_rows(table), fault)


def _has_rows(table: Table) -> bool:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return False
    return snapshot.summary is None or snapshot.summary["total-records"] != "0"


def _fault(table: Table, named: int | None, order: int | None) -> str:
    """Return why the table may have lost rows of the snapshot that set the ends; empty if it hasn't."""
    if named is None:
        return ""
    ancestors = list(ancestors_of(table.current_snapshot(), table.metadata))
    if any(it.snapshot_id == named for it in ancestors):
        return ""
    there = table.snapshot_by_id(named)
    if there is not None:
        order = _order(there)
    if order is None:
        return ""  # it has expired, and the ends were set by a version that didn't store its order
    if not ancestors or _order(ancestors[-1]) <= order:
        return (
            "was set back to a snapshot that is older than its ends: rows that it says it has are gone; "
            "name another table" + (", or set it forward again" if there else "")
        )
    if there is None:
        return ""  # it has expired, like all others before the oldest remaining ancestor
    return (
        f"has lost the snapshots that lead from {named}, which set its ends, to the current one, so there is no way to "
        f"tell whether it was rolled back. If it was not, expire {named} too; otherwise name another table"
    )


def _order(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def needed_by_ends(table: Table) -> set[int]:
    """Return the snapshots that must not expire, because they show whether the table was set back."""
    named = standing(table).numbers.get(SNAPSHOT)
    if named is None or table.snapshot_by_id(named) is None:
        return set()
    way = [it.snapshot_id for it in ancestors_of(table.current_snapshot(), table.metadata)]
    if named in way:
        return set(way[: way.index(named) + 1])
    return {it.snapshot_id for it in table.snapshots()}  # it was set back: keep everything until a person has looked


def check_fits(table: Table, target: IcebergTarget) -> None:
    """Raise BadTable if the rows don't fit.

    New fields fit: the first rows that have them add them to the table.
    """
    try:
        _lacks_fields(table, target.schema)
    except Misfit as misfit:
        raise BadTable(f"the rows do not fit into the table {target.path}: {misfit}; name another table") from None
    names = {field.field_id: field.name for field in table.schema().fields}
    is_identity = all(isinstance(field.transform, IdentityTransform) for field in table.spec().fields)
    columns = [names.get(field.source_id) for field in table.spec().fields]
    if not is_identity or columns != list(target.partitioning):
        found = ", ".join(
            f"{field.transform}({name})" for field, name in zip(table.spec().fields, columns, strict=True)
        )
        raise BadTable(
            f"the table {target.path} is partitioned by {found or 'nothing'}, and should be by "
            f"{', '.join(target.partitioning)} themselves"
        )


def _lacks_fields(table: Table, rows: pa.Schema) -> bool:
    """Return True if the table lacks fields of these rows. Raise Misfit if a type differs."""
    there = Schema.from_arrow(schema_to_pyarrow(table.schema(), include_field_ids=False))
    return bool(additions(there, Schema.from_arrow(_with_iceberg_types(rows))))


def _with_iceberg_types(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column.with_type(_iceberg_type(column.type)) for column in schema])


def _iceberg_type(kind: pa.DataType) -> pa.DataType:
    """Widen 8-bit and 16-bit integers to 32 bits, Iceberg's smallest integer."""
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([inner.with_type(_iceberg_type(inner.type)) for inner in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_iceberg_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_iceberg_type(kind.key_type), kind.item_field.with_type(_iceberg_type(kind.item_type)))
    return kind


# Commits


@dataclass(frozen=True, slots=True)
class Commit:
    """An append that the table's ends allow."""

    target: IcebergTarget
    table: Table
    files: Sequence[DataFile]
    ends: Mapping[str, int]  # new ends of the lanes whose ends change
    of: str = ""  # for a quarantine: the id of its table

    def make(self, batch: Batch, brought: Unnamed) -> bool:
        """Make the commit. Return False if another commit came first. Raise LeaseExpired."""
        if not self.ends:
            return True  # the table has all of it
        check_leases((file.modified / 1000 for file in self.files), time.time())
        table = self.table
        # This changes the object in memory only; the catalog doesn't get it.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        transaction = table.transaction()
        if _lacks_fields(table, self.target.schema):
            with transaction.update_schema() as update:
                update.union_by_name(_with_iceberg_types(self.target.schema))
        if table.name_mapping() is None:  # our files have names of columns, but not Iceberg's ids
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        told = {"nsq.query": batch.query, "nsq.batch": str(batch.number), **batch.told}
        with transaction.update_snapshot(snapshot_properties=told).merge_append() as snapshot:
            written = {f"{self.target.location}/{file.path}": file for file in self.files}
            for file in parquet_files_to_data_files(table.io, transaction.table_metadata, iter(written)):
                _set_partition(file, written[file.file_path], transaction.table_metadata)
                _leave_out_ranges(file, written[file.file_path], transaction.table_metadata.schema())
                snapshot.append_data_file(file)
        made = cast(Snapshot, transaction.table_metadata.snapshot_by_id(snapshot.snapshot_id))
        transaction.set_properties(self._properties(batch, made))
        table.catalog = cast(Catalog, _Doubted(table.catalog))
        try:
            brought.try_commit(transaction.commit_transaction)
        except CommitRefused:
            return False
        return True

    def _properties(self, batch: Batch, made: Snapshot) -> dict[str, str]:
        numbers = {application(lane, self.of): end for lane, end in self.ends.items()}
        if self.of:
            numbers |= {judgement(lane, self.of): self.target.judge for lane in self.ends}
        numbers |= {**dict.fromkeys((ACCOUNTED, *batch.marks), 1), SNAPSHOT: made.snapshot_id}
        if order := _order(made):  # tables of Iceberg's first format have none
            numbers[_ORDER] = order
        return {name: str(number) for name, number in numbers.items()}


def _set_partition(file: Listed, written: DataFile, table: TableMetadata) -> None:
    """Set the partition values by which the writer has split the rows.

    pyiceberg infers them from column metrics, and stores null if a table property turns those off. Filters would then
    silently skip the file.
    """
    values = dict(written.partition)
    for place, partition in enumerate(table.spec().fields):
        column = table.schema().find_field(partition.source_id)
        text = values[column.name]
        file.partition[place] = None if text is None else literal(text).to(column.field_type).value


def _leave_out_ranges(file: Listed, written: DataFile, schema: IcebergSchema) -> None:
    """Drop the range of float columns with NaN: by a range [1, 1], deleting `x = 1` would drop the whole file."""
    ranged = json.loads(written.stats)["minValues"]
    for field in schema.fields:
        if isinstance(field.field_type, (FloatType, DoubleType)) and field.name not in ranged:
            for bounds in (file.lower_bounds, file.upper_bounds):
                bounds.pop(field.field_id, None)


class CommitRefused(Exception):
    """The catalog refused the commit, because another writer has committed."""


class _Doubted:
    """A catalog that hides refusals from pyiceberg, which would delete the commit's lists of files as unused.

    They may be in use: the refusal may answer a repeat of a request that the catalog has accepted.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as refusal:
            raise CommitRefused(str(refusal)) from refusal


def append(target: IcebergTarget, shares: Sequence[Share], batch: Batch, brought: Unnamed) -> None:
    """Append the tasks' files, unless another writer has moved the ends.

    Raises the same errors as `judged`. An error is ignored if the table has the batch.
    """
    with open_catalog(target.catalog) as catalog:
        try:
            _append(catalog, target, shares, batch, brought)
        except Exception:
            if not is_made(lambda: _has(catalog, target, shares, batch)):
                raise


def _append(catalog: Catalog, target: IcebergTarget, shares: Sequence[Share], batch: Batch, brought: Unnamed) -> None:
    pause = _PAUSE
    for _ in range(_TRIES):
        if judged(catalog, target, shares).make(batch, brought):
            return
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise NotJoined(f"other writers have committed to the table {target.path} each time that we tried")


def _has(catalog: Catalog, target: IcebergTarget, shares: Sequence[Share], batch: Batch) -> bool:
    _check_judge(catalog, target, shares)
    table = catalog.load_table(target.path)
    there = standing(table)
    there.check(target.path)
    ends = _ends(lanes_of(shares), there, _beside(catalog, target))
    return _names(table, batch) and are_there(shares, ends)


def _names(table: Table, batch: Batch) -> bool:
    """Return True if a snapshot is of this batch."""
    told = (it.summary for it in table.snapshots() if it.summary is not None)
    return any((it["nsq.query"], it["nsq.batch"]) == (batch.query, str(batch.number)) for it in told)


def prepare(target: IcebergTarget, shares: Sequence[Share]) -> None:
    """Raise the same errors as `judged`, without adding anything."""
    with open_catalog(target.catalog) as catalog:
        judged(catalog, target, shares)


def check_judge(quarantine: IcebergTarget, shares: Sequence[Share]) -> None:
    """Raise NotJoined if a quarantine is ahead of its table and was filled with another decoder or other rules."""
    if quarantine.beside is not None:
        with open_catalog(quarantine.catalog) as catalog:
            _check_judge(catalog, quarantine, shares)


def _check_judge(catalog: Catalog, quarantine: IcebergTarget, shares: Sequence[Share]) -> None:
    if quarantine.beside is None:
        return
    table, bad = existing(catalog, quarantine.beside.path), existing(catalog, quarantine.path)
    if table is not None and bad is not None:
        there = standing(table)
        check_ahead(
            (there.numbers.get, standing(bad).numbers.get),
            shares,
            of=there.id,
            judge=quarantine.judge,
            names=(f"the table {quarantine.beside.path}", f"the quarantine {quarantine.path}"),
        )


def judged(catalog: Catalog, target: IcebergTarget, shares: Sequence[Share]) -> Commit:
    """Return the commit that would add the tasks' files.

    Raises NotJoined if rows would be missing, BadTable if they don't fit, and AnotherJob if the tasks haven't written
    exactly the part that the table lacks now.
    """
    table = existing(catalog, target.path)
    if table is None:  # it was created before the query started
        raise NotJoined(f"the table {target.path} was removed")
    check_fits(table, target)
    there, beside = standing(table), _beside(catalog, target)
    there.check(target.path)
    after = new_ends(shares, _ends(lanes_of(shares), there, beside), f"the table {target.path}")
    return Commit(target, table, files_of(shares), after, "" if beside is None else beside.id)


def _beside(catalog: Catalog, target: IcebergTarget) -> Standing | None:
    """Return the table of a quarantine; None if the target isn't a quarantine."""
    if target.beside is None:
        return None
    table = existing(catalog, target.beside.path)
    if table is None:
        raise NotJoined(f"the table {target.beside.path} was removed")
    return standing(table)


def _ends(lanes: Iterable[str], table: Standing, beside: Standing | None) -> dict[str, int | None]:
    if beside is None:
        return known_ends(lanes, table.numbers.get)
    return known_ends(lanes, table.numbers.get, of=beside.id, beside=beside.numbers.get)
