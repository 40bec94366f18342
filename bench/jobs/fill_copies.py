"""Copies of a message of Celery: the same bytes, with another id and delivery tag each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

Copy = Callable[[int], bytes]


def copies_of(message: bytes) -> Copy:
    """Return what makes copies of a message of Celery, each with its own id and delivery tag."""
    found = json.loads(message)
    parts = list(_split(message, found["headers"]["id"].encode(), found["properties"]["delivery_tag"].encode()))

    def copy(number: int) -> bytes:
        id = id_of(number).encode()
        return b"".join(id if part is None else part for part in parts)

    return copy


def _split(message: bytes, *ids: bytes) -> Iterator[bytes | None]:
    """Yield the message in parts: None stands for one of the ids."""
    for at, part in enumerate(message.replace(ids[1], ids[0]).split(ids[0])):
        if at:
            yield None
        yield part


def id_of(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"
