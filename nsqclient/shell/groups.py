"""Unwraps the exception groups of nurseries, so that users of this library don't see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwrapped(cancelled: type[BaseException], *, alike: bool = False) -> Iterator[None]:
    """Raise the only meaningful error of a group; raise a group only if there are several.

    `cancelled` is the loop's own exception: trio.Cancelled or asyncio.CancelledError. `alike`: all tasks do the same,
    so the first error stands for all. For example, two nsqds both know no keys.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        alone = _the_one(group, cancelled, alike=alike)
        if alone is group:
            raise
        raise alone from alone.__cause__


def _the_one(error: BaseException, cancelled: type[BaseException], *, alike: bool) -> BaseException:
    """Return the only meaningful error in a group, or the group. A cancellation is meaningful if it is alone."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(dict.fromkeys(_the_one(inner, cancelled, alike=alike) for inner in error.exceptions))
    telling = [leaf for leaf in leaves if not isinstance(leaf, cancelled)] or leaves[:1]
    # A cancellation belongs to an outer scope, which waits for it, so another error must not replace it.
    is_mixed = len({isinstance(leaf, cancelled) for leaf in leaves}) > 1
    return telling[0] if (alike or len(telling) == 1) and not is_mixed else error
