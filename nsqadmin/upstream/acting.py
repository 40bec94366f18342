"""The user on whose behalf nsqadmin changes something. Nodes record the name; it gives no rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

# A context variable, because several tasks make an action's requests, below functions that needn't know users.
_user: Final[ContextVar[str]] = ContextVar("_user", default="")


@contextmanager
def acting_for(user: str) -> Iterator[None]:
    """Name the user to the nodes in all changes made inside the block, also by tasks started there."""
    token = _user.set(user)
    try:
        yield
    finally:
        _user.reset(token)


def user_header() -> Mapping[str, str]:
    """Return the header with the user's name; nothing if the user is unknown."""
    user = _user.get()
    return {"nsqadmin-user": quote(user, errors="replace")} if user else {}
