"""An Iceberg table as tasks see it: a folder for Parquet files, and the table's ends when the query started.

Nothing here needs pyiceberg or a catalog, so executors need neither. The driver's part is in `iceberg_commits`, which
only the driver imports, when it is needed.

A task can't ask the catalog for the table's ends, so all tasks of a query use the ends that the driver read at its
start. That is enough: while the query runs, only its own commits move the ends, and each batch begins where the
previous one ended. If another writer moves the ends, the tasks' files aren't what the table lacks, and
`iceberg_commits` refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pyarrow as pa

from pyspark_nsq.stores.places import is_storage_option, parse_place
from pyspark_nsq.tables.iceberg_target import CATALOG, ID, LOCATION, NUMBERS, PROPERTY, CatalogName, IcebergTarget
from pyspark_nsq.tables.shares import Batch, Share
from pyspark_nsq.tables.unnamed import Unnamed


@dataclass(frozen=True, slots=True)
class IcebergDestination(IcebergTarget):
    """A table that landing appends to. Its methods are for the driver."""

    def check_judge(self, shares: Sequence[Share]) -> None:
        _commits().check_judge(self, shares)

    def prepare(self, shares: Sequence[Share]) -> None:
        _commits().prepare(self, shares)

    def append(self, shares: Sequence[Share], batch: Batch, brought: Unnamed) -> None:
        _commits().append(self, shares, batch, brought)


def of_options(options: Mapping[str, str], schema: pa.Schema, partitioning: tuple[str, ...]) -> IcebergDestination:
    """Return the table named in these options of the sink."""
    storage = {name: text for name, text in options.items() if is_storage_option(name)}
    properties = {name.removeprefix(PROPERTY): text for name, text in options.items() if name.startswith(PROPERTY)}
    location = options[LOCATION]
    return IcebergDestination(
        path=options["path"],
        catalog=CatalogName(options.get(CATALOG, ""), properties),
        schema=schema,
        partitioning=partitioning,
        access=parse_place(location, storage).access,
        location=location,
        id=options[ID],
        numbers=json.loads(options[NUMBERS]),
    )


def _commits() -> Any:
    from pyspark_nsq.tables import iceberg_commits  # pyiceberg takes a second to import, and executors may not have it

    module: ModuleType = iceberg_commits
    return module
