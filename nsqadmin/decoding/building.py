"""Builds decoders from their steps, and imports the libraries that they need. It may take a second: use a thread."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from nsqadmin.decoding.decoder import MOST_VALUES, BodyParser, Decoder, Paths, Step
from nsqadmin.decoding.rules import CONFLUENT, Rule
from nsqadmin.decoding.unpacking import UNPACKERS
from nsqcommon.bodies.confluent_header import HEADER_SIZE, schema_number, without_indexes
from nsqcommon.bodies.parsing import Cause, Unfit
from nsqcommon.entries_file import BadEntries, Mistake
from nsqcommon.version import how_to_install
from nsqcommon.watched_file import FileStatus, look

if TYPE_CHECKING:
    from nsqcommon.bodies.avro import AvroParser
    from nsqcommon.bodies.protobuf import ProtobufParser

EXTRA: Final = "admin-decoders"
_LARGEST_FILE: Final = 16 << 20  # bytes of descriptors or a schema
_MOST_SHOWN: Final = 20  # numbers of unknown fields
_NAMES: Final = {"json": "JSON", "msgpack": "MessagePack"}


class NotInstalled(Exception):
    """A library is missing; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class BuiltRule:
    rule: Rule
    decoder: Decoder | None  # None: leave the body alone


def build_rules(rules: Sequence[Rule], folder: str) -> tuple[tuple[BuiltRule, ...], Mapping[str, FileStatus]]:
    """Build all decoders. Return them, and the files that were read with their status before. Raise BadEntries."""
    read: dict[str, bytes] = {}
    seen: dict[str, FileStatus] = {}
    mistakes: list[Mistake] = []
    built: list[BuiltRule] = []

    def content_of(key: str, path: str) -> bytes:
        """Return a file's content. Raise _Wrong."""
        whole = os.path.join(folder, path)
        if whole not in read:
            seen[whole] = look(whole)
            try:
                with open(whole, "rb") as file:
                    read[whole] = file.read(_LARGEST_FILE + 1)
            except (OSError, ValueError) as error:
                reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
                raise _Wrong(f"{key}: {path}: {reason}") from None
        if len(read[whole]) > _LARGEST_FILE:
            raise _Wrong(f"{key}: {path}: larger than {_LARGEST_FILE >> 20} MiB")
        return read[whole]

    for rule in rules:
        try:
            built.append(BuiltRule(rule, _decoder_of(rule, content_of) if rule.steps else None))
        except _Wrong as wrong:
            mistakes.append(Mistake(rule.line, str(wrong)))
        except NotInstalled as error:
            mistakes.append(Mistake(rule.line, f"decode: {error}"))
    if mistakes:
        raise BadEntries(mistakes)
    return tuple(built), seen


def build_plain(steps: Sequence[str]) -> Decoder:
    """Build a decoder whose steps need no schema. Raise NotInstalled."""
    last = steps[-1]
    if last in UNPACKERS:
        return Decoder([*_unpackers(steps)], None)
    return Decoder([*_unpackers(steps[:-1])], _self_describing(last))


class _Wrong(Exception):
    """An entry of the file is wrong; the message begins with the key."""


ContentOf = Callable[[str, str], bytes]


def _decoder_of(rule: Rule, content_of: ContentOf) -> Decoder:
    last = rule.steps[-1]
    if last in UNPACKERS:
        return build_plain(rule.steps)
    steps = list(_unpackers(rule.steps[:-1]))
    is_framed = CONFLUENT in rule.steps
    if last == "avro" and rule.schemas:
        return Decoder(steps, _numbered_avro(rule, content_of))
    if is_framed:
        steps.append(Step("Confluent", _without_header_and_indexes if last == "protobuf" else _without_header))
    if last == "protobuf":
        return Decoder(steps, _protobuf(rule, content_of))
    return Decoder(steps, _avro("schema", rule.schema, content_of) if last == "avro" else _self_describing(last))


def _unpackers(names: Sequence[str]) -> Iterator[Step]:
    return (Step(name, UNPACKERS[name]) for name in names if name in UNPACKERS)


def _without_header(body: bytes) -> bytes:
    schema_number(body)
    return body[HEADER_SIZE:]


def _without_header_and_indexes(body: bytes) -> bytes:
    return without_indexes(_without_header(body))


# Parsers. The libraries are imported here, so that an nsqadmin without such bodies never loads them.


def _self_describing(step: str) -> BodyParser:
    try:
        from nsqcommon.bodies.self_describing import JsonParser, MsgpackParser
    except ModuleNotFoundError as error:
        _refuse_missing(_NAMES[step], error)
    return _Simple(_NAMES[step], (JsonParser(exact=False) if step == "json" else MsgpackParser()).parse)


def _protobuf(rule: Rule, content_of: ContentOf) -> BodyParser:
    content = content_of("descriptors", rule.descriptors)
    try:
        from nsqcommon.bodies.protobuf import BadDescriptors, ProtobufParser
    except ModuleNotFoundError as error:
        _refuse_missing("Protobuf", error)
    try:
        return _Protobuf(
            f"Protobuf {rule.message}", ProtobufParser(content, rule.message, as_json=True, most=MOST_VALUES)
        )
    except BadDescriptors as error:
        raise _Wrong(f"descriptors: {rule.descriptors} {error}") from None


def _avro(key: str, path: str, content_of: ContentOf) -> BodyParser:
    parser = _avro_parser(key, path, content_of)
    return _Simple(f"Avro {_avro_name(content_of(key, path))}".rstrip(), parser.parse)


def _numbered_avro(rule: Rule, content_of: ContentOf) -> BodyParser:
    parsers = {number: _avro_parser("schemas", path, content_of) for number, path in rule.schemas.items()}
    names = {_avro_name(content_of("schemas", path)) for path in rule.schemas.values()}
    name = names.pop() if len(names) == 1 else ""

    def parse(body: bytes) -> object:
        number = schema_number(body)
        if number not in parsers:
            raise Unfit(Cause.UNKNOWN_SCHEMA, f"the decoders file has no schema {number}")
        return parsers[number].parse(body[HEADER_SIZE:])

    return _Simple(f"Confluent, Avro {name}".rstrip(), parse)


def _avro_parser(key: str, path: str, content_of: ContentOf) -> AvroParser:
    content = content_of(key, path)
    try:
        from nsqcommon.bodies.avro import AvroParser, BadAvroSchema
    except ModuleNotFoundError as error:
        _refuse_missing("Avro", error)
    try:
        return AvroParser(content.decode(), most=MOST_VALUES)
    except UnicodeDecodeError:
        raise _Wrong(f"{key}: {path} is not UTF-8") from None
    except BadAvroSchema as error:
        raise _Wrong(f"{key}: {path} is not an Avro schema: {error}") from None


def _avro_name(schema: bytes) -> str:
    """Return the record's full name."""
    try:
        found = json.loads(schema)
        name, space = found.get("name", ""), found.get("namespace", "")
    except (ValueError, AttributeError):
        return ""
    return f"{space}.{name}" if space and name and "." not in name else str(name)


def _refuse_missing(what: str, error: ModuleNotFoundError) -> NoReturn:
    package = (error.name or "").partition(".")[0]
    if package in ("", "nsqcommon", "nsqadmin"):
        raise error
    raise NotInstalled(
        f"{what} needs {package}, which is not installed; it comes with: {how_to_install(EXTRA)}"
    ) from None


class _Simple:
    """A parser that can't read some fields only."""

    def __init__(self, name: str, parse: Callable[[bytes], object]) -> None:
        self.name = name
        self.parse = parse

    def parsing_only(self, paths: Paths) -> Callable[[bytes], Any]:
        return self.parse

    def remark(self, body: bytes) -> str:
        return ""


class _Protobuf:
    def __init__(self, name: str, parser: ProtobufParser) -> None:
        self.name = name
        self._parser = parser
        self.parse = parser.parse

    def parsing_only(self, paths: Paths) -> Callable[[bytes], object]:
        return self._parser.parsing_only(paths)

    def remark(self, body: bytes) -> str:
        numbers = self._parser.unknown_fields(body)
        if not numbers:
            return ""
        shown = ", ".join(map(str, numbers[:_MOST_SHOWN])) + ("…" if len(numbers) > _MOST_SHOWN else "")
        return f"Fields that {self.name.removeprefix('Protobuf ')} does not have are not shown: {shown}"
