"""JSON as the standard has it: Python's own reader also takes NaN, Infinity, and numbers that become it."""

from __future__ import annotations

import json
import math
from typing import Any, Final


def loads(text: str | bytes) -> Any:
    """Raises ValueError, and RecursionError for what is nested too deeply."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def repaired(document: Any) -> Any:
    """Replace halves of characters, as `\\ud800` is one, so that the document can be written as UTF-8. Raises ValueError."""
    try:
        return json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too big")
    return number


DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
