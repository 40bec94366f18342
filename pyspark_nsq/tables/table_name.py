"""A table as named in a job's options: its path, format and checkpoint, and its catalog or store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_nsq.kinds import Format
from pyspark_nsq.stores.storage import place_of
from pyspark_nsq.tables.iceberg_target import CatalogName

if TYPE_CHECKING:
    from pyspark_nsq.stores.places import Place


@dataclass(frozen=True, slots=True)
class TableName:
    path: str
    format: Format
    checkpoint_path: str = ""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)  # options `storage.*`
    catalog: CatalogName = field(default_factory=CatalogName)  # of an Iceberg table, whose path is `namespace.table`

    @property
    def place(self) -> Place:
        return place_of(self.path, self.storage)

    def absolute(self) -> str:
        """Return a name that is unambiguous elsewhere, too.

        An Iceberg table's name contains its catalog's address, maybe with a password.
        """
        if self.format is not Format.ICEBERG:
            return self.place.absolute()
        where = self.catalog.name or self.catalog.properties.get("uri")
        return f"{self.path} in {where}" if where else self.path

    @property
    def checkpoint(self) -> str:
        """The checkpoint's path; by default beside the table, because the two belong together."""
        return self.checkpoint_path or self.place.beside(".checkpoint").for_spark()

    @property
    def checkpoint_place(self) -> Place:
        return place_of(self.checkpoint, self.storage)
