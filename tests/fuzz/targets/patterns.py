"""Patterns of names in files of rights and policies: the first line is the pattern, and the others are names."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.name_patterns import expression_of, is_pattern, matcher
from nsqd.auth.expressions import Expression, ExpressionError
from tests.support.globs import matches

MOST_COMPARED = 300  # characters of a pattern; the reference is slow


def run(data: bytes, random: Random) -> None:
    pattern, *names = data.decode("latin-1").split("\n")
    found = matcher(pattern)
    expression = None
    with suppress(ExpressionError):  # too long
        expression = Expression(f"^(?:{expression_of(pattern)})$") if is_pattern(pattern) else None
    for name in ("", "orders", "a" * 64, *names[:20]):
        is_match = bool(found(name))
        if len(pattern) <= MOST_COMPARED and len(name) <= MOST_COMPARED:
            assert is_match == matches(pattern, name)
            assert expression is None or not name.isascii() or expression.found_in(name) == is_match
