"""JSON as the standard defines it. Python's own parser also accepts NaN, Infinity, and numbers too big for a float."""

from __future__ import annotations

import json
import math
from typing import Any, Final


def loads(text: str | bytes) -> Any:
    """Parse the text. Raise ValueError, or RecursionError if it is nested too deeply."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def repaired(document: Any) -> Any:
    """Replace lone surrogates such as `\\ud800`, so that the document can be written as UTF-8. Raise ValueError."""
    try:
        return json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too big")
    return number


DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
