"""Joins small files of a Delta table into one, without ever duplicating rows.

We don't use `DeltaTable.optimize`: deltalake 1.6 lets two commits remove the same file if neither of them changes data,
so two compactions at once (for example one by hand and one by a stream) leave each row there twice. Here the commit is
made for exactly one version, which still names all the files that the commit removes. If another commit came first, we
read the table again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from pyspark_nsq.tables.files import DataFile, PartitionedWriter
from pyspark_nsq.tables.lease import check_leases
from pyspark_nsq.tables.reading import rows_of
from pyspark_nsq.tables.sink import action_of
from pyspark_nsq.tables.unnamed import Unnamed
from pyspark_nsq.tables.upkeep import Joining, NamedFile

if TYPE_CHECKING:
    from pyspark_nsq.stores.places import Place

_TRIES: Final = 20  # to commit; another writer's commit may come first each time
_ROW_GROUP: Final = 16 << 20  # bytes of Arrow; many small files would otherwise become as many small row groups


def named_files(table: DeltaTable) -> list[NamedFile]:
    actions = pa.table(table.get_add_actions())
    columns = ("path", "size_bytes", "modification_time", "num_records", "partition")
    rows = actions.select([name for name in columns if name in actions.schema.names]).to_pylist()
    return [
        NamedFile(
            path=unquote(row["path"]),
            partition=tuple((row.get("partition") or {}).items()),
            rows=row["num_records"] or 0,
            size=row["size_bytes"],
            added=row["modification_time"] / 1000,
        )
        for row in rows
    ]


def join(place: Place, joining: Joining) -> bool:
    """Join the files.

    Return True on success; if another writer has rewritten some of them, nothing is changed.
    """
    table = DeltaTable(**place.for_delta())
    filesystem, root = place.filesystem()
    writer = PartitionedWriter(filesystem, root, tuple(table.metadata().partition_columns), "part-00000")
    try:
        for rows in _row_groups(place, joining, pa.schema(table.schema().to_arrow())):
            writer.write(rows)
        made = writer.finish()
    except BaseException:
        writer.discard()
        raise
    with Unnamed(filesystem, root, made) as brought:
        return _replaced(place, joining, made, brought)


def _row_groups(place: Place, joining: Joining, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    filesystem, root = place.filesystem()
    batches: list[pa.RecordBatch] = []
    size = 0
    for file in joining.files:
        for rows in rows_of(filesystem, f"{root}/{file.path}", schema, dict(joining.partition)):
            batches.append(rows)
            size += rows.nbytes
            if size >= _ROW_GROUP:
                yield pa.concat_batches(batches)
                batches, size = [], 0
    if batches:
        yield pa.concat_batches(batches)


def _replaced(place: Place, joining: Joining, made: list[DataFile], brought: Unnamed) -> bool:
    removed, added = {file.path for file in joining.files}, {file.path for file in made}
    for _ in range(_TRIES):
        table = DeltaTable(**place.for_delta())
        named = {file.path for file in named_files(table)}
        if added <= named:  # the previous try was committed, but its answer was lost
            return True
        if not removed <= named:
            return False
        check_leases((file.modified / 1000 for file in made), time.time())
        with suppress(CommitFailedError):
            brought.try_commit(partial(_replace, table, joining, made))
            return True
    return False


def _replace(table: DeltaTable, joining: Joining, made: list[DataFile]) -> None:
    properties = CommitProperties(
        custom_metadata={"nsq.upkeep": f"{len(joining.files)} files joined"}, max_commit_retries=0
    )
    table.create_write_transaction(
        [*(_removal(file, made[0]) for file in joining.files), *(action_of(file, adds=False) for file in made)],
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns or None,
        commit_properties=properties,
    )


def _removal(file: NamedFile, made: DataFile) -> RemoveAction:
    partition: dict[str, Any] = dict(made.partition)  # as text; all these files are in one partition
    return RemoveAction(file.path, False, time.time_ns() // 1_000_000, file.size, partition)
