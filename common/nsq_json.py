"""JSON as NSQ's daemons write and read it, which is as Go does.

Written: compact, keys in the given order, `<`, `>` and `&` escaped, text as raw UTF-8. Read: field names whatever
their case, `null` for "not given", and integers only from integer literals.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
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


def loads(data: bytes) -> object:
    """Return the whole document, with objects as dictionaries: of equal names the last one counts. Raises JsonError.

    Only UTF-8 without a byte order mark is JSON here. In strings, bytes that are not UTF-8 and escapes of
    half a surrogate pair become U+FFFD, one each.
    """
    try:
        return _plain(read(data))
    except RecursionError as error:  # what the scanner still takes may be too deep here
        raise JsonError(str(error)) from error


def read(data: bytes) -> object:
    """Return the document for `Fields`, which looks at the few values that somebody asks for. Raises JsonError.

    Every client can send a document, so reading it must be cheap whatever it holds: a Python function that is called
    for each value took 25 ms for 64 KiB. Therefore the scanner of `json`, which is written in C, calls nothing but C,
    and what is left to do is done to the values that are asked for:

        {"a": 1, "a": 2}    (("a", b"1"), ("a", b"2"))    a tuple of pairs, so that equal names are kept
        -12                 b"-12"                        int() refuses thousands of digits, even where nobody asks
        "a<ff>"             "a<half a surrogate pair>"    becomes U+FFFD
    """
    text = data.decode("utf-8", "surrogateescape")
    try:
        with _uncollected():
            value: object = _decoder.decode(text)
    except (ValueError, RecursionError) as error:  # the latter: nested more deeply than any document of ours
        raise JsonError(str(error)) from error
    return value


class Fields:
    """The fields of an object, as NSQ's decoder takes them.

    Names match whatever their case. `null` leaves a field as it was; otherwise the last one of a name counts, but all
    of them must have the right type, else JsonError is raised. An object that is `null` has no fields.
    """

    __slots__ = ("_values",)

    def __init__(self, value: object) -> None:
        """`value` comes from `read`, or is such a value's own item."""
        if value is not None and not isinstance(value, tuple):
            raise JsonError(f"expected an object, got {_kind(value)}")
        self._values: dict[str, list[object]] = {}
        for name, member in value or ():
            if member is not None:
                self._values.setdefault(name.lower(), []).append(member)

    def text(self, name: str, default: str = "") -> str:
        for value in self._values.get(name, ()):
            if not isinstance(value, str):
                raise _wrong_type(name, "a string", value)
            default = value
        return _repaired(default)

    def flag(self, name: str, default: bool = False) -> bool:
        for value in self._values.get(name, ()):
            if not isinstance(value, bool):
                raise _wrong_type(name, "true or false", value)
            default = value
        return default

    def integer(self, name: str, default: int = 0, *, bits: int = 64) -> int:
        """A signed integer of that many bits, from an integer literal: neither 1000.0 nor 1e3 nor "1000"."""
        for value in self._values.get(name, ()):
            if not isinstance(value, bytes):
                raise _wrong_type(name, "an integer", value)
            number = _integer(value)
            if not -(1 << bits - 1) <= number < 1 << bits - 1:
                raise JsonError(f"{name}: does not fit {bits} bits")
            default = number
        return default

    def items(self, name: str) -> list[object]:
        """Return the members of a list: strings as in `text`, objects for `Fields`. Empty when it is not there."""
        items: list[object] = []
        for value in self._values.get(name, ()):
            if not isinstance(value, list):
                raise _wrong_type(name, "a list", value)
            items = value
        return [_repaired(item) if isinstance(item, str) else item for item in items]


_LONGEST_INTEGER: Final = 100  # digits: far beyond any field, far below what int() refuses

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_decoder: Final = json.JSONDecoder(object_pairs_hook=tuple, parse_int=str.encode, parse_constant=_refuse)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps the cyclic collector away from a document in the making, where it finds nothing however often it looks.

    Half a million lists in 1 MiB made it look at everything there is, which took ten times as long as reading them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _integer(digits: bytes) -> int:
    # However long the number, if no field asks for it then it does no harm; if one does, it is out of range.
    return int(digits[:_LONGEST_INTEGER])


def _repaired(text: str) -> str:
    """Return the text without lone surrogates, which could not be encoded again."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _plain(value: object) -> object:
    match value:
        case str():
            return _repaired(value)
        case bytes():
            return _integer(value)
        case tuple():
            return {_repaired(name): _plain(member) for name, member in value}
        case list():
            return [_plain(member) for member in value]
    return value


def _wrong_type(name: str, expected: str, value: object) -> JsonError:
    return JsonError(f"{name}: expected {expected}, got {_kind(value)}")


def _kind(value: object) -> str:
    return {tuple: "an object", list: "a list", str: "a string", bool: "a bool"}.get(
        type(value), "null" if value is None else "a number"
    )
