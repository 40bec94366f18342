"""The error that both the parser and the compiler raise."""

from __future__ import annotations


class ExpressionError(ValueError):
    """The text is not an expression, or the expression is too large."""
