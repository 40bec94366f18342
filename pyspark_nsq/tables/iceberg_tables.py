"""Iceberg tables for jobs: a table's position, content, options for the sink, and upkeep.

This module imports pyiceberg, so it is only imported for jobs with `--format iceberg`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_nsq.failures import PipeFailed, first_cause
from pyspark_nsq.stores.places import BadPlace
from pyspark_nsq.stores.storage import place_of
from pyspark_nsq.tables import iceberg_commits as commits
from pyspark_nsq.tables.iceberg_catalogs import open_catalog, with_stores
from pyspark_nsq.tables.iceberg_target import CatalogName, IcebergTarget
from pyspark_nsq.tables.shares import NotJoined
from pyspark_nsq.tables.sink import BadTable, nullable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Opened

    from pyspark_nsq.stores.places import Place
    from pyspark_nsq.tables.table_name import TableName


# A commit copies and writes the metadata of all snapshots: with pyiceberg 0.12 that takes 1.4 ms for each snapshot.
_MOST_SNAPSHOTS: Final = 200
_KEPT_SNAPSHOTS: Final = 100


def standing(table: TableName) -> commits.Standing | None:
    """Return the table's position, or None if it doesn't exist.

    Raises PipeFailed if the catalog can't be used, or if the table's ends don't describe its rows.
    """
    with _catalog_errors(table), existing(table) as opened:
        if opened is None:
            return None
        found = commits.standing(opened)
        found.check(table.path)
        return found


def check_rows(table: TableName, rows: pa.Schema, partitioning: tuple[str, ...]) -> None:
    """Raise PipeFailed if the catalog doesn't answer, or the table can't store rows of this schema."""
    with _catalog_errors(table), existing(table) as opened:
        if opened is not None:
            commits.check_fits(opened, _target(table, rows, partitioning))


def ready(table: TableName, rows: pa.Schema, partitioning: tuple[str, ...]) -> dict[str, str]:
    """Create the table if it doesn't exist, and return the options with which the sink finds it."""
    with _catalog_errors(table), _catalog(table) as catalog:
        target = _target(table, rows, partitioning)
        opened = commits.made(catalog, target)
        commits.check_fits(opened, target)
        found = commits.standing(opened)
        found.check(table.path)
        access = place_of_files(table, opened).access
        there = replace(target, location=commits.location_of(opened), id=found.id, numbers=found.numbers, access=access)
        return there.as_options()


def contents(table: TableName) -> tuple[int, frozenset[str]]:
    """Return how many rows the table has, and the paths of its files."""
    with existing(table) as opened:
        if opened is None:
            return 0, frozenset()
        files = opened.inspect.files()
    return sum(files["record_count"].to_pylist()), frozenset(files["file_path"].to_pylist())


def _target(table: TableName, rows: pa.Schema, partitioning: tuple[str, ...]) -> IcebergTarget:
    return IcebergTarget(table.path, _reached(table), nullable(rows), partitioning)


def _reached(table: TableName) -> CatalogName:
    try:
        return with_stores(table.catalog, table.storage)
    except BadPlace as error:
        raise PipeFailed(str(error)) from None


def _catalog(table: TableName) -> Catalog:
    return open_catalog(_reached(table))


@contextmanager
def existing(table: TableName) -> Iterator[Opened | None]:
    """Yield the table, or None if it does not exist. Leaving the block closes the catalog, which the table uses."""
    with _catalog(table) as catalog:
        yield commits.existing(catalog, table.path)


def place_of_files(table: TableName, opened: Opened) -> Place:
    return place_of(commits.location_of(opened), table.storage)


@contextmanager
def _catalog_errors(table: TableName) -> Iterator[None]:
    """Turn any error of pyiceberg and a catalog's client into one line."""
    try:
        yield
    except PipeFailed:
        raise
    except (NotJoined, BadTable) as error:
        raise PipeFailed(str(error)) from None
    except Exception as error:
        raise PipeFailed(f"the catalog of {table.path} cannot be used: {first_cause(error)}") from error


# Upkeep


def expire(opened: Opened, before: float) -> None:
    """Expire snapshots from before this time, in seconds since 1970, and later ones if there are more than 200.

    Snapshots that show whether the table was set back stay. So do the files that list the data of expired snapshots.
    """
    times = sorted(it.timestamp_ms for it in opened.snapshots())
    if len(times) > _MOST_SNAPSHOTS:
        before = max(before, times[-_KEPT_SNAPSHOTS] / 1000)
    kept = {ref.snapshot_id for ref in opened.refs().values()}
    kept |= commits.needed_by_ends(opened)
    expired = [it.snapshot_id for it in opened.snapshots() if it.timestamp_ms < before * 1000]
    if forgotten := [id for id in expired if id not in kept]:
        opened.maintenance.expire_snapshots().by_ids(forgotten).commit()


def names_needed(opened: Opened) -> set[str]:
    """Return the names of the data files of all readable snapshots."""
    opened.refresh()
    return {path.rpartition("/")[2] for path in opened.inspect.all_files()["file_path"].to_pylist()}


def count_files(opened: Opened) -> int:
    snapshot = opened.current_snapshot()
    said = snapshot.summary["total-data-files"] if snapshot is not None and snapshot.summary is not None else None
    return int(said or 0)
