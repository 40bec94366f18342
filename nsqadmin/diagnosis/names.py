"""Patterns of names: numbers and ids in them become `*`, which can't be in NSQ's names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_UUID: Final = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_HEX: Final = r"(?=[a-f]*[0-9])[0-9a-f]{8,}"  # a commit or an object's id, but not a word such as `feedbeef`
_parts = re.compile(rf"{_UUID}|{_HEX}|[0-9]+", re.IGNORECASE)


def pattern_of(name: str) -> str:
    """Return `tenant_*.events` for `tenant_017.events`."""
    return name if name.isalpha() else _pattern_of(name)


@lru_cache(maxsize=1 << 15)  # each sweep asks for the same names
def _pattern_of(name: str) -> str:
    return _parts.sub("*", name)
