"""Errors without the exception groups of nurseries, which users of this library should not have to know about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwrapped(cancelled: type[BaseException], *, alike: bool = False) -> Iterator[None]:
    """Raise the only meaningful one of several errors at once; raise a group only if there are several.

    `cancelled` is the loop's own exception: trio.Cancelled or asyncio.CancelledError. `alike`: all tasks do the same, so
    the first of several errors stands for all. For example, each of two nsqds knows no keys.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        alone = _the_one(group, cancelled, alike=alike)
        if alone is group:
            raise
        raise alone from alone.__cause__


def _the_one(error: BaseException, cancelled: type[BaseException], *, alike: bool) -> BaseException:
    """Return the only error in a group that means something, or the group. Cancellations mean something if alone."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(dict.fromkeys(_the_one(inner, cancelled, alike=alike) for inner in error.exceptions))
    telling = [leaf for leaf in leaves if not isinstance(leaf, cancelled)] or leaves[:1]
    # A cancellation belongs to an outer scope, which waits for it, so it must not be dropped in favour of another
    # error.
    is_mixed = len({isinstance(leaf, cancelled) for leaf in leaves}) > 1
    return telling[0] if (alike or len(telling) == 1) and not is_mixed else error
