"""JSON as NSQ's daemons write and read it, which is as Go does.

Written: compact, keys in the given order, `<`, `>` and `&` escaped, text as raw UTF-8. Read: field names whatever
their case, `null` for "not given", and integers only from integer literals.
"""

from __future__ import annotations

import json
import re
from typing import Final

# Written


def dumps(value: object) -> bytes:
    """Raises ValueError for NaN and infinities.

    Fractions below 0.0001 are written with Python's exponent (1e-05), which Go would write out; no such number
    is in what the daemons say.
    """
    return _UNLIKE_GO.sub(_as_go, _encode(_with_whole_numbers(value))).encode()


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# What json writes otherwise than Go. All of it can only be inside of strings; a backslash that is itself escaped comes
# first, so that what follows it is not taken for a short escape.
_UNLIKE_GO: Final = re.compile(r"\\\\|\\b|\\f|[<>&\u2028\u2029\ud800-\udfff]")
_GO: Final = {"\\\\": "\\\\", "\\b": "\\u0008", "\\f": "\\u000c"} | {
    character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"
}


def _as_go(found: re.Match[str]) -> str:
    return _GO.get(found[0], "\ufffd")  # what is left are lone surrogates: text that never was valid


_BELOW_EXPONENTS: Final = 1e21  # from there on Go writes whole numbers with an exponent, as Python does


def _with_whole_numbers(value: object) -> object:
    """The same value, with 1.0 as 1."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _BELOW_EXPONENTS else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(member) for member in value]
    return value


# Read


class JsonError(ValueError):
    """The text is no JSON, or a field does not have the type that it should."""


class JsonObject(dict[str, object]):
    """An object as read. `pairs` keeps what a dictionary loses: names that stand there more than once."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def loads(data: bytes) -> object:
    """What the text says; objects come as JsonObject. Raises JsonError.

    Only UTF-8 without a byte order mark is JSON here. In strings, bytes that are not UTF-8 and escapes of
    half a surrogate pair become U+FFFD, one each.
    """
    text = _SURROGATE.sub("\ufffd", data.decode("utf-8", "surrogateescape"))
    try:
        value: object = _decoder.decode(text)
        return _repaired(value) if _SURROGATE_ESCAPE.search(data) else value
    except (ValueError, RecursionError) as error:  # the latter: nested more deeply than any document of ours
        raise JsonError(str(error)) from error


class Fields:
    """The fields of an object, as NSQ's decoder takes them.

    Names match whatever their case. `null` leaves a field as it was; otherwise the last one of a name counts, but all
    of them must have the right type, else JsonError is raised. An object that is `null` has no fields.
    """

    __slots__ = ("_values",)

    def __init__(self, value: object) -> None:
        if value is not None and not isinstance(value, JsonObject):
            raise JsonError(f"expected an object, got {_kind(value)}")
        self._values: dict[str, list[object]] = {}
        for name, member in value.pairs if value is not None else ():
            if member is not None:
                self._values.setdefault(name.lower(), []).append(member)

    def text(self, name: str, default: str = "") -> str:
        for value in self._values.get(name, ()):
            if not isinstance(value, str):
                raise _wrong_type(name, "a string", value)
            default = value
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        for value in self._values.get(name, ()):
            if not isinstance(value, bool):
                raise _wrong_type(name, "true or false", value)
            default = value
        return default

    def integer(self, name: str, default: int = 0, *, bits: int = 64) -> int:
        """A signed integer of that many bits, from an integer literal: neither 1000.0 nor 1e3 nor "1000"."""
        for value in self._values.get(name, ()):
            # A bool is an int to Python, but not to JSON.
            if isinstance(value, bool) or not isinstance(value, int):
                raise _wrong_type(name, "an integer", value)
            if not -(1 << bits - 1) <= value < 1 << bits - 1:
                raise JsonError(f"{name}: does not fit {bits} bits")
            default = value
        return default

    def items(self, name: str) -> list[object]:
        """The members of a list; empty when it is not there."""
        items: list[object] = []
        for value in self._values.get(name, ()):
            if not isinstance(value, list):
                raise _wrong_type(name, "a list", value)
            items = value
        return items


_LONGEST_INTEGER: Final = 100  # digits: far beyond any field, far below what int() refuses

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def _integer(digits: str) -> int:
    # However long the number, if no field asks for it then it does no harm; if one does, it is out of range.
    return int(digits[:_LONGEST_INTEGER])


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_decoder: Final = json.JSONDecoder(object_pairs_hook=JsonObject, parse_int=_integer, parse_constant=_refuse)


def _repaired(value: object) -> object:
    """The same value without lone surrogates, which could not be encoded again."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, JsonObject):
        return JsonObject([(_SURROGATE.sub("\ufffd", name), _repaired(member)) for name, member in value.pairs])
    if isinstance(value, list):
        return [_repaired(member) for member in value]
    return value


def _wrong_type(name: str, expected: str, value: object) -> JsonError:
    return JsonError(f"{name}: expected {expected}, got {_kind(value)}")


def _kind(value: object) -> str:
    return {dict: "an object", JsonObject: "an object", list: "a list", str: "a string", bool: "a bool"}.get(
        type(value), "null" if value is None else "a number"
    )
