"""Names of topics and channels: which are valid, and which mean "ephemeral"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH: Final = 64  # in bytes, the suffix included
EPHEMERAL: Final = "#ephemeral"

_CACHE_SIZE: Final = 8192  # names; more topics than that in use at once only cost some decoding

# Always with fullmatch: a `$` would let a trailing newline pass.
_is_name: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch


def is_valid_name(name: str) -> bool:
    # All that the pattern allows is ASCII, so characters are bytes.
    return len(name) <= MAX_LENGTH and _is_name(name) is not None


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL)


class _Decoded(dict[bytes, str]):
    """Names as they came, to the text that they are. What is no name is not kept: a peer could invent such
    for ever, and they may be long."""

    def __missing__(self, raw: bytes) -> str | None:
        if len(raw) > MAX_LENGTH or not raw.isascii():
            return None
        name = raw.decode("ascii")
        if not is_valid_name(name):
            return None
        if len(self) >= _CACHE_SIZE:
            self.clear()  # cheaper over the years than to keep an order of use at each look-up
        self[raw] = name
        return name


# The name that the bytes spell, or None where they are no valid name. This is the dictionary's own
# subscript, hence one look-up in C on every PUB; a function around it would cost as much again.
decode_name: Final[Callable[[bytes], str | None]] = _Decoded().__getitem__
