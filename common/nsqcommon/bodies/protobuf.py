"""Decodes Protobuf bodies, one message each, by the descriptors of `protoc --include_imports --descriptor_set_out`.

A proto3 field that isn't `optional` always has a value, if only its default; only fields with presence can be missing.
An enum becomes its name, `google.protobuf.Timestamp` a timestamp, and a wrapper like `google.protobuf.StringValue` its
wrapped value. With `as_json`, the other well-known types get the form that they have in Protobuf's JSON, too.

A descriptor's attributes are slow, so we look at each message type once, and keep how to read its fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from nsqcommon.bodies.parsing import Cause, Tree, Unfit, tree_of
from nsqcommon.bodies.protobuf_walk import find_misfit, has_few_fields

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from msgspec import Struct

_ANY: Final = "google.protobuf.Any"
_MOST_NESTED_ANY: Final = 5  # each one is parsed again
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_FLOAT: Final = 2  # FieldDescriptor.TYPE_FLOAT
_EXACT: Final = 1 << 53  # below, a float holds every whole number
_ANY_NUMBER: Final = 1 << 62


class BadDescriptors(ValueError):
    """The bytes aren't a descriptor set, or it doesn't have the message."""


class Tally:
    """Counts what a body has, within its bounds."""

    __slots__ = ("left", "nested_any")

    def __init__(self, most: int) -> None:
        self.left = most  # values
        self.nested_any = 0

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _TooMany


class _TooMany(Exception):
    pass


Reading = Callable[[Any, Tally], object]  # makes a plain value of a message or a field


class ProtobufParser:
    def __init__(self, descriptors: bytes, message: str, *, as_json: bool = False, most: int | None = None) -> None:
        """`message` is a full name, like `shop.Order`. Raises BadDescriptors.

        `as_json` reads well-known types as Protobuf's JSON has them, and leaves out unknown fields. `most` is how many
        values a body may have.
        """
        self._given = (descriptors, message)
        self._most = most
        pool, self._message = _message_class(descriptors, message)
        special = _special_for_json(pool) if as_json else dict(_SPECIAL)
        self._readings = _Readings(special, as_json=as_json)
        if as_json:
            special[_ANY] = _AnyReading(pool, self._readings)
        self._read: Reading = self._readings.of(self._message.DESCRIPTOR)

    def __reduce__(self) -> tuple[object, ...]:
        return ProtobufParser, self._given

    @property
    def identity(self) -> tuple[object, ...]:
        return "protobuf", *self._given

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        return None

    def parse(self, body: bytes) -> object:
        return self._parsed(body, self._read)

    def parsing_only(self, paths: Iterable[tuple[str, ...]]) -> Callable[[bytes], object]:
        """Return a function like `parse` whose values have the fields at these paths, and perhaps more."""
        read = self._readings.pruned(self._message.DESCRIPTOR, tree_of(paths))
        return lambda body: self._parsed(body, read)

    def unknown_fields(self, body: bytes) -> list[int]:
        """Return the numbers of fields that the message type doesn't have; none if the body has very many fields.

        The body has been parsed before.
        """
        if not has_few_fields(body):
            return []
        return sorted({it.field_number for it in UnknownFieldSet(self._message.FromString(body))})

    def _parsed(self, body: bytes, read: Reading) -> object:
        try:
            return read(self._message.FromString(body), Tally(_ANY_NUMBER if self._most is None else self._most))
        except DecodeError as error:
            raise self._misfit(body, error) from None
        except _TooMany:
            raise Unfit(Cause.NOT_PROTOBUF, f"has more than {self._most:,} values") from None
        except ValueError as error:  # a time beyond Python's calendar
            raise Unfit(Cause.BAD_TIME, str(error)) from None

    def _misfit(self, body: bytes, error: DecodeError) -> Unfit:
        if (misfit := find_misfit(body, self._message.DESCRIPTOR)) is not None:
            return Unfit(Cause.NOT_UTF8 if misfit.is_text else Cause.NOT_PROTOBUF, str(misfit))
        said = str(error).rpartition("': ")[2]
        return Unfit(Cause.NOT_UTF8, "a string field") if "UTF-8" in said else Unfit(Cause.NOT_PROTOBUF, said)


def _message_class(descriptors: bytes, name: str) -> tuple[Any, Any]:
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
    return pool, found


_WHOLE: Final[Tree] = {}


class _Readings:
    """How to read each message type."""

    def __init__(self, special: Mapping[str, Reading], *, as_json: bool) -> None:
        self._special = special
        self._as_json = as_json
        self._known: dict[str, _MessageReading] = {}

    def of(self, kind: Descriptor) -> Reading:
        if (found := self._special.get(kind.full_name)) is not None:
            return found
        if (known := self._known.get(kind.full_name)) is None:
            # It is known before its fields are, because a field may be of the same type.
            known = self._known[kind.full_name] = _MessageReading(with_unknown=not self._as_json)
            known.fields = [self._field(it, _WHOLE) for it in kind.fields]
        return known

    def pruned(self, kind: Descriptor, tree: Tree) -> Reading:
        if not tree or kind.full_name in self._special:
            return self.of(kind)
        reading = _MessageReading(with_unknown=False)
        reading.fields = [self._field(it, tree[it.name]) for it in kind.fields if it.name in tree]
        return reading

    def _field(self, field: FieldDescriptor, tree: Tree) -> _Field:
        return field.name, field.has_presence, self._reading(field, tree)

    def _reading(self, field: FieldDescriptor, tree: Tree) -> Reading | None:
        if not field.is_repeated:
            return self._single(field, tree)
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            return _map_of(self._single(inner.fields_by_name["value"], _WHOLE))
        return _list_of(self._single(field, _WHOLE))

    def _single(self, field: FieldDescriptor, tree: Tree) -> Reading | None:
        """Return how to read one value; None: it stays as it is."""
        if field.enum_type is not None:
            names = {number: it.name for number, it in field.enum_type.values_by_number.items()}
            return lambda value, tally: names.get(value, value)
        if field.message_type is not None:
            return self.pruned(field.message_type, tree)
        return _shortest if self._as_json and field.type == _FLOAT else None


_Field = tuple[str, bool, Reading | None]  # name, has presence, reading


class _MessageReading:
    """Reads a message into a dict with its fields by name; unknown fields, by number."""

    __slots__ = ("_with_unknown", "fields")

    def __init__(self, *, with_unknown: bool) -> None:
        self._with_unknown = with_unknown
        self.fields: list[_Field] = []

    def __call__(self, message: Any, tally: Tally) -> dict[Any, object]:
        found: dict[Any, object] = {}
        for name, has_presence, read in self.fields:
            if has_presence and not message.HasField(name):
                continue
            value = getattr(message, name)
            found[name] = value if read is None else read(value, tally)
        if self._with_unknown:
            for unknown in UnknownFieldSet(message):
                found[unknown.field_number] = None
        tally.take(len(found) + 1)
        return found


def _list_of(read: Reading | None) -> Reading:
    def reading(values: Any, tally: Tally) -> object:
        tally.take(len(values))
        return list(values) if read is None else [read(it, tally) for it in values]

    return reading


def _map_of(read: Reading | None) -> Reading:
    def reading(values: Any, tally: Tally) -> object:
        tally.take(len(values))
        return {_key(key): values[key] if read is None else read(values[key], tally) for key in values}

    return reading


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)  # as in Protobuf's JSON


def _shortest(value: float, tally: Tally) -> float:
    """Return the number with the fewest digits that is the same float of 32 bits: 0.1 for 0.10000000149011612."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("f", short) == struct.pack("f", value):
                return short
        except OverflowError:  # rounded up beyond the largest one
            continue
    return value


# Well-known types


def _time(value: Any, tally: Tally) -> object:
    return value.ToDatetime(tzinfo=UTC)


def _wrapped(value: Any, tally: Tally) -> object:
    return value.value


_SPECIAL: Final[Mapping[str, Reading]] = {_TIMESTAMP: _time, **dict.fromkeys(_WRAPPERS, _wrapped)}


def _special_for_json(pool: Any) -> dict[str, Reading]:
    return {
        **_SPECIAL,
        _TIMESTAMP: _json_of_time,
        "google.protobuf.FloatValue": lambda value, tally: _shortest(value.value, tally),
        "google.protobuf.Duration": _json_of_duration,
        "google.protobuf.FieldMask": lambda value, tally: ",".join(value.paths),
        "google.protobuf.Struct": _json_of_struct,
        "google.protobuf.Value": _json_of_value,
        "google.protobuf.ListValue": _json_of_list,
    }


def _json_of_time(value: Any, tally: Tally) -> object:
    """Return the time as text with all its digits. An invalid one has no text, but its numbers may explain it."""
    if not 0 <= value.nanos < 1_000_000_000:
        return {"seconds": value.seconds, "nanos": value.nanos}
    try:
        return value.ToJsonString()
    except (ValueError, OverflowError):
        return {"seconds": value.seconds, "nanos": value.nanos}


def _json_of_duration(value: Any, tally: Tally) -> object:
    try:
        return value.ToJsonString()
    except ValueError:
        return {"seconds": value.seconds, "nanos": value.nanos}


def _json_of_struct(value: Any, tally: Tally) -> object:
    tally.take(len(value.fields) + 1)
    return {key: _json_of_value(value.fields[key], tally) for key in value.fields}


def _json_of_list(value: Any, tally: Tally) -> object:
    tally.take(len(value.values) + 1)
    return [_json_of_value(it, tally) for it in value.values]


def _json_of_value(value: Any, tally: Tally) -> object:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _json_of_struct(value.struct_value, tally)
    if kind == "list_value":
        return _json_of_list(value.list_value, tally)
    if kind == "number_value" and value.number_value.is_integer() and abs(value.number_value) < _EXACT:
        return int(value.number_value)
    return None if kind in (None, "null_value") else getattr(value, kind)


class _AnyReading:
    """Reads a message of a type that it names itself; of an unknown type, its bytes."""

    def __init__(self, pool: Any, readings: _Readings) -> None:
        self._pool = pool
        self._readings = readings
        self._classes: dict[str, Any] = {}

    def __call__(self, value: Any, tally: Tally) -> object:
        url = value.type_url
        tally.nested_any += 1
        try:
            found = self._inner(url.rpartition("/")[2], value.value, tally)
        except DecodeError:
            found = None
        finally:
            tally.nested_any -= 1
        if found is None:
            return {"@type": url, "value": value.value}
        # As in Protobuf's JSON: types with a form of their own are below `value`.
        if isinstance(found, dict) and "@type" not in found:
            return {"@type": url, **found}
        return {"@type": url, "value": found}

    def _inner(self, name: str, body: bytes, tally: Tally) -> object:
        if tally.nested_any > _MOST_NESTED_ANY:
            return None
        try:
            kind = self._pool.FindMessageTypeByName(name)
        except KeyError:
            return None
        if name not in self._classes:
            self._classes[name] = message_factory.GetMessageClass(kind)
        return self._readings.of(kind)(self._classes[name].FromString(body), tally)
