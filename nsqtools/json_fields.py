"""CORE: fields in the JSON answers of nsqd and nsqlookupd.

Every function raises KeyError if a field is missing, and TypeError if it has another type.
"""

from __future__ import annotations

from typing import Any


def text_in(said: Any, name: str) -> str:
    """Return a field that is a string."""
    value = said[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a string")
    return value


def number_in(said: Any, name: str) -> int:
    """Return a field that is an integer."""
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is not a number")
    return value


def list_in(said: Any, name: str) -> list[Any]:
    """Return a field that is a list. Go writes an empty list as null or leaves the field out."""
    if not isinstance(said, dict):
        raise TypeError(f"no object with {name}")
    value = said.get(name) or []
    if not isinstance(value, list):
        raise TypeError(f"{name} is not a list")
    return value
