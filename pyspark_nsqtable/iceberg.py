"""An Iceberg table as tasks see it: a folder for Parquet files, and how far the table went when the query was started.

Nothing here needs pyiceberg or a catalog, so executors need neither. What the driver does with the files is in
`iceberg_commits`, which is imported where it is asked for, and that is on the driver alone.

A task cannot ask the catalog how far the table goes, so it is told once for the whole query. That is enough: while the query
runs, only its own commits move the ends, and each batch begins where the one before ended. Should anybody else move them,
what the tasks have written is not what the table lacks, and `iceberg_commits` refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyarrow.fs import FileSystem

from pyspark_nsqtable.ends import known_ends
from pyspark_nsqtable.places import Access, Place, is_storage_option, parse_place
from pyspark_nsqtable.shares import Batch, Share
from pyspark_nsqtable.unnamed import Unnamed

LOCATION: Final = "iceberg.location"
ID: Final = "iceberg.id"
NUMBERS: Final = "iceberg.numbers"
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
    """Where landing adds rows.

    `beside` is the table to which a quarantine belongs, `judge` the fingerprint of the decoder and rules.
    """

    path: str  # `namespace.table`
    catalog: CatalogName
    schema: pa.Schema
    partitioning: tuple[str, ...]
    access: Access = field(default_factory=Access)
    location: str = ""  # of its data files, as the table spells it
    id: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)  # what it kept when the query was started; see `ends`
    beside: IcebergTable | None = None
    judge: int = 0

    # As any reader of Parquet then reads a file alone, and pyiceberg finds a file's partition in it.
    keeps_columns: ClassVar[bool] = True

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
            ID: self.id,
            NUMBERS: json.dumps(self.numbers),
            **self.catalog.as_options(),
            **self.access.as_options(),
        }

    def ends_of(self, lanes: Iterable[str]) -> dict[str, int | None]:
        if self.beside is None:
            return known_ends(lanes, self.numbers.get)
        return known_ends(lanes, self.numbers.get, of=self.beside.id, beside=self.beside.numbers.get)

    # In the driver

    def check_judge(self, shares: Sequence[Share]) -> None:
        _commits().check_judge(self, shares)

    def prepare(self, shares: Sequence[Share]) -> None:
        _commits().prepare(self, shares)

    def append(self, shares: Sequence[Share], batch: Batch, brought: Unnamed) -> None:
        _commits().append(self, shares, batch, brought)


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
        id=options[ID],
        numbers=json.loads(options[NUMBERS]),
    )


def _commits() -> Any:
    from pyspark_nsqtable import iceberg_commits  # pyiceberg takes a second to import, and executors may not have it

    module: ModuleType = iceberg_commits
    return module
