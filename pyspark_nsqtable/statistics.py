"""What a table's log says of a file's columns, from what Parquet has counted while it wrote them: readers skip files by it."""

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
    pa.types.is_boolean,  # what has no range while others have one, deltalake's reader for pyarrow does not find
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
)
_LONGEST: Final = 32  # characters of a text that the log repeats, as others who write Delta tables do
_LAST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column as Parquet counts them: a field of a struct is one of its own."""

    path: tuple[str, ...]
    kind: pa.DataType

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def has_range(self) -> bool:
        """Not what is in lists, as Delta knows no range of these, nor bytes."""
        return any(holds(self.kind) for holds in _RANGED)

    def has_nan(self, rows: pa.RecordBatch) -> bool:
        values = rows.column(self.path[0])
        for name in self.path[1:]:
            values = pc.struct_field(values, name)
        return bool(pc.any(pc.is_nan(values)).as_py())


def leaves(schema: pa.Schema) -> list[Leaf]:
    """In Parquet's order."""
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
    """The columns of what is in a list, of which only the number matters: their kind is none that has a range."""
    for _ in _leaves(pa.field("element", kind), path):
        yield Leaf((*path, "element"), pa.null())


def statistics(file: Any, columns: Sequence[Leaf], *, has_nan: Collection[Leaf] = ()) -> dict[str, Any]:
    """As Delta's log has it, of a `pyarrow.parquet.FileMetaData`.

    Parquet's ranges leave NaN out. In a file whose range is [1, 1], readers take NaN for 1, so a column with NaN has no range.
    """
    found: dict[str, Any] = {"numRecords": file.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    for number, leaf in enumerate(columns):
        if not leaf.has_range:
            continue
        parts = [group.column(number).statistics for group in groups]
        if not all(part is not None and part.has_null_count for part in parts):
            continue  # Parquet leaves out what is too long
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
    """A text that was cut is smaller than what it stands for, and the largest character makes up for it."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[:_LONGEST] + _LAST
    return _plain(value)


def _plain(value: object) -> object:
    """Dates as JSON has them, and None for an infinity, which it does not have."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return None if isinstance(value, float) and not isfinite(value) else value


def to_json(found: object) -> str:
    """Return what `statistics` has found as JSON, with all digits of decimals and no exponents.

    As a float a decimal would lose digits, and deltalake takes 2.5e-08 for nothing: readers would pass over files that have
    what they look for.
    """
    if isinstance(found, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)}: {to_json(value)}' for name, value in found.items())}}}"
    return f"{found:f}" if isinstance(found, Decimal) else json.dumps(found, allow_nan=False)
