"""JSON as NSQ's daemons write and read it, which is Go's way.

Written: compact, keys in the given order, `<`, `>` and `&` escaped, text as raw UTF-8. Read: field names in any case,
`null` for "not given", and integers only from integer literals.
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
    """Write a value as JSON. Raise ValueError for NaN and infinities.

    Fractions below 0.0001 are written with Python's exponent (1e-05), which Go would write out. The daemons send no
    such number.
    """
    return _UNLIKE_GO.sub(_as_go, _encode(_with_whole_numbers(value))).encode()


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# What json writes in another way than Go. All of it occurs in strings only. An escaped backslash is matched first, so
# that the character after it is not taken for part of a short escape.
_UNLIKE_GO: Final = re.compile(r"\\\\|\\b|\\f|[<>&\u2028\u2029\ud800-\udfff]")
_GO: Final = {"\\\\": "\\\\", "\\b": "\\u0008", "\\f": "\\u000c"} | {
    character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"
}


def _as_go(found: re.Match[str]) -> str:
    return _GO.get(found[0], "\ufffd")  # the rest are lone surrogates: text that was never valid


_BELOW_EXPONENTS: Final = 1e21  # from here on Go writes whole numbers with an exponent, as Python does


def _with_whole_numbers(value: object) -> object:
    """Return the same value with 1 in place of 1.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _BELOW_EXPONENTS else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(member) for member in value]
    return value


# Read


class JsonError(ValueError):
    """The text is no JSON, or a field does not have the expected type."""


def loads(data: bytes) -> object:
    """Return the whole document, with objects as dictionaries; the last of equal names counts. Raise JsonError.

    Only UTF-8 without a byte order mark is JSON here. In strings, bytes that are not UTF-8 and escapes of half a
    surrogate pair become U+FFFD, one each.
    """
    try:
        return _plain(read(data))
    except RecursionError as error:  # a depth that the scanner accepts may be too much here
        raise JsonError(str(error)) from error


def read(data: bytes) -> object:
    """Return the document for `Fields`, which examines only the values that are asked for. Raise JsonError.

    Any client can send a document, so reading it must be cheap whatever it contains: calling a Python function for each
    value took 25 ms for 64 KiB. Therefore json's scanner, which is written in C, calls nothing but C, and the remaining
    work is done only for the values that are asked for:

        {"a": 1, "a": 2}    (("a", b"1"), ("a", b"2"))    a tuple of pairs, so that equal names are kept
        -12                 b"-12"                        int() refuses thousands of digits, needed or not
        "a<ff>"             "a<half a surrogate pair>"    becomes U+FFFD
    """
    text = data.decode("utf-8", "surrogateescape")
    try:
        with _uncollected():
            value: object = _decoder.decode(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested more deeply than any document of ours
        raise JsonError(str(error)) from error
    return value


class Fields:
    """The fields of an object, as NSQ's decoder reads them.

    Names match in any case. `null` leaves a field unchanged. Otherwise the last value of a name counts, but all of them
    must have the right type, else JsonError is raised. An object that is `null` has no fields.
    """

    __slots__ = ("_values",)

    def __init__(self, value: object) -> None:
        """Take a `value` that comes from `read`, or a member of such a value."""
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
        """Return a signed integer of that many bits from an integer literal: neither 1000.0 nor 1e3 nor "1000"."""
        for value in self._values.get(name, ()):
            if not isinstance(value, bytes):
                raise _wrong_type(name, "an integer", value)
            number = _integer(value)
            if not -(1 << bits - 1) <= number < 1 << bits - 1:
                raise JsonError(f"{name}: does not fit {bits} bits")
            default = number
        return default

    def items(self, name: str) -> list[object]:
        """Return the members of a list: strings as in `text`, objects for `Fields`. Empty if the field is absent."""
        items: list[object] = []
        for value in self._values.get(name, ()):
            if not isinstance(value, list):
                raise _wrong_type(name, "a list", value)
            items = value
        return [_repaired(item) if isinstance(item, str) else item for item in items]

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return the members of a list of strings; None if the field is absent. As in Go, `null` is an empty string."""
        if not self._values.get(name):
            return None
        texts: list[str] = []
        for item in self.items(name):
            if item is not None and not isinstance(item, str):
                raise _wrong_type(name, "a list of strings", item)
            texts.append(item or "")
        return tuple(texts)


_LONGEST_INTEGER: Final = 100  # digits: far more than any field has, far fewer than int() refuses

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_decoder: Final = json.JSONDecoder(object_pairs_hook=tuple, parse_int=str.encode, parse_constant=_refuse)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the cyclic collector off while a document is read: it finds nothing there, however often it runs.

    Half a million lists in 1 MiB made it examine all live objects, which took ten times as long as reading the lists.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _integer(digits: bytes) -> int:
    # A longer number is out of range for every field, also when it is cut.
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
