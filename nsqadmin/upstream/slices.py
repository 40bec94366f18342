"""Work in slices, so that other tasks can run in between: a generator that yields None and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Slices = Generator[None, None, T]


def at_once(work: Slices[T]) -> T:
    """Do the work without pausing, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
