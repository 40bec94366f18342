"""Iceberg tables for tests: a catalog in a SQLite file, and tables in a folder beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_nsq.tables.iceberg_catalogs import open_catalog
from pyspark_nsq.tables.iceberg_target import CatalogName
from pyspark_nsq.tables.table import Format, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as Opened


def catalog_at(folder: Path) -> CatalogName:
    return CatalogName("", {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"})


def table_at(folder: Path, name: str = "raw.table", checkpoint: str = "") -> Table:
    return Table(name, Format.ICEBERG, checkpoint or str(folder / "checkpoint"), catalog=catalog_at(folder))


def flags(folder: Path, name: str = "raw.table") -> list[str]:
    """Return the flags by which `nsqpipe land` finds the table."""
    properties = dict(catalog_at(folder).properties)
    uri = properties.pop("uri")
    options = [f"--catalog-option={key}={text}" for key, text in properties.items()]
    return ["--format=iceberg", f"--table={name}", f"--catalog-uri={uri}", *options]


def opened(folder: Path, name: str = "raw.table") -> Opened:
    return open_catalog(catalog_at(folder)).load_table(name)


def rows_in(folder: Path, name: str = "raw.table") -> pa.Table:
    """Return the table's rows, read by pyiceberg."""
    return opened(folder, name).scan().to_arrow()


def landed(folder: Path, name: str = "raw.table") -> list[int]:
    """Return the numbers of the bodies in the table, each as often as it is there."""
    return sorted(int(body) for body in rows_in(folder, name)["body"].to_pylist())
