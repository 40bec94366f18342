"""Names of topics and channels: their syntax, and the suffix of ephemeral ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH: Final = 64  # in bytes, including the suffix
EPHEMERAL: Final = "#ephemeral"

_CACHE_SIZE: Final = 8192  # names; if more are in use, we decode some of them again

# fullmatch, not `$`, which would allow a trailing newline.
_is_name: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch


def is_valid_name(name: str) -> bool:
    # The pattern allows only ASCII, so characters are bytes.
    return len(name) <= MAX_LENGTH and _is_name(name) is not None


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL)


class _NameCache(dict[bytes, str]):
    """Maps received bytes to valid names.

    We don't keep invalid names, because a peer could send new ones forever, and they may be long.
    """

    def __missing__(self, raw: bytes) -> str | None:
        if len(raw) > MAX_LENGTH or not raw.isascii():
            return None
        name = raw.decode("ascii")
        if not is_valid_name(name):
            return None
        if len(self) >= _CACHE_SIZE:
            self.clear()  # cheaper in the long run than tracking the order of use at each look-up
        self[raw] = name
        return name


# Returns the name in these bytes, or None if it is invalid. This is the dictionary's own subscript method: one look-up
# in C for every PUB. A function around it would double the cost.
decode_name: Final[Callable[[bytes], str | None]] = _NameCache().__getitem__
