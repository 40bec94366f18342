"""An Iceberg table as tasks see it: a folder for Parquet files, and how far the table went when the query started.

Nothing here needs pyiceberg or a catalog, so executors need neither. What the driver does with the files is in
`iceberg_commits`, which is imported only when it is needed, and only the driver needs it.

A task cannot ask the catalog how far the table goes, so all tasks of a query use what the driver read at its start.
That is enough: while the query runs, only its own commits move the ends, and each batch begins where the one before
ended. If another writer moves the ends, what the tasks have written is not what the table lacks, and `iceberg_commits`
refuses it.
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
PROPERTY: Final = "catalog."  # the prefix of options that are properties of the catalog


@dataclass(frozen=True, slots=True)
class CatalogName:
    """How pyiceberg finds a catalog: by its name in pyiceberg's configuration, and by properties that override that."""

    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain secret keys

    def as_options(self) -> dict[str, str]:
        return {CATALOG: self.name, **{f"{PROPERTY}{name}": text for name, text in self.properties.items()}}


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A table that landing adds rows to. For a quarantine, `beside` is its table."""

    path: str  # `namespace.table`
    catalog: CatalogName
    schema: pa.Schema
    partitioning: tuple[str, ...]
    access: Access = field(default_factory=Access)
    location: str = ""  # of its data files, as the table spells it
    id: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)  # its ends when the query started; see `ends`
    beside: IcebergTable | None = None
    judge: int = 0  # a fingerprint of the decoder and the rules

    # So any Parquet reader can read a file on its own, and pyiceberg finds the file's partition in it.
    keeps_columns: ClassVar[bool] = True

    @property
    def place(self) -> Place:
        return replace(parse_place(self.location, environ={}), access=self.access)

    def filesystem(self) -> tuple[FileSystem, str]:
        return self.place.filesystem()

    def as_options(self) -> dict[str, str]:
        """Return the options of the sink that name this table; `of_options` reads them."""
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
    """Return the table that these options of the sink name."""
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
