"""Converts a Parquet file's statistics for the table's log, by which readers skip files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_RANGED: Final = (
    # If other columns have a range and booleans don't, deltalake's reader for pyarrow wouldn't find rows by them.
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
)
_LONGEST: Final = 32  # characters of a text in the log, as in other writers of Delta tables
_LAST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column as Parquet counts columns: each field of a struct is a separate column."""

    path: tuple[str, ...]
    kind: pa.DataType

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def has_range(self) -> bool:
        """True if the log has a range for the column: Delta has none for bytes, nor for values in lists."""
        return any(holds(self.kind) for holds in _RANGED)

    def has_nan(self, rows: pa.RecordBatch) -> bool:
        values = rows.column(self.path[0])
        for name in self.path[1:]:
            values = pc.struct_field(values, name)
        return bool(pc.any(pc.is_nan(values)).as_py())


def leaves(schema: pa.Schema) -> list[Leaf]:
    """Return the columns in Parquet's order."""
    return [leaf for field in schema for leaf in _leaves(field, ())]


def _leaves(field: pa.Field, above: tuple[str, ...]) -> Iterator[Leaf]:
    path = (*above, field.name)
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _leaves(inner, path)
    elif pa.types.is_map(field.type):
        for inner in (field.type.key_type, field.type.item_type):
            yield from _inside(inner, path)
    elif pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        yield from _inside(field.type.value_type, path)
    else:
        yield Leaf(path, field.type)


def _inside(kind: pa.DataType, path: tuple[str, ...]) -> Iterator[Leaf]:
    """Yield the columns inside a list or map. Only their number matters, so they get a type without a range."""
    for _ in _leaves(pa.field("element", kind), path):
        yield Leaf((*path, "element"), pa.null())


def statistics(file: Any, columns: Sequence[Leaf], *, has_nan: Collection[Leaf] = ()) -> dict[str, Any]:
    """Convert a `pyarrow.parquet.FileMetaData` to the statistics of Delta's log.

    Parquet's ranges ignore NaN. If a file's range were [1, 1], readers would take a NaN in it for 1, so a column with
    NaN gets no range.
    """
    found: dict[str, Any] = {"numRecords": file.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    for number, leaf in enumerate(columns):
        if not leaf.has_range:
            continue
        parts = [group.column(number).statistics for group in groups]
        if not all(part is not None and part.has_null_count for part in parts):
            continue  # Parquet leaves out values that are too long
        _put(found["nullCount"], leaf.path, sum(part.null_count for part in parts))
        ranges = [part for part in parts if part.has_min_max]
        if leaf not in has_nan and ranges and all(part.has_min_max or not part.num_values for part in parts):
            low, high = _low(min(part.min for part in ranges)), _high(max(part.max for part in ranges))
            if low is not None and high is not None:
                _put(found["minValues"], leaf.path, low)
                _put(found["maxValues"], leaf.path, high)
    return found


def _put(into: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _low(value: object) -> object:
    return value[:_LONGEST] if isinstance(value, str) else _plain(value)


def _high(value: object) -> object:
    """Return an upper bound. Cutting a text makes it smaller, so we append the largest character."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[:_LONGEST] + _LAST
    return _plain(value)


def _plain(value: object) -> object:
    """Return a value for JSON: dates as text, and None for infinity."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return None if isinstance(value, float) and not isfinite(value) else value


def to_json(found: object) -> str:
    """Return the result of `statistics` as JSON, with all digits of decimals and no exponents.

    As a float, a decimal would lose digits, and deltalake doesn't understand 2.5e-08: readers would skip files with
    matching rows.
    """
    if isinstance(found, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)}: {to_json(value)}' for name, value in found.items())}}}"
    return f"{found:f}" if isinstance(found, Decimal) else json.dumps(found, allow_nan=False)
