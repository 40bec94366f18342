"""Converts queue names to topic names.

A job library allows any text as a queue name; a topic name has up to 64 of the characters `a-z A-Z 0-9 . _ -`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

CHANNEL: Final = "jobs"  # the only channel of each queue's topic

_LONGEST: Final = 64
_EPHEMERAL: Final = "#ephemeral"
_DIGITS: Final = 16

_is_plain: Final = re.compile(r"[.a-zA-Z0-9_-]+", re.ASCII).fullmatch
_unfit: Final = re.compile(r"[^.a-zA-Z0-9_-]+", re.ASCII)


def topic_name(queue: str, *, ephemeral: bool = False) -> str:
    """Return the topic or channel name for a queue: its own name if valid, otherwise a readable part and a hash.

    Different queues never share a hashed name. Raises ValueError for an empty name.
    """
    if not queue:
        raise ValueError("a queue without a name")
    ending = _EPHEMERAL if ephemeral else ""
    room = _LONGEST - len(ending)
    if _is_plain(queue) and len(queue) <= room:
        return queue + ending
    digest = hashlib.sha256(queue.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    readable = _unfit.sub("_", queue)[: room - _DIGITS - 1]
    return f"{readable}-{digest}{ending}"
