"""A parser for long and possibly hostile JSON. It pauses so that other tasks can run in between.

The standard library's C parser is a hundred times faster than any in Python, but nothing else runs until it returns. So
we give it one window of the text at a time. A value that ends within the window is parsed at once. A longer one is
split: its members are parsed one after the other, and the window moves to the start of each. A node's answer is a list
of small topics, so almost all of it is parsed in C.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from nsqadmin.upstream import strict_json
from nsqadmin.upstream.slices import Slices

WINDOW: Final = 32 * 1024  # bytes
_BETWEEN_PAUSES: Final = 500  # members parsed one by one, which takes about a millisecond
_MOST_DEEP: Final = 16  # nested levels of values that are longer than a window; /stats has six

_Value = Slices[tuple[Any, int]]  # a value, and where it ends

# Half a character: an escape for a lone surrogate, or the result of `surrogateescape` for a byte that isn't UTF-8.
_half_a_character: Final = re.compile(r"\\u[dD][89a-fA-F]|[\udc80-\udcff]").search
_text_goes_on: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,%d}' % _BETWEEN_PAUSES, re.DOTALL).match
_after_space: Final = re.compile(rb"[ \t\n\r]{0,%d}" % WINDOW).match


def loads(text: bytes | bytearray, *, longest_text: int = WINDOW) -> Slices[Any]:
    """Parse the document, pausing about every millisecond. Raise ValueError.

    The result can be written as JSON again: its text is valid, and its numbers are finite. A single text within it may
    have `longest_text` bytes, or somewhat less than WINDOW if that is more. Such a text is decoded without a pause,
    which takes about a millisecond per 300 kB.
    """
    reader = _Reader(text, longest_text)
    value, end = yield from reader.value(reader.after_space(0), 0)
    if reader.after_space(end) != len(text):
        raise ValueError(f"something follows the document at byte {end}")
    return value


class _Reader:
    """Positions are in bytes, except for `_character`."""

    def __init__(self, text: bytes | bytearray, longest_text: int) -> None:
        self._text = text
        self._longest_text = longest_text
        self._move_to(0)

    def value(self, at: int, depth: int) -> _Value:
        if (found := self._found_in_window(at)) is not None:
            return found
        if at != self._from:
            self._move_to(at)
            yield
            if (found := self._found_in_window(at)) is not None:
                return found
        if depth == _MOST_DEEP:
            raise ValueError("nested too deeply")
        match self._text[at : at + 1]:
            case b"[":
                return (yield from self._list(at, depth))
            case b"{":
                return (yield from self._object(at, depth))
            case b'"' if self._longest_text > WINDOW:
                return (yield from self._long_text(at))
        raise self._no_value(at)

    def after_space(self, at: int) -> int:
        found = _after_space(self._text, at)
        assert found is not None, "the pattern also matches an empty string"
        return found.end()

    def _move_to(self, at: int) -> None:
        cut = self._text[at : at + WINDOW]
        # `_byte` and `_character` are one position in two units: where the last value began or ended.
        self._from = self._byte = at
        self._character = 0
        self._window = cut.decode("utf-8", "surrogateescape")
        self._is_ascii = cut.isascii()
        self._is_last = at + WINDOW >= len(self._text)
        self._has_halves = _half_a_character(self._window) is not None

    def _found_in_window(self, at: int) -> tuple[Any, int] | None:
        if not self._byte <= at < self._from + WINDOW:
            return None
        try:
            value, end = strict_json.DECODER.raw_decode(self._window, self._character_at(at))
        except (ValueError, RecursionError):
            return None  # cut off by the window, or not JSON: splitting it shows which
        if end == len(self._window) and not self._is_last:
            return None  # a number may continue after the window
        return strict_json.repaired(value) if self._has_halves else value, self._byte_at(end)

    def _character_at(self, at: int) -> int:
        if not self._is_ascii:
            passed = self._text[self._byte : at].decode("utf-8", "surrogateescape")
            self._byte, self._character = at, self._character + len(passed)
            return self._character
        return at - self._from

    def _byte_at(self, character: int) -> int:
        if not self._is_ascii:
            passed = self._window[self._character : character].encode("utf-8", "surrogateescape")
            self._byte, self._character = self._byte + len(passed), character
            return self._byte
        return self._from + character

    def _list(self, at: int, depth: int) -> _Value:
        values: list[Any] = []
        at = self.after_space(at + 1)
        if self._text[at : at + 1] == b"]":
            return values, at + 1
        while True:
            value, at = yield from self.value(at, depth + 1)
            values.append(value)
            if not len(values) % _BETWEEN_PAUSES:
                yield
            at = self.after_space(at)
            if self._text[at : at + 1] == b"]":
                return values, at + 1
            at = self._after(at, b",")

    def _object(self, at: int, depth: int) -> _Value:
        values: dict[str, Any] = {}
        at = self.after_space(at + 1)
        if self._text[at : at + 1] == b"}":
            return values, at + 1
        while True:
            name, end = yield from self.value(at, depth + 1)
            if not isinstance(name, str):
                raise ValueError(f"expected the name of a member at byte {at}")
            at = self._after(self.after_space(end), b":")
            values[name], at = yield from self.value(at, depth + 1)
            if not len(values) % _BETWEEN_PAUSES:
                yield
            at = self.after_space(at)
            if self._text[at : at + 1] == b"}":
                return values, at + 1
            at = self._after(at, b",")

    def _long_text(self, at: int) -> _Value:
        """Return a text that is longer than the window."""
        end, most = at + 1, at + self._longest_text
        while True:
            found = _text_goes_on(self._text, end, most)
            assert found is not None, "the pattern also matches an empty string"
            if self._text[found.end() : found.end() + 1] == b'"':
                break
            if found.end() == end:
                raise ValueError(f"the text at byte {at} has no end, or more than {self._longest_text} bytes")
            end = found.end()
            yield
        raw = self._text[at : found.end() + 1].decode("utf-8", "surrogateescape")
        value = strict_json.DECODER.decode(raw)
        return strict_json.repaired(value) if _half_a_character(raw) else value, found.end() + 1

    def _after(self, at: int, sign: bytes) -> int:
        if self._text[at : at + 1] != sign:
            raise ValueError(f"expected {sign.decode()!r} at byte {at}")
        return self.after_space(at + 1)

    def _no_value(self, at: int) -> ValueError:
        try:
            strict_json.DECODER.raw_decode(self._window)
        except json.JSONDecodeError as error:
            if not self._is_last and self._text[at : at + 1] == b'"':
                return ValueError(f"a text of more than {WINDOW >> 10} KiB at byte {at}")
            return ValueError(f"{error.msg} at byte {at}")
        except (ValueError, RecursionError) as error:
            return ValueError(str(error))
        return ValueError(f"expected a value at byte {at}")
