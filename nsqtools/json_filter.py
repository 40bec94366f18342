"""CORE of nsq_to_nsq: decides which messages to forward, and which parts of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Dropped(StrEnum):
    """Why a message is dropped."""

    NOT_JSON = "Unable to decode json"
    NO_FIELD = "missing field to check required value"
    OTHER = "not required"  # not logged


class _Number(str):
    """A number as written, so that no digit gets lost."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonFilter:
    """The required field and value, and the fields to keep. If all are empty, every message passes unchanged."""

    field: str = ""
    value: str = ""
    whitelist: Sequence[str] = ()

    def apply(self, body: bytes) -> bytes | Dropped:
        """Return the body to forward, or why the message is dropped."""
        if not self.field and not self.whitelist:
            return body
        try:
            text = body.decode("utf-8", "replace")  # from bytes, json would also accept UTF-16
            found = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return Dropped.NOT_JSON
        if found is None:
            found = {}
        if not isinstance(found, dict):
            return Dropped.NOT_JSON
        if self.field:
            reason = self._missing(found)
            if reason is not None:
                return reason
        if not self.whitelist:
            return body
        kept = {name: found[name] for name in sorted(set(self.whitelist)) if name in found}
        return _LONE_SURROGATE.sub("\ufffd", _written(kept)).encode()

    def _missing(self, found: dict[str, Any]) -> Dropped | None:
        if self.field not in found:
            return Dropped.NO_FIELD if self.value else Dropped.OTHER
        if not self.value:
            return None
        value = found[self.field]
        if isinstance(value, _Number):
            return None if _is_number(self.value, value) else Dropped.OTHER
        return None if isinstance(value, str) and value == self.value else Dropped.OTHER


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _is_number(text: str, number: str) -> bool:
    try:
        return float(text) == float(number)
    except ValueError:
        return False


_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # allowed in JSON, but not in UTF-8
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def _written(value: Any) -> str:
    """Write JSON like NSQ's Go code: compact, with sorted keys and unchanged numbers, and safe in HTML."""
    match value:
        case _Number():
            return str(value)
        case dict():
            return "{" + ",".join(f"{_written(name)}:{_written(value[name])}" for name in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPES)
