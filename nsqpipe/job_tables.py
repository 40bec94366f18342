"""The tables named in a job's options. This module imports Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsqpipe.job_places import options_for
from pyspark_nsq.kinds import Format
from pyspark_nsq.tables.iceberg_target import CatalogName
from pyspark_nsq.tables.table import Table, table_at

if TYPE_CHECKING:
    from nsqpipe.jobs import Land, Stored


def table_for(job: Stored, path: str, format: Format | None = None, checkpoint: str = "") -> Table:
    """Return a table named in a job's options. Without a format, use the table's own."""
    return replace(table_at(path, format, options_for(job, path)), checkpoint_path=checkpoint)


def tables_of(job: Land) -> tuple[Table, Table]:
    """Return a landing's table and quarantine."""
    if job.format is Format.ICEBERG:
        catalog = CatalogName(job.catalog, job.catalog_properties)
        storage = {f"storage.{word}": text for word, text in job.storage}
        table = Table(job.table, job.format, job.checkpoint, storage, catalog)
        return table, replace(table, path=job.quarantine_path)
    table = table_for(job, job.table, job.format, job.checkpoint)
    return table, table_for(job, job.quarantine_path, job.format)
