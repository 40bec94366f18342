"""CORE: what is in a JSON answer of nsqd or nsqlookupd. KeyError and TypeError where it is not there, or of another kind."""

from __future__ import annotations

from typing import Any


def text_in(said: Any, name: str) -> str:
    value = said[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value


def number_in(said: Any, name: str) -> int:
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is no number")
    return value


def list_in(said: Any, name: str) -> list[Any]:
    """Go writes an empty list as null, or leaves it out."""
    if not isinstance(said, dict):
        raise TypeError(f"no object with {name}")
    value = said.get(name) or []
    if not isinstance(value, list):
        raise TypeError(f"{name} is no list")
    return value
