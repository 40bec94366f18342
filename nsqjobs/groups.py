"""The group of a job: given with the call (`nsq_group`), or taken from the job's arguments (`nsq_group_by`).

Both options have these names in all libraries. For example, with `nsq_group_by="account"` all jobs of one account are a
group, so a channel can limit how many of them run at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from nsqcommon.wire.groups import checked_group

GROUP: Final = "nsq_group"
GROUP_BY: Final = "nsq_group_by"

GroupBy = str | Callable[..., Any]

_signature_of = lru_cache(maxsize=1024)(inspect.signature)


def group_of(by: GroupBy, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the group of a call of a job's function; None if there is none.

    `by` is the name of one of its arguments, or a function that is called with all of them. None and "" are no group;
    other values that are not text are converted. Raises ValueError for a missing argument, and for a group that nsqd
    wouldn't count.
    """
    if callable(by):
        return group_text(by(*args, **kwargs))
    try:
        bound = _signature_of(function).bind_partial(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{GROUP_BY}={by!r}: {error}") from error
    bound.apply_defaults()
    for arguments in (bound.arguments, *_others(bound)):
        if by in arguments:
            return group_text(arguments[by])
    raise ValueError(f"{GROUP_BY}={by!r}: {_name_of(function)} has no such argument")


def group_text(value: object) -> str | None:
    """Return a group as text; None if there is none. Raise ValueError for one that nsqd wouldn't count."""
    if value is None or value == "":
        return None
    return checked_group(value if isinstance(value, str | bytes) else str(value)).decode()


def _others(bound: inspect.BoundArguments) -> list[Mapping[str, Any]]:
    """Return what a function takes as `**kwargs`."""
    kind = inspect.Parameter.VAR_KEYWORD
    names = [it.name for it in bound.signature.parameters.values() if it.kind is kind]
    return [bound.arguments.get(name, {}) for name in names]


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
