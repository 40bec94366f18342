"""Parses the text of an expression into a tree of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nsqd.auth.expressions.character_sets import (
    ASCII,
    EVERYTHING,
    LOWER,
    NEWLINE,
    PERL,
    POSIX,
    UPPER,
    range_of,
    unicode_set,
)
from nsqd.auth.expressions.error import ExpressionError
from nsqd.auth.expressions.nodes import Alternatives, Assertion, Characters, Node, Repeat, Sequence

_MOST_REPEATS: Final = 1000  # as in RE2
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_ASSERTIONS: Final = {"A": "start", "z": "end", "b": "border", "B": "no border"}


@dataclass(frozen=True, slots=True)
class _Flags:
    fold: bool = False  # i: ignore case
    lines: bool = False  # m: ^ and $ also match at line breaks
    dot_all: bool = False  # s: a dot also matches a newline


class ExpressionParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags = _Flags()

    def parse(self) -> Node:
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

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternatives(parts)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._repeated()
        return Sequence(parts)

    def _repeated(self) -> list[Node]:
        """Read one item with its repetitions. Returns no node for flags like `(?i)`, and several for `\\Q...\\E`."""
        if self._take("\\Q"):
            stop = self._text.find("\\E", self._at)
            quoted = self._text[self._at : stop if stop >= 0 else len(self._text)]
            self._at = min(len(self._text), self._at + len(quoted) + 2)
            things: list[Node] = [self._literal(ord(character)) for character in quoted]
        else:
            thing = self._thing()
            things = [] if thing is None else [thing]
        while (times := self._times()) is not None:
            if not things:
                raise ExpressionError("nothing to repeat")
            things[-1] = Repeat(things[-1], *times)
            if self._times() is not None:
                raise ExpressionError("repeated repetition")
        return things

    def _times(self) -> tuple[int, int | None] | None:
        """Read `*`, `+`, `?` or `{...}`, and the `?` of a lazy one. Returns None if no repetition comes next."""
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
        """Read {2}, {2,} or {2,3}. Returns None for any other brace, which is a literal."""
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
            raise ExpressionError("repetition out of range")
        return low, high

    def _thing(self) -> Node | None:
        character = self._next()
        flags = self._flags
        match character:
            case "(":
                return self._group()
            case "[":
                return Characters(self._class())
            case ".":
                return Characters(EVERYTHING if flags.dot_all else EVERYTHING & ~NEWLINE)
            case "^":
                return Assertion("line start" if flags.lines else "start")
            case "$":
                return Assertion("line end" if flags.lines else "end")
            case "*" | "+" | "?":
                raise ExpressionError("nothing to repeat")
            case "\\":
                return self._escaped()
        return self._literal(ord(character))

    def _literal(self, code: int) -> Node:
        return Characters(self._folded(range_of(code, code)))

    def _folded(self, characters: int) -> int:
        if not self._flags.fold:
            return characters
        return characters | (characters & UPPER) << 32 | (characters & LOWER) >> 32

    def _group(self) -> Node | None:
        outer = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name = self._until(">")
                if not name or not all(it.isascii() and (it.isalnum() or it == "_") for it in name):
                    raise ExpressionError("invalid group name")
            elif self._read_flags() == ")":
                return None  # the flags apply up to the end of the enclosing group
        node = self._choice()
        if not self._take(")"):
            raise ExpressionError("missing )")
        self._flags = outer
        return node

    def _read_flags(self) -> str:
        """Read the flags of a group, and return the character after them: `:` or `)`."""
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
                    pass  # ungreedy; makes no difference to whether it matches
                case "-" if on:
                    on = False
                case _:
                    raise ExpressionError("an unknown kind of group")
        if not on and not given:
            raise ExpressionError("missing flag")
        self._flags = _Flags(fold, lines, dot_all)
        return flag

    def _escaped(self) -> Node:
        if (kind := _ASSERTIONS.get(self._text[self._at : self._at + 1])) is not None:
            self._at += 1
            return Assertion(kind)
        found = self._named_set()
        return Characters(found) if found is not None else self._literal(self._code())

    def _named_set(self) -> int | None:
        """Read the rest of `\\d`, `\\pL` and the like, after the backslash. Returns None for any other escape."""
        letter = self._text[self._at : self._at + 1]
        if letter.lower() in PERL and letter:
            self._at += 1
            found = PERL[letter.lower()]
        elif letter in ("p", "P"):
            self._at += 1
            name = self._until("}") if self._take("{") else self._next()
            found = unicode_set(name.removeprefix("^"))
            if name.startswith("^"):
                found = EVERYTHING & ~found
        else:
            return None
        return self._folded(found) if letter.islower() else EVERYTHING & ~self._folded(found)

    def _code(self) -> int:
        """Read the rest of an escape, after its backslash, and return the code of the character."""
        character = self._next()
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            if not digits or not all(it in "0123456789abcdefABCDEF" for it in digits) or int(digits[:9], 16) > 0x10FFFF:
                raise ExpressionError("invalid character code")
            return int(digits[:9], 16)
        if character in "01234567":
            # A single digit from 1 to 7 is a back reference, and two digits are an octal code.
            if character != "0" and self._text[self._at : self._at + 1] not in tuple("01234567"):
                raise ExpressionError("back references are not supported")
            digits = character
            while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._next()
            return int(digits, 8)
        if ord(character) < ASCII and not character.isalnum():  # this includes `\_`, which Go's parser accepts too
            return ord(character)
        raise ExpressionError(f"unknown escape \\{character}")

    def _class(self) -> int:
        """Read the rest of a class such as `[a-z]`, after its opening bracket."""
        negated = self._take("^")
        found = 0
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                name = self._until(":]")
                if name.removeprefix("^") not in POSIX:
                    raise ExpressionError("unknown character class")
                named = self._folded(POSIX[name.removeprefix("^")])
                found |= EVERYTHING & ~named if name.startswith("^") else named
            elif self._text.startswith("\\", self._at) and self._text[self._at + 1 : self._at + 2] in tuple("dDsSwWpP"):
                self._at += 1
                found |= self._named_set() or 0
            else:
                found |= self._class_range()
        found = self._folded(found)
        return EVERYTHING & ~found if negated else found

    def _class_range(self) -> int:
        low = self._class_code()
        high = low
        if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
            self._at += 1
            high = self._class_code()
        if high < low:
            raise ExpressionError("range ends before it begins")
        return range_of(low, high)

    def _class_code(self) -> int:
        character = self._next()
        return self._code() if character == "\\" else ord(character)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
