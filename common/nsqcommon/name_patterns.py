"""Patterns for topic and channel names in rights and policy files. `*` matches any text, everything else is literal.

For each text between two stars, we take the first match after the previous one and never backtrack: if the rest of the
pattern matches after a later one, it matches after the first one too. So the time is proportional to the length of the
name, however many stars there are. With a plain `.*` for each star, Python tries all combinations. For example,
`*a*a*a*a*a*a*b` took 3 s for a name of 64 letters, and blocked nsqd all that time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_is_pattern: Final = re.compile(r"[.a-zA-Z0-9_*-]+(#ephemeral)?").fullmatch


def is_pattern(text: str) -> bool:
    """Return whether this is a valid pattern, or a plain name."""
    return _is_pattern(text) is not None


def matcher(pattern: str) -> Callable[[str], object]:
    """Compile a pattern into a function that returns a true value for each name that matches."""
    beginning, *rest = pattern.split("*")
    if not rest:
        return pattern.__eq__
    *between, end = rest
    pieces = [re.escape(piece) for piece in (beginning, *filter(None, between), end)]
    if end:
        return re.compile(_sequence(pieces), re.DOTALL).fullmatch
    return re.compile(_sequence(pieces[:-1]), re.DOTALL).match  # after a final star, anything may follow


def _sequence(pieces: list[str]) -> str:
    """Return a regular expression for these pieces in this order, with any text between them."""
    first, *others = pieces
    if not others:
        return first
    *between, last = others
    kept = "".join(f"(?>.*?{piece})" for piece in between)  # (?>...) is atomic: it never backtracks
    return f"{first}{kept}.*{last}"


def expression_of(pattern: str) -> str:
    """Return the pattern as a regular expression in RE2's syntax, to be put between `^` and `$`.

    Use it with `nsqd.auth.expressions`, which takes linear time for any expression. Python's `re` doesn't: to match
    with that, use `matcher`.
    """
    return ".*".join(map(re.escape, pattern.split("*")))
