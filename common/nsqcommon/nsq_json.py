"""JSON as NSQ's daemons, which are written in Go, write and read it.

Output is compact, with keys in the given order, `<`, `>` and `&` escaped, and other text as raw UTF-8. Input may have
field names in any case, and `null` for a missing field. Integers must be integer literals: 1000, not 1000.0.
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
    """Write a value as JSON. Raises ValueError for NaN and infinities.

    Fractions below 0.0001 get Python's exponent (1e-05), where Go writes them out. The daemons send none that small.
    """
    return _UNLIKE_GO.sub(_as_go, _encode(_with_whole_numbers(value))).encode()


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# Where Python's spelling differs from Go's, always within a string. We match an escaped backslash first, because the
# character after it isn't escaped: for example, the b of `\\b` is just a letter.
_UNLIKE_GO: Final = re.compile(r"\\\\|\\b|\\f|[<>&\u2028\u2029\ud800-\udfff]")
_GO: Final = {"\\\\": "\\\\", "\\b": "\\u0008", "\\f": "\\u000c"} | {
    character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"
}


def _as_go(found: re.Match[str]) -> str:
    return _GO.get(found[0], "\ufffd")  # anything else is a lone surrogate, which was never valid text


_FIRST_EXPONENT: Final = 1e21  # from here on Go writes whole numbers with an exponent, as Python does


def _with_whole_numbers(value: object) -> object:
    """Return the same value with 1 in place of 1.0, as Go writes it."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _FIRST_EXPONENT else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(member) for member in value]
    return value


# Read


class JsonError(ValueError):
    """The text is not JSON, or a field has the wrong type."""


def loads(data: bytes) -> object:
    """Return the whole document, with objects as dictionaries. Raises JsonError.

    If a name comes twice in an object, the last value counts. A byte order mark is an error. In strings, each byte that
    isn't UTF-8 and each escape of half a surrogate pair becomes U+FFFD.
    """
    try:
        return _plain(read(data))
    except RecursionError as error:  # the scanner accepts documents too deep for us
        raise JsonError(str(error)) from error


def read(data: bytes) -> object:
    """Return the document for `Fields`, which examines only the values you ask for. Raises JsonError.

    Any client can send us a document, so reading it must be cheap whatever it contains. Calling a Python function for
    each value took 25 ms for 64 KiB. So json's C scanner calls nothing but C, and we do the remaining work only for the
    values you ask for:

        {"a": 1, "a": 2}    (("a", b"1"), ("a", b"2"))    a tuple of pairs keeps equal names
        -12                 b"-12"                        int() would reject thousands of digits, even in unused fields
        "a<ff>"             "a<half a surrogate pair>"    becomes U+FFFD later
    """
    text = data.decode("utf-8", "surrogateescape")
    try:
        with _without_collector():
            value: object = _decoder.decode(text)
    except (ValueError, RecursionError) as error:  # RecursionError: far deeper than any document of ours
        raise JsonError(str(error)) from error
    return value


class Fields:
    """The fields of an object, read as NSQ's decoder reads them.

    Names match in any case. A field that is `null` counts as absent. If a name comes twice, the last value counts, but
    all values must have the right type; otherwise, you get a JsonError. `null` in place of an object has no fields.
    """

    __slots__ = ("_values",)

    def __init__(self, value: object) -> None:
        """Take an object from `read`, or an object within it. Raises JsonError if it's something else."""
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
        """Return a signed integer of `bits` bits. Only integer literals count: 1000, not 1000.0, 1e3 or "1000"."""
        for value in self._values.get(name, ()):
            if not isinstance(value, bytes):
                raise _wrong_type(name, "an integer", value)
            number = _integer(value)
            if not -(1 << bits - 1) <= number < 1 << bits - 1:
                raise JsonError(f"{name}: does not fit {bits} bits")
            default = number
        return default

    def items(self, name: str) -> list[object]:
        """Return the items of a list, or [] if the field is absent. Objects are in the form that `Fields` takes."""
        items: list[object] = []
        for value in self._values.get(name, ()):
            if not isinstance(value, list):
                raise _wrong_type(name, "a list", value)
            items = value
        return [_repaired(item) if isinstance(item, str) else item for item in items]

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return the items of a list of strings, or None if the field is absent. As in Go, a `null` item is ""."""
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
def _without_collector() -> Iterator[None]:
    """Switch the garbage collector off while we read a document, because it would find nothing.

    For example, 1 MiB can hold half a million lists. With the collector on, examining all live objects again and again
    took ten times as long as reading the lists.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _integer(digits: bytes) -> int:
    # A longer number is out of range for every field, even when it's truncated.
    return int(digits[:_LONGEST_INTEGER])


def _repaired(text: str) -> str:
    """Replace lone surrogates by U+FFFD, because they can't be encoded."""
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
