"""Makes JSON of the values that parsers return: the forms of Protobuf's JSON, also for Avro's and MessagePack's types.

bytes                   text in Base64
NaN and infinities      "NaN", "Infinity", "-Infinity"
times and dates         ISO 8601: "2026-03-01T12:00:00.5Z"; without Z if they have no zone
decimals                a number, if a float has all of its digits, otherwise text
whole numbers           a number with all its digits, however large; Protobuf's JSON has those of 64 bits as text
keys that aren't text   as text
"""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

DEEPEST: Final = 100  # levels
_EXACT_DIGITS: Final = 15  # of a decimal number in a float
_MOST_BITS: Final = 4096  # of a whole number


class TooMuch(ValueError):
    """The value is beyond a bound; the message says which."""


def as_json(value: object, *, most: int, hidden_bytes: str | None = None) -> Any:
    """Return the value as `json.dumps` takes it. Raises TooMuch if it has more than `most` values, or is too deep.

    With `hidden_bytes`, that text stands for each run of bytes, and for the value of a key that is bytes: if a rule says
    which fields to hide, it can't name this one.
    """
    return _Writer(most, hidden_bytes).write(value, 1)


class _Writer:
    def __init__(self, most: int, hidden_bytes: str | None) -> None:
        self._most = most
        self._left = most
        self._hidden_bytes = hidden_bytes

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            if value.bit_length() > _MOST_BITS:
                raise TooMuch(f"has a number of more than {_MOST_BITS:,} bits")
            return value
        if kind is float:
            return value if math.isfinite(value) else _word_of(value)
        if kind is dict:
            self._enter(len(value), depth)
            return {
                key if type(key) is str else self._key(key): self._hidden_bytes
                if self._hidden_bytes is not None and isinstance(key, bytes | tuple)
                else self.write(it, depth + 1)
                for key, it in value.items()
            }
        if kind is list or kind is tuple:
            self._enter(len(value), depth)
            return [self.write(it, depth + 1) for it in value]
        return self._special(value, depth)

    def _enter(self, count: int, depth: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooMuch(f"has more than {self._most:,} values")
        if depth > DEEPEST:
            raise TooMuch(f"is nested deeper than {DEEPEST} levels")

    def _special(self, value: Any, depth: int) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return b64encode(value).decode() if self._hidden_bytes is None else self._hidden_bytes
        if isinstance(value, datetime):
            return value.isoformat().replace("+00:00", "Z")
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, timedelta):
            return f"{value.total_seconds()}s"
        if isinstance(value, Decimal):
            return _number_of(value)
        if isinstance(value, UUID):
            return str(value)
        if hasattr(value, "code") and hasattr(value, "data"):  # an extension type of MessagePack
            return {"ext": value.code, "data": self.write(bytes(value.data), depth)}
        return str(value)

    def _key(self, key: Any) -> str:
        if isinstance(key, bool):
            return str(key).lower()
        return "null" if key is None else str(self.write(key, DEEPEST))


def _word_of(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number_of(value: Decimal) -> float | int | str:
    if not value.is_finite():
        return "NaN" if value.is_nan() else _word_of(float(value))
    _, digits, exponent = value.as_tuple()
    if len(digits) <= _EXACT_DIGITS and isinstance(exponent, int) and -_EXACT_DIGITS <= exponent <= _EXACT_DIGITS:
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)
