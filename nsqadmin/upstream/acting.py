"""For which user nsqadmin changes something. Nodes note the name in their record of changes; it gives no rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

# A context variable, as the requests of one action are made by several tasks, below functions that need not know users.
_user: Final[ContextVar[str]] = ContextVar("_user", default="")


@contextmanager
def acting_for(user: str) -> Iterator[None]:
    """Name the user to the nodes in all changes that are made inside the block, also by tasks that it starts."""
    token = _user.set(user)
    try:
        yield
    finally:
        _user.reset(token)


def user_header() -> Mapping[str, str]:
    """Return the header that names the user; nothing if the user is unknown."""
    user = _user.get()
    return {"nsqadmin-user": quote(user, errors="replace")} if user else {}
