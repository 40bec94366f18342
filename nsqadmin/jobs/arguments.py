"""The arguments of a job in the body of its message, as each library writes them. Nothing is executed or imported.

Celery       kombu's JSON, with the task's JSON (or base64 of it) as text in `body`: [args, kwargs, embed]
Django       JSON with `args` and `kwargs`
taskiq       JSON with `args`, `kwargs` and `labels`
dramatiq     JSON with `args`, `kwargs` and `options`
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nsqcommon.job_reports import printable

_MOST: Final = 1 << 20  # bytes of a body: decoding a larger one would hold up others
_INNER: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """A call's arguments, or why they can't be shown."""

    args: str = ""  # as JSON
    kwargs: str = ""
    options: str = ""  # what the library keeps besides: labels, options
    problem: str = ""


def arguments_of(body: bytes | None, library: str) -> Arguments:
    """Decode the arguments. The library is the one in the message's headers, which may be wrong."""
    if body is None:
        return Arguments(problem="You do not have the right “payload”")
    if len(body) > _MOST:
        return Arguments(problem=f"The body is larger than {_MOST >> 20} MiB")
    try:
        said = json.loads(body)
        if not isinstance(said, dict):
            raise TypeError("no object")
        if library == "celery":
            return _of_celery(said)
        args, kwargs = said["args"], said["kwargs"]
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise TypeError("no arguments")
        return Arguments(
            args=_pretty(args),
            kwargs=_pretty(kwargs),
            options=_pretty(said.get("labels") or said.get("options") or ""),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return Arguments(problem=f"They are not in the usual form of {library or 'a job queue'}: see the body")


def _of_celery(said: Mapping[str, Any]) -> Arguments:
    kind = said.get("content-type", _INNER)
    if kind != _INNER:
        return Arguments(problem=f"They are serialized as {printable(str(kind)):.60}, which is not decoded here")
    body = said["body"]
    encoding = said["properties"].get("body_encoding")
    inner = json.loads(b64decode(body) if encoding == "base64" else body)
    args, kwargs, *embed = inner
    return Arguments(args=_pretty(args), kwargs=_pretty(kwargs), options=_pretty(_set_ones(embed[0] if embed else {})))


def _set_ones(embed: object) -> object:
    """Return callbacks, chains and chords, as far as there are any."""
    if not isinstance(embed, dict):
        return ""
    return {name: value for name, value in embed.items() if value} or ""


def _pretty(value: object) -> str:
    return "" if value == "" else printable(json.dumps(value, ensure_ascii=False, indent=2))
