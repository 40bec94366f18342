"""Turns parsed bodies into Arrow columns by a schema. A value that doesn't fit becomes a fault that names its field.

Theory of operation. A record is a dictionary, as a parser returns it. Each type has a column that turns a list of
Python values into an array: all values at once if all are plain (`Leaf.array`), one by one if any isn't. Going one by
one defines the result; for plain values, the other way gives the same array faster. Structs, arrays and maps pass the
flattened values to the columns of their parts, and translate the faults that come back: a fault's place grows on its
way up, `price` -> `[3].price` -> `items[3].price`.

A struct may get `msgspec.Struct` objects from `quick.py` instead of dictionaries. These have no extra fields, and have
`UNSET` for a missing field.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from itertools import accumulate, chain
from math import isinf
from operator import attrgetter
from types import NoneType
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Struct

from nsqcommon.bodies.parsing import Cause, Unfit
from pyspark_nsq.bodies.ddl import as_nullable, spelled

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SECOND: Final = -62_135_596_800  # 0001-01-01T00:00:00Z
_LAST_SECOND: Final = 253_402_300_799  # 9999-12-31T23:59:59Z
_FLOAT32_MAX: Final = 3.4028235677973366e38  # numbers below it round to a finite float
_NOT_FINITE: Final[Mapping[str, float]] = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_WORDS: Final[Mapping[type, str]] = {
    NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    Decimal: "number",
    str: "string",
    bytes: "binary",
    list: "array",
    dict: "object",
    datetime: "timestamp",
    date: "date",
}
_SHOWN: Final = 40  # characters of a value in a message; the quarantined row has the whole body


@dataclass(frozen=True, slots=True)
class Fault:
    row: int
    place: str  # within the record, as in `.items[3].price`
    cause: Cause
    detail: str

    def text(self) -> str:
        return f"{self.cause}: value{self.place}: {self.detail}"


@dataclass(slots=True)
class Tally:
    """Counts the fields that only the records or only the schema have."""

    extra: int = 0  # fields of records that the schema doesn't have
    missing: int = 0  # fields of the schema that records don't have


@dataclass(frozen=True, slots=True)
class Built:
    array: pa.Array
    faults: Sequence[Fault] = ()


def word_for(value: object) -> str:
    """Return the name of the value's type, in JSON's words."""
    return _WORDS.get(type(value), type(value).__name__)


# Leaves


@dataclass(frozen=True, slots=True)
class Leaf:
    """A type without parts. `convert` turns one value into one that `array` accepts, or raises `Unfit`."""

    kind: pa.DataType
    plain: frozenset[type]  # types whose values `array` accepts without `convert`
    array: Callable[[Sequence[Any], pa.DataType], pa.Array]
    convert: Callable[[object, pa.DataType], object]

    def quick(self, values: Sequence[Any]) -> pa.Array | None:
        """Return the array if all of these values are valid. They are of the right type or UNSET."""
        try:
            return self.array(values, self.kind)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError):
            return None

    def build(self, values: Sequence[Any], tally: Tally) -> Built:
        if set(map(type, values)) <= self.plain and (found := self.quick(values)) is not None:
            return Built(found)
        converted: list[object] = []
        faults = []
        for row, value in enumerate(values):
            try:
                converted.append(None if value is None else self.convert(value, self.kind))
            except Unfit as unfit:
                converted.append(None)
                faults.append(Fault(row, "", unfit.cause, unfit.detail))
        return Built(self.array(converted, self.kind), faults)


def _wrong(value: object, kind: pa.DataType) -> Unfit:
    return Unfit(Cause.WRONG_TYPE, f"expected {spelled(kind)}, found {word_for(value)}{_shown(value)}")


def _overflow(value: object, kind: pa.DataType) -> Unfit:
    return Unfit(Cause.OVERFLOW, f"{_shown(value).strip()} does not fit into {spelled(kind)}")


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1000:
        return " of more than 300 digits"  # Python refuses to print much longer ones
    if not isinstance(value, str | int | float | Decimal):
        return ""
    text = repr(value) if isinstance(value, str) else str(value)
    return f" {text}" if len(text) <= _SHOWN else f" {text[:_SHOWN]}..."


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _boolean(value: object, kind: pa.DataType) -> object:
    if type(value) is not bool:
        raise _wrong(value, kind)
    return value


def _integer(value: object, kind: pa.DataType) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value:
        raise _wrong(value, kind)
    # int() of a number like 1e999999999 would need more digits than fit into memory, so we check the size first.
    if -1e20 < value < 1e20 and int(value) != value:
        raise _wrong(value, kind)
    most: int = 1 << (kind.bit_width - 1)
    if not -most <= value < most:
        raise _overflow(value, kind)
    return int(value)


def _float_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    found = pa.array(values, kind)
    # Arrow turns a number that is too large for a float into infinity, so we convert such values one by one.
    if kind == pa.float32() and pc.any(pc.is_inf(found)).as_py():
        wide = pa.array(values, pa.float64())
        if not pc.is_inf(wide).equals(pc.is_inf(found)):
            raise OverflowError
    return found


def _number(value: object, kind: pa.DataType) -> object:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _wrong(value, kind)
    try:
        found = float(value)
    except OverflowError:
        raise _overflow(value, kind) from None
    if isinf(found) != (isinstance(value, float) and isinf(value)):
        raise _overflow(value, kind)
    if kind == pa.float32() and not isinf(found) and abs(found) >= _FLOAT32_MAX:
        raise _overflow(value, kind)
    return found


def _text(value: object, kind: pa.DataType) -> object:
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        raise _wrong(value, kind)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(Cause.NOT_UTF8, "half of a surrogate pair") from None
    return value


def _binary(value: object, kind: pa.DataType) -> object:
    if isinstance(value, str):  # the only way to write bytes in JSON
        try:
            return b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Unfit(Cause.WRONG_TYPE, f"expected binary as base64, found string{_shown(value)}") from None
    if not isinstance(value, bytes):
        raise _wrong(value, kind)
    return value


def _decimal(value: object, kind: pa.DataType) -> object:
    """Return a decimal, rounded half up to the schema's scale like in Spark."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise _wrong(value, kind)
    try:
        exact = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise _wrong(value, kind) from None
    if not exact.is_finite():
        raise _wrong(value, kind)
    if exact and exact.adjusted() > kind.precision:
        raise _overflow(value, kind)
    with localcontext(prec=2 * kind.precision + 2):
        rounded = exact.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    if rounded and rounded.adjusted() >= kind.precision - kind.scale:
        raise _overflow(value, kind)
    return rounded


def _date_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).cast(kind)


def _date(value: object, kind: pa.DataType) -> object:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return _time_text(value, kind, _date_array)


def _timestamp_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Parse ISO 8601. A time without a zone is UTC; digits beyond microseconds are cut off."""
    texts = pa.array(values, pa.string())
    has_date_only = pc.equal(pc.binary_length(texts), len("2026-03-01"))
    zoned = pc.and_not(pc.match_substring_regex(texts, r"(Z|[+-]\d\d(:?\d\d)?)$"), has_date_only)
    if not pc.any(zoned).as_py():
        return _instants(texts, pa.timestamp("us")).cast(kind)
    if pc.all(zoned, min_count=0).as_py():
        return _instants(texts, pa.timestamp("us", "UTC")).cast(kind)
    both = [_instants(pc.if_else(pc.equal(zoned, there), texts, None), zone) for there, zone in _ZONES]
    return pc.coalesce(*(found.cast(kind) for found in both))


_ZONES: Final = ((True, pa.timestamp("us", "UTC")), (False, pa.timestamp("us")))


def _instants(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1").cast(kind)


def _timestamp(value: object, kind: pa.DataType) -> object:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    if isinstance(value, int) and not isinstance(value, bool):
        if not _FIRST_SECOND <= value <= _LAST_SECOND:
            raise Unfit(Cause.BAD_TIME, f"{_shown(value).strip()} seconds since 1970 are outside the years 1 to 9999")
        return (_EPOCH + timedelta(seconds=value)).isoformat()
    return _time_text(value, kind, _timestamp_array)


def _time_text(value: object, kind: pa.DataType, array: Callable[[Sequence[Any], pa.DataType], pa.Array]) -> str:
    if not isinstance(value, str):
        raise _wrong(value, kind)
    try:
        array([value], kind)
    except (pa.ArrowException, UnicodeEncodeError):
        raise Unfit(Cause.BAD_TIME, f"{_shown(value).strip()} is not a {spelled(kind)}") from None
    return value


def _leaf(kind: pa.DataType) -> Leaf:
    if pa.types.is_boolean(kind):
        return Leaf(kind, frozenset((bool, NoneType)), _array, _boolean)
    if pa.types.is_integer(kind):
        return Leaf(kind, frozenset((int, NoneType)), _array, _integer)
    if pa.types.is_floating(kind):
        return Leaf(kind, frozenset((float, int, NoneType)), _float_array, _number)
    if pa.types.is_string(kind):
        return Leaf(kind, frozenset((str, NoneType)), _array, _text)
    if pa.types.is_binary(kind):
        return Leaf(kind, frozenset((bytes, NoneType)), _array, _binary)
    if pa.types.is_decimal(kind):
        return Leaf(kind, frozenset(), _array, _decimal)
    if pa.types.is_date(kind):
        return Leaf(kind, frozenset((str, NoneType)), _date_array, _date)
    return Leaf(kind, frozenset((str, NoneType)), _timestamp_array, _timestamp)


# Types with parts


@dataclass(frozen=True, slots=True)
class StructColumn:
    kind: pa.DataType
    names: tuple[str, ...]
    parts: tuple[Column, ...]
    required: frozenset[str]

    def build(self, values: Sequence[Any], tally: Tally) -> Built:
        """Build the array from dictionaries; None is null."""
        records, faults = _of_type(values, dict, self.kind)
        there = [record for record in records if record is not None]
        arrays = []
        present = 0
        for name, part in zip(self.names, self.parts, strict=True):
            children = [None if record is None else record.get(name) for record in records]
            built = part.build(children, tally)
            arrays.append(built.array)
            faults += _below(f".{name}", built.faults)
            missing = sum(name not in record for record in there) if built.array.null_count else 0
            present += len(there) - missing
            tally.missing += missing
            if name in self.required and built.array.null_count:
                faults += _absent(name, records, children)
        tally.extra += sum(map(len, there)) - present
        return Built(self._array(arrays, records, has_nulls=len(there) < len(records)), faults)

    def build_typed(self, values: Sequence[Struct | None], tally: Tally) -> Built:
        """Build the array from objects of the class that `quick.py` made for this struct."""
        arrays = []
        faults: list[Fault] = []
        has_nulls = NoneType in set(map(type, values))
        for number, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            get = attrgetter(f"f{number}")
            children = [None if it is None else get(it) for it in values] if has_nulls else list(map(get, values))
            found = part.quick(children) if isinstance(part, Leaf) else None
            if found is None:
                tally.missing += sum(child is UNSET for child in children)
                built = _build_typed(part, [None if child is UNSET else child for child in children], tally)
                found = built.array
                faults += _below(f".{name}", built.faults)
            arrays.append(found)
        return Built(self._array(arrays, values, has_nulls=has_nulls), faults)

    def _array(self, arrays: Sequence[pa.Array], records: Sequence[object], *, has_nulls: bool) -> pa.StructArray:
        nulls = pa.array([record is None for record in records], pa.bool_()) if has_nulls else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.kind), mask=nulls)


@dataclass(frozen=True, slots=True)
class ListColumn:
    kind: pa.DataType
    part: Column

    def build(self, values: Sequence[Any], tally: Tally) -> Built:
        lists, faults = _of_type(values, list, self.kind)
        return self._built(lists, faults, self.part.build(_flat(lists), tally))

    def build_typed(self, values: Sequence[Any], tally: Tally) -> Built:
        return self._built(values, [], _build_typed(self.part, _flat(values), tally))

    def _built(self, lists: Sequence[Any], faults: list[Fault], below: Built) -> Built:
        starts, offsets = _offsets(lists)
        for fault in below.faults:
            row = bisect_right(starts, fault.row) - 1
            faults.append(Fault(row, f"[{fault.row - starts[row]}]{fault.place}", fault.cause, fault.detail))
        return Built(pa.ListArray.from_arrays(offsets, below.array, type=self.kind), faults)


@dataclass(frozen=True, slots=True)
class MapColumn:
    kind: pa.DataType
    keys: Leaf
    part: Column

    def build(self, values: Sequence[Any], tally: Tally) -> Built:
        maps, faults = _of_type(values, dict, self.kind)
        return self._built(maps, faults, self.part.build(_flat(_values_of(maps)), tally))

    def build_typed(self, values: Sequence[Any], tally: Tally) -> Built:
        return self._built(values, [], _build_typed(self.part, _flat(_values_of(values)), tally))

    def _built(self, maps: Sequence[Any], faults: list[Fault], below: Built) -> Built:
        starts, offsets = _offsets(maps)
        names = _flat(maps)
        keys = self.keys.build(names, Tally())
        for fault in (*keys.faults, *below.faults):
            row = bisect_right(starts, fault.row) - 1
            faults.append(Fault(row, f"[{names[fault.row]!r}]{fault.place}", fault.cause, fault.detail))
        # Arrow doesn't allow null as a key. The row of a faulty key will be quarantined anyway.
        found = pc.fill_null(keys.array, "") if keys.faults else keys.array
        return Built(pa.MapArray.from_arrays(offsets, found, below.array, type=self.kind), faults)


Column = Leaf | StructColumn | ListColumn | MapColumn


def record_column(schema: pa.StructType) -> StructColumn:
    """Return the column of structs with these fields.

    All are nullable there: a null that breaks `not null` is a fault.
    """
    names = tuple(field.name for field in schema)
    required = frozenset(field.name for field in schema if not field.nullable)
    return StructColumn(as_nullable(schema), names, tuple(_column(field.type) for field in schema), required)


def _column(kind: pa.DataType) -> Column:
    if pa.types.is_struct(kind):
        return record_column(kind)
    if pa.types.is_list(kind):
        return ListColumn(as_nullable(kind), _column(kind.value_type))
    if pa.types.is_map(kind):
        return MapColumn(as_nullable(kind), _leaf(pa.string()), _column(kind.item_type))
    return _leaf(kind)


def _build_typed(part: Column, values: Sequence[Any], tally: Tally) -> Built:
    return part.build(values, tally) if isinstance(part, Leaf) else part.build_typed(values, tally)


def _of_type(values: Sequence[Any], wanted: type, kind: pa.DataType) -> tuple[Sequence[Any], list[Fault]]:
    """Return the values, with None for values of another type, and a fault for each of these."""
    if set(map(type, values)) <= {wanted, NoneType}:
        return values, []
    found: list[object] = []
    faults = []
    for row, value in enumerate(values):
        fits = value is None or type(value) is wanted
        found.append(value if fits else None)
        if not fits:
            unfit = _wrong(value, kind)
            faults.append(Fault(row, "", unfit.cause, unfit.detail))
    return found, faults


def _absent(name: str, records: Sequence[Any], children: Sequence[object]) -> list[Fault]:
    return [
        Fault(row, f".{name}", Cause.MISSING, "null, and the schema says not null" if name in record else "is required")
        for row, (record, child) in enumerate(zip(records, children, strict=True))
        if record is not None and child is None
    ]


def _below(name: str, faults: Iterable[Fault]) -> list[Fault]:
    return [Fault(fault.row, f"{name}{fault.place}", fault.cause, fault.detail) for fault in faults]


def _flat(lists: Iterable[Iterable[Any] | None]) -> list[Any]:
    return list(chain.from_iterable(it for it in lists if it is not None))


def _values_of(maps: Iterable[Mapping[str, Any] | None]) -> list[Iterable[Any]]:
    return [it.values() for it in maps if it is not None]


def _offsets(lists: Sequence[Any]) -> tuple[list[int], pa.Array]:
    """Return where each list begins among the flattened values, and Arrow's form of that, with null for a null list."""
    starts = list(accumulate((0 if it is None else len(it) for it in lists), initial=0))
    marks = [None if it is None else start for it, start in zip(lists, starts, strict=False)]
    return starts, pa.array([*marks, starts[-1]], pa.int32())
