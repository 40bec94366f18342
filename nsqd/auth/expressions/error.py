"""What is wrong with a text that should be an expression."""

from __future__ import annotations


class ExpressionError(ValueError):
    """The text is not an expression, or the expression is too large."""
