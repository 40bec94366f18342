"""Regular expressions in RE2's syntax, matched against names of topics and channels in linear time.

Authorization servers send these expressions. Python's `re` is the wrong engine for them: its escapes differ, and it has
look-around and back references, which NSQ refuses. Worse, an unlucky `(a+)+$` could stop the whole broker for years.
docs/decisions/0012-the-house.md explains why we don't use `google-re2`.

    text ── Parser ──► nodes ── Program ──► instructions ── found_in(name): all paths at once, one character at a time

Names are short and ASCII. So a set of characters is a 128-bit integer, and non-ASCII characters in an expression
match nothing. We only need to know *whether* an expression matches, so we ignore laziness (`*?`) and captures.
"""

from __future__ import annotations

from nsqd.auth.expressions.error import ExpressionError
from nsqd.auth.expressions.expression import Expression

__all__ = ["Expression", "ExpressionError"]
