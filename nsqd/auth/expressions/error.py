"""The error of the parser and the compiler; apart because both of them raise it."""

from __future__ import annotations


class ExpressionError(ValueError):
    """The text is not an expression, or the expression is too large."""
