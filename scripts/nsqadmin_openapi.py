"""The lower part of docs/reference/openapi/nsqadmin.yaml: schemas of the records that nsqadmin's own API answers with.

The upper part, paths and all other schemas, is written by people and kept as it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import yaml

from nsqadmin.actions import plan as actions
from nsqadmin.actions.undo import Undone
from nsqadmin.cluster import model
from nsqadmin.cluster.message_groups import MessageGroup
from nsqadmin.cluster.recording import members_of
from nsqadmin.diagnosis.incident import Mark, Numbers, Turn
from nsqadmin.messages import (
    buried,
    buried_actions,
    deferred,
    deferred_actions,
    group_actions,
    in_flight,
    selection_plan,
)
from nsqadmin.messages import model as messages

PATH: Final = Path("docs/reference/openapi/nsqadmin.yaml")
BORDER: Final = "    # Below this line: written by scripts/make-reference from the records in the code. Change their comments there.\n"
# The schemas in their order. messages.Message isn't sent field by field, so its schema is in the upper part.
_RECORDS: Final[tuple[type, ...]] = (
    model.Totals,
    model.Rates,
    model.Node,
    model.RemoteCopy,
    model.Memory,
    model.Lookupd,
    model.Silent,
    model.Unanswered,
    model.Topic,
    model.TopicNode,
    model.Reader,
    model.ReaderNode,
    model.Untold,
    model.Channel,
    model.ChannelNode,
    MessageGroup,
    model.BuriedReason,
    model.Stall,
    model.Client,
    model.Latency,
    model.Percentile,
    model.Finding,
    model.Evidence,
    model.Series,
    model.Activity,
    actions.Action,
    actions.Plan,
    actions.Consequence,
    actions.Call,
    actions.Receipt,
    actions.Step,
    messages.Gap,
    messages.NodeLog,
    messages.Published,
    messages.ReplayPlan,
    messages.ReplayReceipt,
    messages.Redelivered,
    buried.NodeSummary,
    buried.NodeReason,
    buried.Job,
    buried_actions.Share,
    selection_plan.LeftOut,
    buried_actions.Taken,
    deferred.NodeDeferred,
    in_flight.NodeInFlight,
    in_flight.Holder,
    deferred_actions.RecallShare,
    deferred_actions.Recalled,
    group_actions.GroupShare,
    group_actions.GroupChanged,
    Undone,
    Mark,
    Turn,
    Numbers,
    deferred_actions.RecallWanted,
    group_actions.GroupWanted,
    buried_actions.Wanted,
)
_NUMBERS: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_COMMENTED: Final = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)


def page(root: Path) -> str:
    """Return the whole file, with its lower part written anew."""
    written, _, _ = (root / PATH).read_text(encoding="utf-8").partition(BORDER)
    generated = yaml.safe_dump(dict(_schemas()), sort_keys=False, default_flow_style=None, width=130)
    return written + BORDER + indent(generated, "    ")


def _schemas() -> Iterator[tuple[str, object]]:
    for kind in _RECORDS:
        yield kind.__name__, _record(kind)


def _record(kind: type) -> dict[str, object]:
    assert is_dataclass(kind)
    comments, hints = _comments(kind), get_type_hints(kind)
    said = {"description": text} if (text := _about(kind)) else {}
    return {
        "type": "object",
        **said,
        "required": members_of(kind),
        "properties": {name: _described(_schema(hints[name]), comments.get(name, "")) for name in members_of(kind)},
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


def _about(kind: type) -> str:
    """Return what the record's docstring says of it, in words of JSON."""
    text = inspect.getdoc(kind) or ""
    says_nothing = text.startswith(f"{kind.__name__}(")  # a dataclass without a docstring makes one
    return "" if says_nothing else _in_json(text).strip()


def _comments(kind: type) -> dict[str, str]:
    """Return the comment beside each field, in words of JSON."""
    sources = [inspect.getsource(it) for it in reversed(kind.__mro__) if is_dataclass(it)]
    return {name: _in_json(text) for source in sources for name, text in _COMMENTED.findall(source)}


def _in_json(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text)
