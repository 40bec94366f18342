"""The lower part of docs/reference/openapi/nsqadmin.yaml: schemas of the records that nsqadmin's own API answers with.

The upper part, paths and all other schemas, is written by people and kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import yaml

from nsqadmin.actions.undo import Undone
from nsqadmin.cluster.model import Producer
from nsqadmin.incidents.model import Mark, Numbers
from nsqadmin.messages.buried_actions import Wanted
from nsqadmin.messages.deferred_actions import RecallWanted
from nsqadmin.messages.model import Message
from scripts.nsqadmin_reference import PARTS, about, comments_of

PATH: Final = Path("docs/reference/openapi/nsqadmin.yaml")
BORDER: Final = "    # Below this line: written by scripts/make-reference from the records in the code. Change their comments there.\n"
# Schemas that people have written, because these records are not sent field by field.
_BY_HAND: Final = frozenset({Message})
_NOT_SENT: Final = frozenset({Producer})  # but in the file of `/api/v2/snapshot`, which has no schema
# What PARTS lacks: docs/reference/nsqadmin-api.md describes these beside their endpoints.
_MORE: Final[tuple[type, ...]] = (Undone, Mark, Numbers, RecallWanted, Wanted)
_NUMBERS: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def page(root: Path) -> str:
    """Return the whole file, with its lower part written anew."""
    written, _, _ = (root / PATH).read_text(encoding="utf-8").partition(BORDER)
    generated = yaml.safe_dump(dict(_schemas()), sort_keys=False, default_flow_style=None, width=130)
    return written + BORDER + indent(generated, "    ")


def _schemas() -> Iterator[tuple[str, object]]:
    for kind in (*(kind for kinds in PARTS.values() for kind in kinds), *_MORE):
        if kind not in _BY_HAND | _NOT_SENT:
            yield kind.__name__, _record(kind)


def _record(kind: type) -> dict[str, object]:
    assert is_dataclass(kind)
    comments, hints = comments_of(kind), get_type_hints(kind)
    said = {"description": text} if (text := about(kind).strip()) else {}
    return {
        "type": "object",
        **said,
        "required": [it.name for it in fields(kind)],
        "properties": {it.name: _described(_schema(hints[it.name]), comments.get(it.name, "")) for it in fields(kind)},
    }


def _described(schema: dict[str, Any], comment: str) -> dict[str, Any]:
    return {**schema, "description": comment} if comment else schema


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _or_null(_schema(next(it for it in arguments if it is not NoneType)))
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is tuple:
        size = len(arguments)
        return {"type": "array", "prefixItems": [*map(_schema, arguments)], "minItems": size, "maxItems": size}
    if origin is not None:  # a Mapping with strings as keys
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [str(word) for word in hint]}
    if isinstance(hint, type) and is_dataclass(hint):
        return {"$ref": f"#/components/schemas/{hint.__name__}"}
    return {"type": _NUMBERS[hint]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    plain = schema.get("type") in _NUMBERS.values() and "enum" not in schema
    return {"type": [schema["type"], "null"]} if plain else {"oneOf": [schema, {"type": "null"}]}
