"""Regular expressions with RE2's syntax, searched for in the names of topics and channels in linear time.

An authorization server sends such expressions, and Python's `re` would be the wrong engine: it knows other escapes, it
has look-around and back references, which NSQ refuses, and an unlucky `(a+)+$` could stop the whole broker for years.
Why not `google-re2`: docs/decisions/0012-the-house.md.

    text ── _Parser ──► nodes ── _Program ──► instructions ── found_in(name): all paths at once, one character at a time

Names are short and ASCII, so a set of characters is a number of 128 bits, and characters of an expression beyond ASCII
match nothing. Neither the preferred path (`*?`) nor what groups capture makes a difference to whether the expression is
found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from unicodedata import category

_ASCII: Final = 128
_EVERYTHING: Final = (1 << _ASCII) - 1
_MOST_REPEATS: Final = 1000  # as in RE2
_MOST_STEPS: Final = 5000  # instructions of an expression once its repetitions are written out
_MOST_LENGTH: Final = 16 * 1024  # characters of an expression


class ExpressionError(ValueError):
    """The text is not an expression, or the expression is too large."""


def _set_of(characters: str) -> int:
    return sum(1 << ord(character) for character in set(characters))


def _range(first: int, last: int) -> int:
    """Return the set of the code points from `first` to `last`, without those beyond ASCII."""
    last = min(last, _ASCII - 1)
    return (1 << last + 1) - (1 << first) if first <= last else 0


_DIGITS: Final = _range(0x30, 0x39)
_UPPER: Final = _range(0x41, 0x5A)
_LOWER: Final = _range(0x61, 0x7A)
_LETTERS: Final = _UPPER | _LOWER
_WORD: Final = _DIGITS | _LETTERS | _set_of("_")
_PUNCTUATION: Final = _range(0x21, 0x7E) & ~(_DIGITS | _LETTERS)
_NEWLINE: Final = _set_of("\n")

_PERL: Final = {"d": _DIGITS, "s": _set_of("\t\n\f\r "), "w": _WORD}
_POSIX: Final = {
    "alnum": _DIGITS | _LETTERS,
    "alpha": _LETTERS,
    "ascii": _EVERYTHING,
    "blank": _set_of("\t "),
    "cntrl": _range(0, 0x1F) | 1 << 0x7F,
    "digit": _DIGITS,
    "graph": _range(0x21, 0x7E),
    "lower": _LOWER,
    "print": _range(0x20, 0x7E),
    "punct": _PUNCTUATION,
    "space": _set_of("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGITS | _set_of("abcdefABCDEF"),
}
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_ASSERTIONS: Final = {"A": "start", "z": "end", "b": "border", "B": "no border"}


# The nodes of an expression


@dataclass(frozen=True, slots=True)
class _Characters:
    """One character from a set."""

    set: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A position between two characters: see `_is_place`."""

    kind: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: list[_Node]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: list[_Node]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None  # None: any number


_Node = _Characters | _Place | _Sequence | _Choice | _Repeat


@dataclass(frozen=True, slots=True)
class _Flags:
    fold: bool = False  # i: ignore case
    lines: bool = False  # m: ^ and $ also match at line breaks
    dot_all: bool = False  # s: a dot also matches a newline


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags = _Flags()

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise ExpressionError("unexpected )")
        return node

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise ExpressionError("unexpected end")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, start: str) -> bool:
        if not self._text.startswith(start, self._at):
            return False
        self._at += len(start)
        return True

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise ExpressionError(f"missing {end}")
        found, self._at = self._text[self._at : stop], stop + len(end)
        return found

    def _choice(self) -> _Node:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._repeated()
        return _Sequence(parts)

    def _repeated(self) -> list[_Node]:
        """Read one item and its repetitions: an empty list for a group of flags, several nodes for a quotation."""
        if self._take("\\Q"):
            stop = self._text.find("\\E", self._at)
            quoted = self._text[self._at : stop if stop >= 0 else len(self._text)]
            self._at = min(len(self._text), self._at + len(quoted) + 2)
            things: list[_Node] = [self._literal(ord(character)) for character in quoted]
        else:
            thing = self._thing()
            things = [] if thing is None else [thing]
        while (times := self._times()) is not None:
            if not things:
                raise ExpressionError("nothing to repeat")
            things[-1] = _Repeat(things[-1], *times)
            if self._times() is not None:
                raise ExpressionError("a repetition is repeated")
        return things

    def _times(self) -> tuple[int, int | None] | None:
        """Read `*`, `+`, `?` or a counted repetition, or return None if none comes next."""
        if self._take("*"):
            times: tuple[int, int | None] = (0, None)
        elif self._take("+"):
            times = (1, None)
        elif self._take("?"):
            times = (0, 1)
        elif (counted := self._counted()) is not None:
            times = counted
        else:
            return None
        self._take("?")
        return times

    def _counted(self) -> tuple[int, int | None] | None:
        """Read {2}, {2,} or {2,3}. Any other brace stands for itself: None."""
        stop = self._text.find("}", self._at)
        if stop < 0 or not self._text.startswith("{", self._at):
            return None
        least, comma, most = self._text[self._at + 1 : stop].partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None
        self._at = stop + 1
        low = int(least[:9])
        high = (int(most[:9]) if most else None) if comma else low
        if max(low, high or 0) > _MOST_REPEATS or (high is not None and low > high):
            raise ExpressionError("a repetition that is out of range")
        return low, high

    def _thing(self) -> _Node | None:
        character = self._next()
        flags = self._flags
        match character:
            case "(":
                return self._group()
            case "[":
                return _Characters(self._class())
            case ".":
                return _Characters(_EVERYTHING if flags.dot_all else _EVERYTHING & ~_NEWLINE)
            case "^":
                return _Place("line start" if flags.lines else "start")
            case "$":
                return _Place("line end" if flags.lines else "end")
            case "*" | "+" | "?":
                raise ExpressionError("nothing to repeat")
            case "\\":
                return self._escaped()
        return self._literal(ord(character))

    def _literal(self, code: int) -> _Node:
        return _Characters(self._folded(_range(code, code)))

    def _folded(self, characters: int) -> int:
        if not self._flags.fold:
            return characters
        return characters | (characters & _UPPER) << 32 | (characters & _LOWER) >> 32

    def _group(self) -> _Node | None:
        outer = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name = self._until(">")
                if not name or not all(it.isascii() and (it.isalnum() or it == "_") for it in name):
                    raise ExpressionError("not the name of a group")
            elif self._read_flags() == ")":
                return None  # the flags hold to the end of the enclosing group
        node = self._choice()
        if not self._take(")"):
            raise ExpressionError("missing )")
        self._flags = outer
        return node

    def _read_flags(self) -> str:
        """Read the flags of a group, and return what ended them: `:` or `)`."""
        on, given = True, False
        fold, lines, dot_all = self._flags.fold, self._flags.lines, self._flags.dot_all
        while (flag := self._next()) not in ":)":
            given = flag != "-"
            match flag:
                case "i":
                    fold = on
                case "m":
                    lines = on
                case "s":
                    dot_all = on
                case "U":
                    pass  # which path is preferred
                case "-" if on:
                    on = False
                case _:
                    raise ExpressionError("an unknown kind of group")
        if not on and not given:
            raise ExpressionError("a flag is missing")
        self._flags = _Flags(fold, lines, dot_all)
        return flag

    def _escaped(self) -> _Node:
        if (kind := _ASSERTIONS.get(self._text[self._at : self._at + 1])) is not None:
            self._at += 1
            return _Place(kind)
        found = self._named_set()
        return _Characters(found) if found is not None else self._literal(self._code())

    def _named_set(self) -> int | None:
        """Read \\d, \\pL and the like, behind their backslash. None: another kind of escape."""
        letter = self._text[self._at : self._at + 1]
        if letter.lower() in _PERL and letter:
            self._at += 1
            found = _PERL[letter.lower()]
        elif letter in ("p", "P"):
            self._at += 1
            name = self._until("}") if self._take("{") else self._next()
            found = _unicode(name.removeprefix("^"))
            if name.startswith("^"):
                found = _EVERYTHING & ~found
        else:
            return None
        return self._folded(found) if letter.islower() else _EVERYTHING & ~self._folded(found)

    def _code(self) -> int:
        """Read an escape behind its backslash, and return the one character that it means."""
        character = self._next()
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            if not digits or not all(it in "0123456789abcdefABCDEF" for it in digits) or int(digits[:9], 16) > 0x10FFFF:
                raise ExpressionError("not the number of a character")
            return int(digits[:9], 16)
        if character in "01234567":
            # A single digit from 1 to 7 would be a back reference.
            if character != "0" and self._text[self._at : self._at + 1] not in tuple("01234567"):
                raise ExpressionError("back references are not known")
            digits = character
            while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._next()
            return int(digits, 8)
        if ord(character) < _ASCII and not character.isalnum():  # Go's parser accepts `\_`, which some people write
            return ord(character)
        raise ExpressionError(f"unknown escape \\{character}")

    def _class(self) -> int:
        """Read [...] behind its first bracket."""
        negated = self._take("^")
        found = 0
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                name = self._until(":]")
                if name.removeprefix("^") not in _POSIX:
                    raise ExpressionError("an unknown class of characters")
                named = _POSIX[name.removeprefix("^")]
                found |= _EVERYTHING & ~named if name.startswith("^") else named
            elif self._text.startswith("\\", self._at) and self._text[self._at + 1 : self._at + 2] in tuple("dDsSwWpP"):
                self._at += 1
                found |= self._named_set() or 0
            else:
                found |= self._class_range()
        found = self._folded(found)
        return _EVERYTHING & ~found if negated else found

    def _class_range(self) -> int:
        low = self._class_code()
        high = low
        if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
            self._at += 1
            high = self._class_code()
        if high < low:
            raise ExpressionError("a range that ends before it begins")
        return _range(low, high)

    def _class_code(self) -> int:
        character = self._next()
        return self._code() if character == "\\" else ord(character)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


@lru_cache(maxsize=64)
def _unicode(name: str) -> int:
    """Return the ASCII part of a general category or a script. Of the scripts, only Latin has any: its letters."""
    if not name.isascii() or not name.replace("_", "").isalpha() or not name[:1].isupper():
        raise ExpressionError("an unknown class of characters")
    if name == "Latin":
        return _LETTERS
    if len(name) > 2:
        return 0
    return sum(1 << code for code in range(_ASCII) if category(chr(code)).startswith(name))


# Matching


class _Program:
    """Instructions. Each number has what is wanted there (`wants`) and the numbers to continue with (`then`)."""

    def __init__(self, node: _Node) -> None:
        self.wants: list[int | str | None] = []  # a set of characters, a place, or nothing
        self.then: list[tuple[int, ...]] = []
        if _size(node) > _MOST_STEPS:
            raise ExpressionError("too large")
        self.first = self._add(node, self._put(None, ()))

    def _put(self, want: int | str | None, then: tuple[int, ...]) -> int:
        self.wants.append(want)
        self.then.append(then)
        return len(self.wants) - 1

    def _add(self, node: _Node, then: int) -> int:
        """Add the instructions for `node`, continuing at `then`, and return the number of the first."""
        match node:
            case _Characters(characters):
                return self._put(characters, (then,))
            case _Place(kind):
                return self._put(kind, (then,))
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self._add(part, then)
                return then
            case _Choice(parts):
                return self._put(None, tuple(self._add(part, then) for part in parts))
            case _Repeat(part, least, most):
                if most is None:
                    loop = self._put(None, ())
                    self.then[loop] = (self._add(part, loop), then)
                    then = loop
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._put(None, (self._add(part, then), end))
                for _ in range(least):
                    then = self._add(part, then)
                return then

    def found_in(self, name: str) -> bool:
        wants, then, first = self.wants, self.then, self.first
        reached: set[int] = set()
        for at in range(len(name) + 1):
            seen: set[int] = set()
            waiting = [first, *reached]
            reached = set()
            bit = 1 << ord(name[at]) if at < len(name) else 0
            while waiting:
                step = waiting.pop()
                if step in seen:
                    continue
                seen.add(step)
                want = wants[step]
                if want is None:
                    if not then[step]:
                        return True
                    waiting += then[step]
                elif isinstance(want, str):
                    if _is_place(want, name, at):
                        waiting += then[step]
                elif want & bit:
                    reached.update(then[step])
        return False


def _size(node: _Node) -> int:
    match node:
        case _Characters() | _Place():
            return 1
        case _Sequence(parts) | _Choice(parts):
            return 1 + sum(map(_size, parts))
        case _Repeat(part, least, most):
            return 1 + (1 + _size(part)) * max(1, least, most or least + 1)


# Most expressions are names, or the beginnings or ends of names. They need no program.
_LITERAL: Final = re.compile(r"(\^?)(\.\*)?((?:[A-Za-z0-9_#-]|\\\.)*+)(\.\*)?(\$?)")


@dataclass(frozen=True, slots=True)
class _Literal:
    """A text to be found anywhere in the name, at its start, at its end, or as the whole name."""

    start: bool
    text: str
    end: bool

    def found_in(self, name: str) -> bool:
        if self.start and self.end:
            return name == self.text
        if self.start:
            return name.startswith(self.text)
        return name.endswith(self.text) if self.end else self.text in name


def _literal(text: str) -> _Literal | None:
    """Return what to look for if the expression is like `^name$`, `name`, `^begins.*`, `.*ends$` or `.*`, else None.

    A dot of the name itself is written `\\.` in the expression.
    """
    found = _LITERAL.fullmatch(text)
    if found is None:
        return None
    starts, anything_before, name, anything_after, ends = found.groups()
    return _Literal(
        start=bool(starts and not anything_before),
        text=name.replace("\\", ""),
        end=bool(ends and not anything_after),
    )


class Expression:
    """A compiled expression.

    `steps` is the cost of a search per character of a name; it is 0 if a simple comparison of texts will do.
    """

    __slots__ = ("_pattern", "steps")

    def __init__(self, text: str) -> None:
        """Compile the expression. Raises ExpressionError."""
        if len(text) > _MOST_LENGTH:
            raise ExpressionError("too large")
        self._pattern: _Literal | _Program
        if (literal := _literal(text)) is not None:
            self._pattern = literal
            self.steps = 0
            return
        try:
            self._pattern = _Program(_Parser(text).parse())
        except RecursionError:
            raise ExpressionError("nested too deeply") from None
        self.steps = len(self._pattern.wants)

    def found_in(self, name: str) -> bool:
        """Return whether the expression matches any part of the name, the empty part included."""
        return self._pattern.found_in(name)


def _is_place(kind: str, name: str, at: int) -> bool:
    match kind:
        case "start":
            return at == 0
        case "end":
            return at == len(name)
        case "line start":
            return at == 0 or name[at - 1] == "\n"
        case "line end":
            return at == len(name) or name[at] == "\n"
    border = _is_word(name[at - 1 : at]) != _is_word(name[at : at + 1])
    return border == (kind == "border")


def _is_word(character: str) -> bool:
    return bool(character) and bool(_WORD >> ord(character) & 1)
