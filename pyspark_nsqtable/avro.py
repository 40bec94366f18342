"""Avro bodies, one record each, written by one schema. Files of Avro's own format are something else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import fastavro
import pyarrow as pa
from msgspec import Struct

from pyspark_nsqtable.columns import Cause, Unfit
from pyspark_nsqtable.decoding import RecordDecoder


class BadAvroSchema(ValueError):
    """The text is no schema of a record."""


class AvroParser:
    def __init__(self, schema: str) -> None:
        """`schema` is the JSON that bodies were written by. Raises BadAvroSchema."""
        self._text = schema
        try:
            self._schema = fastavro.parse_schema(json.loads(schema))
        except Exception as error:  # fastavro has many for what is no schema, and none in common
            raise BadAvroSchema(f"{type(error).__name__}: {error}") from None

    def __reduce__(self) -> tuple[object, ...]:
        return AvroParser, (self._text,)

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        return None

    def parse(self, body: bytes) -> object:
        stream = io.BytesIO(body)
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except UnicodeDecodeError as error:
            raise Unfit(Cause.NOT_UTF8, f"a string with byte 0x{error.object[error.start]:02x}") from None
        except (EOFError, IndexError):  # an index is of a union's or an enum's, or behind the end
            raise Unfit(Cause.NOT_AVRO, f"ends too early, or is of another schema, at byte {stream.tell()}") from None
        except Exception as error:  # what it makes of garbage is its own affair; the row says it
            raise Unfit(Cause.NOT_AVRO, f"{type(error).__name__}: {error} at byte {stream.tell()}"[:200]) from None
        if stream.tell() != len(body):
            raise Unfit(Cause.TRAILING, f"from byte {stream.tell()} on")
        return found


def avro_decoder(fields: pa.StructType, schema: str) -> RecordDecoder:
    """Raises BadAvroSchema."""
    return RecordDecoder(fields, AvroParser(schema))
