"""Decodes Confluent's wire format: a zero byte, the schema's number in four bytes, and the body.

You need the schema with that number to read an Avro body. JSON describes itself, and for Protobuf the user gives the
descriptors, so these two ignore the number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqcommon.bodies.avro import AvroParser, BadAvroSchema
from nsqcommon.bodies.confluent_header import HEADER_SIZE, schema_number, without_indexes
from nsqcommon.bodies.parsing import Cause, Parser, Unfit
from nsqcommon.bodies.protobuf import ProtobufParser

if TYPE_CHECKING:
    from msgspec import Struct

    from nsqcommon.bodies.registry import Registry


class RegisteredAvroParser:
    """Parses each Avro body with the registry's schema for the body's number."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._parsers: dict[int, AvroParser | Unfit] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return RegisteredAvroParser, (self._registry,)

    @property
    def identity(self) -> tuple[object, ...]:
        return "registered avro", self._registry.shown  # the same parser with any password

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        return None

    def parse(self, body: bytes) -> object:
        number = schema_number(body)
        if number not in self._parsers:
            self._parsers[number] = self._parser(number)
        parser = self._parsers[number]
        if isinstance(parser, Unfit):
            raise Unfit(parser.cause, parser.detail)
        return parser.parse(body[HEADER_SIZE:])

    def _parser(self, number: int) -> AvroParser | Unfit:
        try:
            return AvroParser(self._registry.avro_schema(number))
        except Unfit as unfit:
            return unfit
        except BadAvroSchema as error:
            return Unfit(Cause.UNKNOWN_SCHEMA, f"number {number} is not an Avro schema: {error}")


class FramedParser:
    """Parses a format that doesn't need the schema's number."""

    def __init__(self, inner: Parser) -> None:
        self._inner = inner

    def __reduce__(self) -> tuple[object, ...]:
        return FramedParser, (self._inner,)

    @property
    def identity(self) -> tuple[object, ...]:
        return "confluent", *self._inner.identity

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        inner = self._inner.typed(record)
        if inner is None:
            return None

        def parse(body: bytes) -> object:
            schema_number(body)
            return inner(body[HEADER_SIZE:])

        return parse

    def parse(self, body: bytes) -> object:
        schema_number(body)
        if isinstance(self._inner, ProtobufParser):
            return self._inner.parse(without_indexes(body[HEADER_SIZE:]))
        return self._inner.parse(body[HEADER_SIZE:])
