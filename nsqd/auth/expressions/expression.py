"""Compiles an expression, and matches it against names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nsqd.auth.expressions.error import ExpressionError
from nsqd.auth.expressions.parser import ExpressionParser
from nsqd.auth.expressions.program import Program

_MOST_LENGTH: Final = 16 * 1024  # characters of an expression
_LITERAL: Final = re.compile(r"(\^?)(\.\*)?((?:[A-Za-z0-9_#-]|\\\.)*+)(\.\*)?(\$?)")


class Expression:
    """A compiled expression. `steps` is the cost per character of a name, or 0 if we only compare strings."""

    __slots__ = ("_pattern", "steps")

    def __init__(self, text: str) -> None:
        """Compile the expression. Raises ExpressionError."""
        if len(text) > _MOST_LENGTH:
            raise ExpressionError("too large")
        self._pattern: Literal | Program
        if (literal := literal_of(text)) is not None:
            self._pattern = literal
            self.steps = 0
            return
        try:
            self._pattern = Program(ExpressionParser(text).parse())
        except RecursionError:
            raise ExpressionError("nested too deeply") from None
        self.steps = len(self._pattern.conditions)

    def found_in(self, name: str) -> bool:
        """Return whether the expression matches any part of the name, even an empty part."""
        return self._pattern.found_in(name)


@dataclass(frozen=True, slots=True)
class Literal:
    """A string to find at a name's start, at its end, as the whole name, or anywhere in it.

    Most expressions are this simple, so they need no program.
    """

    start: bool
    text: str
    end: bool

    def found_in(self, name: str) -> bool:
        if self.start and self.end:
            return name == self.text
        if self.start:
            return name.startswith(self.text)
        return name.endswith(self.text) if self.end else self.text in name


def literal_of(text: str) -> Literal | None:
    """Return the literal if the expression is like `^name$`, `name`, `^begins.*`, `.*ends$` or `.*`, or else None.

    A dot in the name is written as `\\.`.
    """
    found = _LITERAL.fullmatch(text)
    if found is None:
        return None
    starts, anything_before, name, anything_after, ends = found.groups()
    return Literal(
        start=bool(starts and not anything_before),
        text=name.replace("\\", ""),
        end=bool(ends and not anything_after),
    )
