"""Regular expressions with RE2's syntax, searched for in the names of topics and channels in linear time.

An authorization server sends such expressions, and Python's `re` would be the wrong engine: it knows other escapes, it
has look-around and back references, which NSQ refuses, and an unlucky `(a+)+$` could stop the whole broker for years.
Why not `google-re2`: docs/decisions/0012-the-house.md.

    text ── Parser ──► nodes ── Program ──► instructions ── found_in(name): all paths at once, one character at a time

Names are short and ASCII, so a set of characters is a number of 128 bits, and characters of an expression beyond ASCII
match nothing. Neither the preferred path (`*?`) nor what groups capture makes a difference to whether the expression is
found.
"""

from __future__ import annotations

from nsqd.auth.expressions.error import ExpressionError
from nsqd.auth.expressions.expression import Expression

__all__ = ["Expression", "ExpressionError"]
