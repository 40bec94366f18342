"""Patterns of topics' and channels' names in files of rights and policies: `*` is any text, all else stands for itself."""

from __future__ import annotations

import re
from typing import Final

_is_pattern: Final = re.compile(r"[.a-zA-Z0-9_*-]+(#ephemeral)?").fullmatch


def is_pattern(text: str) -> bool:
    """Return whether this is a name, or a pattern that could match one."""
    return _is_pattern(text) is not None


def expression_of(pattern: str) -> str:
    """Return the regular expression for `fullmatch` that does what the pattern does."""
    return ".*".join(map(re.escape, pattern.split("*")))
