"""Decodes Avro bodies: one record each, written with one schema, without the header of Avro's file format."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import fastavro

from nsqcommon.bodies.parsing import Cause, Unfit

if TYPE_CHECKING:
    from msgspec import Struct


class BadAvroSchema(ValueError):
    """The text is not the schema of a record."""


class AvroParser:
    def __init__(self, schema: str) -> None:
        """`schema` is the JSON text of the writer's schema. Raises BadAvroSchema."""
        self._text = schema
        try:
            self._schema = fastavro.parse_schema(json.loads(schema))
        except Exception as error:  # fastavro raises errors of many types here, without a common base
            raise BadAvroSchema(f"{type(error).__name__}: {error}") from None

    def __reduce__(self) -> tuple[object, ...]:
        return AvroParser, (self._text,)

    @property
    def identity(self) -> tuple[object, ...]:
        return "avro", self._text

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        return None

    def parse(self, body: bytes) -> object:
        stream = io.BytesIO(body)
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except UnicodeDecodeError as error:
            raise Unfit(Cause.NOT_UTF8, f"a string with byte 0x{error.object[error.start]:02x}") from None
        except (EOFError, IndexError):  # an index into a union or an enum, or past the end
            raise Unfit(Cause.NOT_AVRO, f"ends too early, or is of another schema, at byte {stream.tell()}") from None
        except Exception as error:  # garbage makes fastavro raise anything, and it is the row's error
            raise Unfit(Cause.NOT_AVRO, f"{type(error).__name__}: {error} at byte {stream.tell()}"[:200]) from None
        if stream.tell() != len(body):
            raise Unfit(Cause.TRAILING, f"from byte {stream.tell()} on")
        return found
