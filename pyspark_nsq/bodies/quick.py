"""Makes a class for msgspec's typed decoding, a fast path that parses bodies without intermediate dictionaries.

The fast path can only accept bodies. A body that it refuses is parsed again on the slow path, which decides and knows
the cause. So if the fast path accepts a body, `columns.py` must accept it too, with the same values. Types for which
that isn't true are left out: a schema with such a type always uses the slow path.
"""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct


class _TooRich(Exception):
    """The schema has a type that msgspec parses differently from us."""


def record_class(schema: pa.StructType) -> type[Struct] | None:
    """Return the class for records of this schema, or None. Its attribute `f<n>` is the schema's n-th field."""
    try:
        return _record_class(schema)
    except _TooRich:
        return None


def _record_class(schema: pa.StructType) -> type[Struct]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for number, field in enumerate(schema):
        found = _python_type(field.type)
        if field.nullable:
            fields.append((f"f{number}", found | None | UnsetType, UNSET))
        else:
            fields.append((f"f{number}", found))
    return defstruct(
        "Record",
        fields,
        rename={f"f{number}": field.name for number, field in enumerate(schema)},
        forbid_unknown_fields=True,  # to count them
        kw_only=True,
        eq=False,
        gc=False,  # a parsed body has no cycles
    )


def _python_type(kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, Meta(ge=-most, le=most - 1)]
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_string(kind) or pa.types.is_temporal(kind):
        return str  # the column parses the text
    if pa.types.is_struct(kind):
        return _record_class(kind)
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]
    raise _TooRich
