"""Decodes Confluent's wire format: a zero byte, the schema's number in four bytes, and the body.

You need the schema with that number to read an Avro body. JSON describes itself, and for Protobuf the user gives the
descriptors, so these two ignore the number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqcommon.bodies.avro import AvroParser, BadAvroSchema
from nsqcommon.bodies.parsing import Cause, Parser, Unfit
from nsqcommon.bodies.protobuf import ProtobufParser

if TYPE_CHECKING:
    from msgspec import Struct

    from nsqcommon.bodies.registry import Registry

_HEADER: Final = 5  # bytes
_LONGEST_VARINT: Final = 10


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
        number = _number(body)
        if number not in self._parsers:
            self._parsers[number] = self._parser(number)
        parser = self._parsers[number]
        if isinstance(parser, Unfit):
            raise Unfit(parser.cause, parser.detail)
        return parser.parse(body[_HEADER:])

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
            _number(body)
            return inner(body[_HEADER:])

        return parse

    def parse(self, body: bytes) -> object:
        _number(body)
        if isinstance(self._inner, ProtobufParser):
            return self._inner.parse(_without_indexes(body[_HEADER:]))
        return self._inner.parse(body[_HEADER:])


def _number(body: bytes) -> int:
    if len(body) < _HEADER or body[0]:
        begins = f"begins with 0x{body[0]:02x}" if body and body[0] else f"has only {len(body)} bytes"
        raise Unfit(Cause.NOT_CONFLUENT, f"the body {begins}")
    return int.from_bytes(body[1:_HEADER], "big")


def _without_indexes(body: bytes) -> bytes:
    """Strip the message indexes, which say which message of its file a Protobuf body has.

    They are a count and as many numbers; a count of zero is short for the list [0].
    """
    count, place = _varint(body, 0)
    if count < 0:
        raise Unfit(Cause.NOT_CONFLUENT, "the list of Protobuf's message indexes is broken")
    for _ in range(count):
        _, place = _varint(body, place)
    return body[place:]


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """Return the zigzag number at this position, and the position after it."""
    number = 0
    for taken, byte in enumerate(body[place : place + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * taken
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place + taken + 1
    raise Unfit(Cause.NOT_CONFLUENT, "the list of Protobuf's message indexes is broken")
