"""Decodes Protobuf bodies, one message each, by the descriptors of `protoc --include_imports --descriptor_set_out`.

A proto3 field that isn't `optional` always has a value, if only its default; only fields with presence can be missing.
An enum becomes its name, `google.protobuf.Timestamp` a timestamp, and a wrapper like `google.protobuf.StringValue` its
wrapped value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from nsqcommon.bodies.parsing import Cause, Unfit

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from msgspec import Struct

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class BadDescriptors(ValueError):
    """The bytes aren't a descriptor set, or it doesn't have the message."""


class ProtobufParser:
    def __init__(self, descriptors: bytes, message: str) -> None:
        """`message` is a full name, like `shop.Order`. Raises BadDescriptors."""
        self._given = (descriptors, message)
        self._message = _message_class(descriptors, message)

    def __reduce__(self) -> tuple[object, ...]:
        return ProtobufParser, self._given

    @property
    def identity(self) -> tuple[object, ...]:
        return "protobuf", *self._given

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        return None

    def parse(self, body: bytes) -> object:
        try:
            return _plain(self._message.FromString(body))
        except DecodeError as error:
            said = str(error).rpartition("': ")[2]
            if "UTF-8" in said:
                raise Unfit(Cause.NOT_UTF8, "a string field") from None
            raise Unfit(Cause.NOT_PROTOBUF, said) from None
        except ValueError as error:  # a time beyond Python's calendar
            raise Unfit(Cause.BAD_TIME, str(error)) from None


def _message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for file in files:
            pool.Add(file)
        found = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except DecodeError:
        raise BadDescriptors("is not a descriptor set, as protoc --descriptor_set_out writes it") from None
    except KeyError:
        known = [f"{file.package}.{it.name}".lstrip(".") for file in files for it in file.message_type]
        raise BadDescriptors(f"has no message {name}; there are: {', '.join(known) or 'none'}") from None
    except TypeError as error:  # a file imported by another one is missing
        raise BadDescriptors(f"is not complete: {error}; use protoc --include_imports") from None
    return found


def _plain(message: Any) -> dict[Any, object]:
    """Return the message's fields by name; fields that its descriptor does not have, by number."""
    kind: Descriptor = message.DESCRIPTOR
    found: dict[Any, object] = {
        field.name: _field(field, getattr(message, field.name))
        for field in kind.fields
        if not field.has_presence or message.HasField(field.name)
    }
    for unknown in UnknownFieldSet(message):
        found[unknown.field_number] = None
    return found


def _field(field: FieldDescriptor, value: Any) -> object:
    if not field.is_repeated:
        return _single(field, value)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        of = inner.fields_by_name["value"]
        return {_key(key): _single(of, value[key]) for key in value}
    return [_single(field, it) for it in value]


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)  # as in Protobuf's JSON


def _single(field: FieldDescriptor, value: Any) -> object:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.message_type is None:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return value.ToDatetime(tzinfo=UTC)
    return value.value if field.message_type.full_name in _WRAPPERS else _plain(value)
