"""Parses a decoders file:

    [[decoder]]                                  # the first entry that matches a message decides
    topic = "orders.*"                           # * is any text; without this line: all topics
    content_type = "application/x-protobuf"      # without this line: whatever the header says
    decode = ["gzip", "protobuf"]                # the steps, in order
    descriptors = "shop.desc"                    # files are relative to this one
    message = "shop.Order"

We refuse unknown keys, and keys that can't have an effect, as in policy files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nsqcommon.entries_file import BadEntries, Mistake, entries_in
from nsqcommon.name_patterns import is_pattern, matcher

ANY: Final = "*"
NONE: Final = "none"
CONFLUENT: Final = "confluent"
UNPACKING: Final = ("gzip", "deflate", "zstd", "snappy")
PARSING: Final = ("protobuf", "avro", "msgpack", "json")
STEPS: Final = (*UNPACKING, CONFLUENT, *PARSING, NONE)
_MOST_STEPS: Final = 5
_MOST_ENTRIES: Final = 1000
_KEYS: Final = ("topic", "content_type", "decode", "descriptors", "message", "schema", "schemas")
_STEP_OF: Final[Mapping[str, str]] = {
    "descriptors": "protobuf",
    "message": "protobuf",
    "schema": "avro",
    "schemas": "avro",
}
_is_number: Final = re.compile(r"\d{1,10}", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of the file."""

    line: int
    topic: str = ANY
    content_type: str = ""  # empty: any
    steps: tuple[str, ...] = ()  # empty: leave the body alone
    descriptors: str = ""  # path of a file, as written
    message: str = ""
    schema: str = ""  # path of a file
    schemas: Mapping[int, str] = field(default_factory=dict)  # paths by Confluent's number
    is_of: Callable[[str], object] = field(default=bool, compare=False)  # whether a topic matches

    def applies_to(self, topic: str, content_type: str) -> bool:
        return (not self.content_type or self.content_type == content_type) and bool(self.is_of(topic))


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the text of a decoders file. Raise BadEntries."""
    tables = entries_in(text, "decoder")
    if not tables:
        raise BadEntries([Mistake(0, "expected at least one [[decoder]]")])
    if len(tables) > _MOST_ENTRIES:
        raise BadEntries([Mistake(0, f"more than {_MOST_ENTRIES:,} entries")])
    mistakes: list[Mistake] = []
    rules: list[Rule] = []
    for line, table in tables:
        wrong = list(_mistakes_in(table))
        mistakes += [Mistake(line, text) for text in wrong]
        if not wrong:
            rules.append(_rule(line, table))
    mistakes += _without_effect(rules)
    if mistakes:
        raise BadEntries(mistakes)
    return tuple(rules)


def _rule(line: int, table: Mapping[str, Any]) -> Rule:
    topic = table.get("topic", ANY)
    steps = _steps_in(table)
    return Rule(
        line=line,
        topic=topic,
        content_type=table.get("content_type", "").strip().lower(),
        steps=() if steps == (NONE,) else steps,
        descriptors=table.get("descriptors", ""),
        message=table.get("message", ""),
        schema=table.get("schema", ""),
        schemas={int(number): path for number, path in table.get("schemas", {}).items()},
        is_of=matcher(topic),
    )


def _steps_in(table: Mapping[str, Any]) -> tuple[str, ...]:
    decode = table.get("decode", ())
    return (decode,) if isinstance(decode, str) else tuple(decode)


def _mistakes_in(table: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{key}: unknown key; there are {', '.join(_KEYS)}" for key in table if key not in _KEYS)
    for key in ("topic", "content_type", "descriptors", "message", "schema"):
        if key in table and (not isinstance(table[key], str) or not table[key].strip()):
            yield f"{key}: expected text, not {table[key]!r}"
    if isinstance(topic := table.get("topic", ANY), str) and topic.strip() and not is_pattern(topic):
        yield f"topic: {topic!r} is neither a name nor a pattern"
    if isinstance(kind := table.get("content_type"), str) and ";" in kind:
        yield f"content_type: expected a type without parameters, not {kind!r}"
    wrong = list(_wrong_steps(table.get("decode")))
    yield from wrong
    yield from _wrong_schemas(table.get("schemas", {}))
    if not wrong:
        yield from _wrong_keys(table, _steps_in(table))


def _wrong_steps(decode: object) -> Iterator[str]:
    if decode is None:
        yield f'decode: is missing, as in decode = "msgpack"; there are {", ".join(STEPS)}'
        return
    steps = [decode] if isinstance(decode, str) else decode
    if not isinstance(steps, list) or not steps or not all(isinstance(it, str) for it in steps):
        yield f"decode: expected a step or a list of steps, not {decode!r}"
        return
    if unknown := [it for it in steps if it not in STEPS]:
        yield f"decode: unknown step {unknown[0]!r}; there are {', '.join(STEPS)}"
    elif len(steps) > _MOST_STEPS:
        yield f"decode: more than {_MOST_STEPS} steps"
    elif NONE in steps and len(steps) > 1:
        yield f'decode: "{NONE}" stands alone'
    elif early := [it for it in steps[:-1] if it in PARSING]:
        yield f"decode: {early[0]!r} makes JSON, so it must be the last step"
    elif CONFLUENT in steps and (steps.count(CONFLUENT) > 1 or steps[-2:-1] != [CONFLUENT]):
        yield f'decode: "{CONFLUENT}" must come just before {", ".join(PARSING[:2])} or {PARSING[-1]}'
    elif CONFLUENT in steps and steps[-1] == "msgpack":
        yield f'decode: there is no "{CONFLUENT}" for msgpack'


def _wrong_schemas(schemas: object) -> Iterator[str]:
    if not isinstance(schemas, dict) or not all(isinstance(it, str) and it for it in schemas.values()):
        yield 'schemas: expected files by number, as in schemas = { 17 = "order.avsc" }'
    elif wrong := [it for it in schemas if not _is_number(it)]:
        yield f"schemas: {wrong[0]!r} is no number of a schema"


def _wrong_keys(table: Mapping[str, Any], steps: tuple[str, ...]) -> Iterator[str]:
    for key, step in _STEP_OF.items():
        if key in table and step not in steps:
            yield f'{key}: it has no effect without "{step}" in decode'
    if "protobuf" in steps:
        if "descriptors" not in table:
            yield "descriptors: is missing: the file that protoc --include_imports --descriptor_set_out writes"
        if "message" not in table:
            yield 'message: is missing: a full name in the descriptors, as in message = "shop.Order"'
    if "avro" in steps and ("schema" in table) == ("schemas" in table):
        yield "schema: avro needs the file with the schema, as schema or, with confluent, by number as schemas"
    if "schemas" in table and CONFLUENT not in steps:
        yield f'schemas: it has no effect without "{CONFLUENT}" in decode'


def _without_effect(rules: Sequence[Rule]) -> Iterator[Mistake]:
    """Yield a mistake for each entry that an earlier one hides."""
    for at, rule in enumerate(rules):
        for earlier in rules[:at]:
            if earlier.topic in (ANY, rule.topic) and earlier.content_type in ("", rule.content_type):
                text = f"it has no effect, because line {earlier.line} decides it for all of these messages"
                yield Mistake(rule.line, text)
                break
