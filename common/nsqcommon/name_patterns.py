"""Patterns of topics' and channels' names in files of rights and policies: `*` is any text, all else stands for itself.

Each text between two stars is looked for behind the one before it, at the first place where it stands, and that place is
never given up: if the rest of the pattern fits with a later place, it fits with the first one as well. So the time for
a name is proportional to the name, however many stars there are. A plain `.*` for each star would try all combinations
of places: `*a*a*a*a*a*a*b` took 3 s for a name of 64 letters, in which nsqd did nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_is_pattern: Final = re.compile(r"[.a-zA-Z0-9_*-]+(#ephemeral)?").fullmatch


def is_pattern(text: str) -> bool:
    """Return whether this is a name, or a pattern that could match one."""
    return _is_pattern(text) is not None


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function whose result is true for the names that the pattern matches. Make it once for many names."""
    beginning, *rest = pattern.split("*")
    if not rest:
        return pattern.__eq__
    *between, end = rest
    pieces = [re.escape(piece) for piece in (beginning, *filter(None, between), end)]
    if end:
        return re.compile(_in_turn(pieces), re.DOTALL).fullmatch
    return re.compile(_in_turn(pieces[:-1]), re.DOTALL).match


def _in_turn(pieces: list[str]) -> str:
    """Return an expression for these one behind the other. Only the first and the last may have one place alone."""
    first, *others = pieces
    if not others:
        return first
    *between, last = others
    kept = "".join(f"(?>.*?{piece})" for piece in between)  # (?>...): what it has found is not given up
    return f"{first}{kept}.*{last}"


def expression_of(pattern: str) -> str:
    """Return the regular expression with RE2's syntax that finds, between `^` and `$`, what the pattern matches.

    It is for `nsqd.auth.expressions`, which takes linear time for any expression; Python's `re` does not.
    """
    return ".*".join(map(re.escape, pattern.split("*")))
