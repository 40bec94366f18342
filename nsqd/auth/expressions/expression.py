"""An expression that is ready to be searched for."""

from __future__ import annotations

from typing import Final

from nsqd.auth.expressions.error import ExpressionError
from nsqd.auth.expressions.literal import Literal, literal_of
from nsqd.auth.expressions.parser import ExpressionParser
from nsqd.auth.expressions.program import Program

_MOST_LENGTH: Final = 16 * 1024  # characters of an expression


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
