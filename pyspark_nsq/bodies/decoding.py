"""Decodes bodies into Arrow values, in executors.

A body that doesn't fit the schema gives an error with the field and the cause.

A decoder is a small value that is pickled for executors; its compiled schema isn't pickled, but built again. An invalid
body becomes its row's error. Any other failure, such as a registry that doesn't answer, is raised, because it says
nothing about the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from nsqcommon.bodies.parsing import Cause, Parser, Unfit
from nsqcommon.bodies.self_describing import JsonParser, MsgpackParser
from pyspark_nsq.bodies.columns import Built, Tally, record_column, word_for
from pyspark_nsq.bodies.ddl import as_nullable
from pyspark_nsq.bodies.quick import record_class

VALUE: Final = "value"
ERROR: Final = "error"
EXTRA: Final = "extra_fields"
MISSING: Final = "missing_fields"
COUNTS: Final = "_counts"  # the column
COUNTS_TYPE: Final = pa.struct([(EXTRA, pa.int64()), (MISSING, pa.int64())])
_TRIED: Final = 64  # bodies after which a batch gives up the fast path if that has refused most of them


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result for a batch, row by row. A row has a value, or an error, or neither if it has no body."""

    values: pa.StructArray | None  # None: this decoder makes no values
    errors: pa.StringArray | None  # None: no row has an error
    counts: Mapping[str, int]


class Decoder(Protocol):
    @property
    def identity(self) -> tuple[object, ...]:
        """Its kind and settings; see `Parser.identity`."""

    @property
    def value_type(self) -> pa.StructType | None: ...

    def decode(self, bodies: pa.BinaryArray) -> Decoded: ...


def with_decoded(rows: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch:
    """Add `value`, if there are values, and `error`, of which one is null in each row."""
    errors = pa.nulls(rows.num_rows, pa.string()) if decoded.errors is None else decoded.errors
    if decoded.values is not None:
        rows = rows.append_column(VALUE, decoded.values)
    return rows.append_column(ERROR, errors)


@dataclass(frozen=True, slots=True)
class Decoding:
    """A function for Spark's mapInArrow: decodes the column `body` of batches, and adds the results.

    With `counts` it also adds a column of counts: the first row of a batch has the counts of the whole batch.
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
    """Leaves bodies as they are."""

    identity = ("raw",)
    value_type = None

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        return Decoded(None, None, {})


class RecordDecoder:
    """Decodes bodies of one format into structs with the schema's fields."""

    def __init__(self, schema: pa.StructType, parser: Parser) -> None:
        self._schema = schema
        self._parser = parser
        self._column = record_column(schema)
        record = record_class(schema)
        self._typed = None if record is None else parser.typed(record)

    def __reduce__(self) -> tuple[object, ...]:
        return RecordDecoder, (self._schema, self._parser)

    @property
    def identity(self) -> tuple[object, ...]:
        return *self._parser.identity, str(self._schema)

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
        """Return the rows whose bodies the fast path could parse, and their records."""
        rows: list[int] = []
        records: list[object] = []
        if (typed := self._typed) is None:
            return rows, records
        for row, body in enumerate(bodies):
            try:
                records.append(typed(body))  # type: ignore[arg-type]
            except Exception:  # the slow path finds the cause
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
            errors.setdefault(rows[fault.row], fault.text())
        return built.array


def json_decoder(schema: pa.StructType) -> RecordDecoder:
    return RecordDecoder(schema, json_parser(schema))


def json_parser(schema: pa.StructType) -> JsonParser:
    return JsonParser(exact=_has_decimals(schema))


def msgpack_decoder(schema: pa.StructType) -> RecordDecoder:
    return RecordDecoder(schema, MsgpackParser())


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(it).type) for it in range(kind.num_fields))
