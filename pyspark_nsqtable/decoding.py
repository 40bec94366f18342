"""Bodies into values, in Arrow and in executors: what does not fit the schema has an error that names field and cause.

A decoder is a small value that travels to executors by pickle; what it compiles from its schema stays where it was made.
Whatever is wrong with a body is that row's error. Whatever is wrong with the surroundings, as a registry that does not
answer, is raised: it says nothing about the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsqtable.columns import Built, Cause, Tally, Unfit, record_column, word_for
from pyspark_nsqtable.ddl import as_nullable
from pyspark_nsqtable.quick import record_class

VALUE: Final = "value"
ERROR: Final = "error"
EXTRA: Final = "extra_fields"
MISSING: Final = "missing_fields"
COUNTS: Final = "_counts"  # the column
COUNTS_TYPE: Final = pa.struct([(EXTRA, pa.int64()), (MISSING, pa.int64())])
_TRIED: Final = 64  # bodies after which the quick way is given up for a batch if it has refused most of them
_AT: Final = re.compile(r"\s*\(byte (\d+)\)")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of a batch, row by row. A row has a value, an error, or neither if it has no body."""

    values: pa.StructArray | None  # None: this decoder makes no values
    errors: pa.StringArray | None  # None: no row has one
    counts: Mapping[str, int]


class Decoder(Protocol):
    @property
    def value_type(self) -> pa.StructType | None: ...

    def decode(self, bodies: pa.BinaryArray) -> Decoded: ...


class Parser(Protocol):
    """One format: how a body becomes Python's values."""

    def parse(self, body: bytes) -> object:
        """Raises `Unfit`."""

    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        """Return what parses into this class, raising anything where it cannot, if the format has such a thing."""


def with_decoded(rows: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch:
    """Add `value`, if there are values, and `error`, of which one is null in each row."""
    errors = pa.nulls(rows.num_rows, pa.string()) if decoded.errors is None else decoded.errors
    if decoded.values is not None:
        rows = rows.append_column(VALUE, decoded.values)
    return rows.append_column(ERROR, errors)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Batches with a column `body` and what became of it, for Spark's mapInArrow.

    With `counts` there is a column of them, too: the first row of a batch has those of the whole batch.
    """

    decoder: Decoder
    counts: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            decoded = self.decoder.decode(rows.column("body"))
            found = with_decoded(rows, decoded)
            if self.counts:
                told = [dict(decoded.counts), *[None] * (rows.num_rows - 1)] if rows.num_rows else []
                found = found.append_column(COUNTS, pa.array(told, COUNTS_TYPE))
            yield found


class RawDecoder:
    """Bodies stay what they are."""

    value_type = None

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        return Decoded(None, None, {})


class RecordDecoder:
    """Bodies of one format into a struct of the schema's fields."""

    def __init__(self, schema: pa.StructType, parser: Parser) -> None:
        self._schema = schema
        self._parser = parser
        self._column = record_column(schema)
        record = record_class(schema)
        self._typed = None if record is None else parser.typed(record)

    def __reduce__(self) -> tuple[object, ...]:
        return RecordDecoder, (self._schema, self._parser)

    @property
    def value_type(self) -> pa.StructType:
        found: pa.StructType = as_nullable(self._schema)
        return found

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        given: list[bytes | None] = bodies.to_pylist()
        tally = Tally()
        errors: dict[int, str] = {}
        rows, records = self._parse_typed(given)
        values = [self._built(self._column.build_typed, rows, records, tally, errors)]
        if len(rows) < len(given):
            taken = set(rows)
            rest = [row for row in range(len(given)) if row not in taken]
            parsed = [self._parsed(row, given[row], errors) for row in rest]
            values.append(self._built(self._column.build, rest, parsed, tally, errors))
            order = pc.sort_indices(pa.array([*rows, *rest], pa.int32()))
            joined = pa.concat_arrays(values).take(order)
        else:
            joined = values[0]
        counts = {EXTRA: tally.extra, MISSING: tally.missing}
        if not errors:
            return Decoded(joined, None, counts)
        told = pa.array([errors.get(row) for row in range(len(given))], pa.string())
        return Decoded(pc.if_else(told.is_null(), joined, pa.scalar(None, joined.type)), told, counts)

    def _parse_typed(self, bodies: Sequence[bytes | None]) -> tuple[list[int], list[Any]]:
        """Return those bodies' rows that were good at once, and what they hold."""
        rows: list[int] = []
        records: list[object] = []
        if (typed := self._typed) is None:
            return rows, records
        for row, body in enumerate(bodies):
            try:
                records.append(typed(body))  # type: ignore[arg-type]
            except Exception:  # of any kind: the slow way finds out what it is
                if row >= _TRIED and 2 * len(records) < row:
                    break
                continue
            rows.append(row)
        return rows, records

    def _parsed(self, row: int, body: bytes | None, errors: dict[int, str]) -> object:
        if body is None:
            return None
        try:
            found = self._parser.parse(body)
        except Unfit as unfit:
            errors[row] = f"{unfit.cause}: {unfit.detail}"
            return None
        if not isinstance(found, dict):
            errors[row] = f"{Cause.NOT_OBJECT}: {word_for(found)}"
            return None
        return found

    @staticmethod
    def _built(
        build: Callable[[Sequence[Any], Tally], Built],
        rows: Sequence[int],
        records: Sequence[object],
        tally: Tally,
        errors: dict[int, str],
    ) -> pa.StructArray:
        built = build(records, tally)
        for fault in built.faults:
            errors.setdefault(rows[fault.row], fault.told())
        return built.array


class JsonParser:
    """JSON as RFC 8259 has it, in UTF-8. Of a key that is there twice, the last one counts."""

    def __init__(self, *, exact: bool) -> None:
        """`exact` keeps a number's digits, for decimals. It takes longer."""
        self._exact = exact
        self._decode = msgspec.json.Decoder(float_hook=Decimal if exact else None).decode

    def __reduce__(self) -> tuple[object, ...]:
        return _json_parser, (self._exact,)

    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        return msgspec.json.Decoder(record).decode

    def parse(self, body: bytes) -> object:
        try:
            return self._decode(body)
        except RecursionError:
            raise Unfit(Cause.NOT_JSON, "nested too deep") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _need_utf8(body)
            if "out of range" in str(error):
                return _with_any_number(body)
            raise _malformed(Cause.NOT_JSON, body, str(error)) from None


class MsgpackParser:
    """One MessagePack value."""

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder().decode

    def __reduce__(self) -> tuple[object, ...]:
        return MsgpackParser, ()

    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        return msgspec.msgpack.Decoder(record).decode

    def parse(self, body: bytes) -> object:
        try:
            return self._decode(body)
        except UnicodeDecodeError as error:
            raise Unfit(Cause.NOT_UTF8, f"a string with byte 0x{error.object[error.start]:02x}") from None
        except RecursionError:
            raise Unfit(Cause.NOT_MSGPACK, "nested too deep") from None
        except (msgspec.MsgspecError, TypeError) as error:  # TypeError: a map's key is a map
            raise _malformed(Cause.NOT_MSGPACK, body, str(error)) from None


def json_decoder(schema: pa.StructType) -> RecordDecoder:
    return RecordDecoder(schema, json_parser(schema))


def json_parser(schema: pa.StructType) -> JsonParser:
    return JsonParser(exact=_has_decimals(schema))


def msgpack_decoder(schema: pa.StructType) -> RecordDecoder:
    return RecordDecoder(schema, MsgpackParser())


def _json_parser(exact: bool) -> JsonParser:
    return JsonParser(exact=exact)


def _need_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Unfit(Cause.NOT_UTF8, f"byte 0x{body[error.start]:02x} at {error.start}") from None


def _malformed(cause: Cause, body: bytes, text: str) -> Unfit:
    """msgspec's `JSON is malformed: expected ':' (byte 5)`, in our words."""
    if not body:
        return Unfit(cause, "the body is empty")
    found = _AT.search(text)
    if found is None:
        place = len(body)
        said = "ends too early" if "truncated" in text else text
    else:
        place = int(found[1])
        said = _AT.sub("", text).rpartition("malformed: ")[2]
    if said == "trailing characters":
        # Of JSON msgspec tells the place behind the first one.
        return Unfit(Cause.TRAILING, f"from byte {place - 1 if cause is Cause.NOT_JSON else place} on")
    return Unfit(cause, f"{said} at byte {place}")


def _with_any_number(body: bytes) -> object:
    """A number that no float or integer of Python holds is an overflow of its field, or lies in a field of no interest."""
    try:
        return json.loads(body, parse_float=Decimal, parse_int=_any_integer, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unfit(Cause.NOT_JSON, str(error)) from None


def _any_integer(text: str) -> object:
    return int(text) if len(text) < 300 else Decimal(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(it).type) for it in range(kind.num_fields))
