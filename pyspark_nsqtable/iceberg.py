"""An Iceberg table as tasks see it: a folder for Parquet files, and how far the table went when the query was started.

Nothing here needs pyiceberg or a catalog, so executors need neither. What the driver does with the files is in
`iceberg_commits`, which is imported where it is asked for, and that is on the driver alone.

A task cannot ask the catalog how far the table goes, so it is told once for the whole query. That is enough: while the query
runs, only its own commits move the ends, and each batch begins where the one before ended. Should anybody else move them,
what the tasks have written is not what the table lacks, and `iceberg_commits.prepare` refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyarrow.fs import FileSystem

from pyspark_nsqtable.appending import Batch, Share
from pyspark_nsqtable.files import DataFile
from pyspark_nsqtable.places import Access, Place, is_storage_option, parse_place

LOCATION: Final = "iceberg.location"
ENDS: Final = "iceberg.ends"
CATALOG: Final = "catalog"
PROPERTY: Final = "catalog."  # properties of the catalog follow it


@dataclass(frozen=True, slots=True)
class CatalogName:
    """How pyiceberg finds a catalog: by its name in its own configuration, and by properties that stand above that."""

    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # they may have keys

    def as_options(self) -> dict[str, str]:
        return {CATALOG: self.name, **{f"{PROPERTY}{name}": text for name, text in self.properties.items()}}


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """Where landing adds rows. `beside` is the table to which a quarantine belongs."""

    path: str  # `namespace.table`
    catalog: CatalogName
    schema: pa.Schema
    partitioning: tuple[str, ...]
    access: Access = field(default_factory=Access)
    location: str = ""  # of its data files, as the table spells it
    known: Mapping[str, int] = field(default_factory=dict)  # the ends when the query was started
    beside: IcebergTable | None = None

    keeps_columns: ClassVar[bool] = (
        True  # as any reader of Parquet then reads a file alone, and pyiceberg finds a file's partition in it
    )

    @property
    def place(self) -> Place:
        return replace(parse_place(self.location, environ={}), access=self.access)

    def filesystem(self) -> tuple[FileSystem, str]:
        return self.place.filesystem()

    def as_options(self) -> dict[str, str]:
        """Those of the sink; `of_options` is the way back."""
        return {
            "path": self.path,
            LOCATION: self.location,
            ENDS: json.dumps(self.known),
            **self.catalog.as_options(),
            **self.access.as_options(),
        }

    def ends_of(self, lanes: Iterable[str]) -> dict[str, int | None]:
        tables = [self] if self.beside is None else [self, self.beside]
        found = {}
        for lane in lanes:
            ends = [table.known[lane] for table in tables if lane in table.known]
            found[lane] = max(ends, default=None)
        return found

    # In the driver

    def prepare(self, shares: Sequence[Share]) -> None:
        _commits().prepare(self, shares)

    def append(self, shares: Sequence[Share], batch: Batch) -> None:
        _commits().append(self, shares, batch)

    def discard(self, files: Sequence[DataFile], *, was_offered: bool) -> None:
        """Remove files of a batch that has failed.

        Not those that a commit was to name: `append` has removed them where it knows that the catalog refused them, and where
        the catalog's answer was lost they may yet become rows.
        """
        if not was_offered:
            self.remove(files)

    def remove(self, files: Sequence[DataFile]) -> None:
        filesystem, root = self.filesystem()
        for file in files:
            filesystem.delete_file(f"{root}/{file.path}")


def of_options(options: Mapping[str, str], schema: pa.Schema, partitioning: tuple[str, ...]) -> IcebergTable:
    """The table that these options of the sink name."""
    storage = {name: text for name, text in options.items() if is_storage_option(name)}
    properties = {name.removeprefix(PROPERTY): text for name, text in options.items() if name.startswith(PROPERTY)}
    location = options[LOCATION]
    return IcebergTable(
        path=options["path"],
        catalog=CatalogName(options.get(CATALOG, ""), properties),
        schema=schema,
        partitioning=partitioning,
        access=parse_place(location, storage).access,
        location=location,
        known=json.loads(options[ENDS]),
    )


def _commits() -> Any:
    from pyspark_nsqtable import iceberg_commits  # pyiceberg takes a second to import, and executors may not have it

    module: ModuleType = iceberg_commits
    return module
