"""Errors without the exception groups of nurseries, which users of this library should not have to know about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise the only meaningful one of several errors at once; raise a group only if there are several."""
    try:
        yield
    except BaseExceptionGroup as group:
        alone = _the_one(group)
        if alone is group:
            raise
        raise alone from alone.__cause__


def _the_one(error: BaseException) -> BaseException:
    """Return the only error in a group that means something, or the group. Cancellations mean something if alone."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(dict.fromkeys(_the_one(inner) for inner in error.exceptions))
    telling = [leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)] or leaves[:1]
    return telling[0] if len(telling) == 1 and not _mixes(leaves) else error


def _mixes(leaves: list[BaseException]) -> bool:
    # A cancellation belongs to an outer scope, which waits for it, so it must not be dropped in favour of another
    # error.
    return len({isinstance(leaf, trio.Cancelled) for leaf in leaves}) > 1
