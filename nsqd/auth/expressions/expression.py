"""An expression that is ready to be searched for."""

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
    """A compiled expression.

    `steps` is the cost of a search per character of a name; it is 0 if a simple comparison of texts will do.
    """

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
        self.steps = len(self._pattern.wants)

    def found_in(self, name: str) -> bool:
        """Return whether the expression matches any part of the name, the empty part included."""
        return self._pattern.found_in(name)


@dataclass(frozen=True, slots=True)
class Literal:
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


def literal_of(text: str) -> Literal | None:
    """Return what to look for if the expression is like `^name$`, `name`, `^begins.*`, `.*ends$` or `.*`, else None.

    A dot of the name itself is written `\\.` in the expression.
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
