"""Sets of ASCII characters as 128-bit integers, and RE2's names for them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from unicodedata import category

from nsqd.auth.expressions.error import ExpressionError

ASCII: Final = 128
EVERYTHING: Final = (1 << ASCII) - 1


def set_of(characters: str) -> int:
    return sum(1 << ord(character) for character in set(characters))


def range_of(first: int, last: int) -> int:
    """Return the set of the ASCII characters from `first` to `last`, both inclusive."""
    last = min(last, ASCII - 1)
    return (1 << last + 1) - (1 << first) if first <= last else 0


DIGITS: Final = range_of(0x30, 0x39)
UPPER: Final = range_of(0x41, 0x5A)
LOWER: Final = range_of(0x61, 0x7A)
LETTERS: Final = UPPER | LOWER
WORD: Final = DIGITS | LETTERS | set_of("_")
_PUNCTUATION: Final = range_of(0x21, 0x7E) & ~(DIGITS | LETTERS)
NEWLINE: Final = set_of("\n")

PERL: Final = {"d": DIGITS, "s": set_of("\t\n\f\r "), "w": WORD}
POSIX: Final = {
    "alnum": DIGITS | LETTERS,
    "alpha": LETTERS,
    "ascii": EVERYTHING,
    "blank": set_of("\t "),
    "cntrl": range_of(0, 0x1F) | 1 << 0x7F,
    "digit": DIGITS,
    "graph": range_of(0x21, 0x7E),
    "lower": LOWER,
    "print": range_of(0x20, 0x7E),
    "punct": _PUNCTUATION,
    "space": set_of("\t\n\v\f\r "),
    "upper": UPPER,
    "word": WORD,
    "xdigit": DIGITS | set_of("abcdefABCDEF"),
}


@lru_cache(maxsize=64)
def unicode_set(name: str) -> int:
    """Return the ASCII part of a Unicode category or script. Latin is the only script with ASCII letters."""
    if not name.isascii() or not name.replace("_", "").isalpha() or not name[:1].isupper():
        raise ExpressionError("unknown character class")
    if name == "Latin":
        return LETTERS
    if len(name) > 2:
        return 0
    return sum(1 << code for code in range(ASCII) if category(chr(code)).startswith(name))
