"""Work that pauses now and then, so that somebody else can be served: a generator of nothing that returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Slices = Generator[None, None, T]


def at_once(work: Slices[T]) -> T:
    """Does it without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
