"""The identity of an Iceberg table: its catalog, its location, and its ends when the query started."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import pyarrow as pa
from pyarrow.fs import FileSystem

from pyspark_nsq.stores.places import Place, StoreAccess, parse_place
from pyspark_nsq.tables.ends import known_ends

LOCATION: Final = "iceberg.location"
ID: Final = "iceberg.id"
NUMBERS: Final = "iceberg.numbers"
CATALOG: Final = "catalog"
PROPERTY: Final = "catalog."  # prefix of options that are properties of the catalog


@dataclass(frozen=True, slots=True)
class CatalogName:
    """How pyiceberg finds a catalog: by its name in pyiceberg's configuration, and by properties that override that."""

    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain secret keys

    def as_options(self) -> dict[str, str]:
        return {CATALOG: self.name, **{f"{PROPERTY}{name}": text for name, text in self.properties.items()}}


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """The table, without the driver's operations. For a quarantine, `beside` is its table."""

    path: str  # `namespace.table`
    catalog: CatalogName
    schema: pa.Schema
    partitioning: tuple[str, ...]
    access: StoreAccess = field(default_factory=StoreAccess)
    location: str = ""  # of its data files, as the table spells it
    id: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)  # its ends when the query started; see `ends`
    beside: IcebergTarget | None = None
    judge: int = 0  # a fingerprint of the decoder and the rules

    # So any Parquet reader can read a file on its own, and pyiceberg finds the file's partition in it.
    keeps_columns: ClassVar[bool] = True

    @property
    def place(self) -> Place:
        return replace(parse_place(self.location, environ={}), access=self.access)

    def filesystem(self) -> tuple[FileSystem, str]:
        return self.place.filesystem()

    def as_options(self) -> dict[str, str]:
        """Return the options of the sink that name this table; `of_options` parses them."""
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
