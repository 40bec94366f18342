"""Names of topics and channels: which of them are valid, and which are ephemeral."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH: Final = 64  # in bytes, including the suffix
EPHEMERAL: Final = "#ephemeral"

_CACHE_SIZE: Final = 8192  # names; if more are in use at once, some are decoded again

# With fullmatch: a `$` would let a trailing newline pass.
_is_name: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch


def is_valid_name(name: str) -> bool:
    # The pattern allows only ASCII, so characters are bytes.
    return len(name) <= MAX_LENGTH and _is_name(name) is not None


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL)


class _Decoded(dict[bytes, str]):
    """Maps received bytes to valid names.

    Invalid names are not kept: a peer could send new ones for ever, and they may be long.
    """

    def __missing__(self, raw: bytes) -> str | None:
        if len(raw) > MAX_LENGTH or not raw.isascii():
            return None
        name = raw.decode("ascii")
        if not is_valid_name(name):
            return None
        if len(self) >= _CACHE_SIZE:
            self.clear()  # cheaper in the long run than keeping an order of use at each look-up
        self[raw] = name
        return name


# Returns the name that the bytes spell, or None if it is invalid. This is the dictionary's own subscript method, which
# is one look-up in C on every PUB; a function around it would cost as much again.
decode_name: Final[Callable[[bytes], str | None]] = _Decoded().__getitem__
