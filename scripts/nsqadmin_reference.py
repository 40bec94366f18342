"""docs/reference/nsqadmin-records.md, from the records that nsqadmin's own API answers with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from nsqadmin.actions import plan as actions
from nsqadmin.cluster import model
from nsqadmin.messages import buried, buried_actions, deferred, deferred_actions, selection_plan
from nsqadmin.messages import model as messages

ABOUT: Final = """\
# Records of nsqadmin's API

<!-- Written by scripts/make-reference from nsqadmin/cluster/model.py and its like. Change their comments, not this page. -->

The records in the answers of [`/api/v2`](nsqadmin-api.md#ours-looking), field by field.
Times are seconds since 1970, durations are seconds, rates are per second, and `null` means unknown, never zero.
Later versions may add fields: ignore those that you do not know.
"""
# In the order in which a reader meets them.
PARTS: Final[Mapping[str, tuple[type, ...]]] = {
    "The cluster": (
        model.Totals,
        model.Rates,
        model.Node,
        model.RemoteCopy,
        model.Memory,
        model.Lookupd,
        model.Silent,
        model.Unanswered,
    ),
    "Topics and channels": (
        model.Topic,
        model.TopicNode,
        model.Reader,
        model.ReaderNode,
        model.Untold,
        model.Channel,
        model.ChannelNode,
        model.Client,
        model.Producer,
        model.Latency,
        model.Percentile,
    ),
    "Diagnosis, history and activity": (model.Finding, model.Evidence, model.Series, model.Activity),
    "Actions": (
        actions.Action,
        actions.Plan,
        actions.Consequence,
        actions.Call,
        actions.Receipt,
        actions.Step,
    ),
    "Messages": (
        messages.Message,
        messages.Gap,
        messages.NodeLog,
        messages.Published,
        messages.ReplayPlan,
        messages.ReplayReceipt,
        messages.Redelivered,
    ),
    "Buried messages": (
        buried.NodeSummary,
        buried.NodeReason,
        buried.Job,
        buried_actions.Share,
        selection_plan.LeftOut,
        buried_actions.Taken,
    ),
    "Deferred messages": (
        deferred.NodeDeferred,
        deferred_actions.RecallShare,
        deferred_actions.Recalled,
    ),
}
_WORDS: Final[Mapping[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    bytes: "[a body](nsqadmin-api.md#ours-messages)",
}
_COMMENTED: Final = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)


def page() -> str:
    return ABOUT + "".join(
        f"\n## {title}\n" + "".join(_record(kind) for kind in kinds) for title, kinds in PARTS.items()
    )


def _record(kind: type) -> str:
    assert is_dataclass(kind)
    comments = comments_of(kind)
    hints = get_type_hints(kind)
    rows = "".join(
        f"| `{field.name}` | {_type_of(hints[field.name])} | {_escaped(comments.get(field.name, ''))} |\n"
        for field in fields(kind)
    )
    return f"\n### {kind.__name__}\n\n{_about(kind)}| field | type | |\n| --- | --- | --- |\n{rows}"


def _about(kind: type) -> str:
    text = about(kind)
    return f"{_escaped(text)}\n\n" if text else ""


def about(kind: type) -> str:
    """Return what the record's docstring says of it in JSON."""
    text = inspect.getdoc(kind) or ""
    says_nothing = text.startswith(f"{kind.__name__}(")  # a dataclass without a docstring makes one
    return "" if says_nothing else _in_json(text)


def comments_of(kind: type) -> dict[str, str]:
    """Return the comment beside each field, in words of JSON."""
    sources = (inspect.getsource(it) for it in reversed(kind.__mro__) if is_dataclass(it))
    return {name: _in_json(text) for source in sources for name, text in _COMMENTED.findall(source)}


def _type_of(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        known = next(it for it in arguments if it is not NoneType)
        return f"{_type_of(known)}, or null"
    if origin is tuple and arguments[-1] is Ellipsis:
        member = _type_of(arguments[0])
        return f"list of ({member})" if "," in member else f"list of {member}"
    if origin is tuple:
        return f"[{', '.join(map(_type_of, arguments))}]"
    if origin is not None:  # a Mapping with strings as keys
        return f"object of {_type_of(arguments[1])}"
    if issubclass(hint, StrEnum):
        return "one of " + ", ".join(f"`{word}`" for word in hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return _WORDS[hint]


def _in_json(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
