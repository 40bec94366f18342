"""Our extensions of NSQ's protocol: their names, and the words that a connection may use with them.

A client asks for extensions by name in IDENTIFY, and the reply lists those that we grant. Without any, the connection
works as in NSQ.
"""

from __future__ import annotations

import re
from typing import Final

BURY: Final = "bury"  # BURY, and REQ with FREE
KEYS: Final = "keys"  # a last word of PUB, DPUB and MPUB; with it, you can safely retry a publish
HEADERS: Final = "headers"  # HPUB, HDPUB and HMPUB; messages with headers arrive as frames of type 3
HTTP: Final = "http"  # the reply to IDENTIFY says where the same nsqd serves HTTP
EXTENSIONS: Final = (KEYS, HEADERS, BURY, HTTP)  # nsqd offers these, and nsqclient asks for them

FREE: Final = b"free"  # the word after the delay of a REQ whose attempt doesn't count
MOST_OF_REASON: Final = 256  # bytes of a BURY's reason; we truncate a longer one

MOST_OF_KEY: Final = 64  # bytes
# Changes each byte that a key must not have. Printable characters stay the same, except for the space.
_WRONG_CHANGED: Final = bytes([byte if 32 < byte < 127 else (byte + 1) % 256 for byte in range(256)])
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def is_valid_key(key: bytes) -> bool:
    """Return whether a publish may have this key: 1 to 64 printable ASCII characters, without a space.

    nsqd calls this for every publish with a key, and a regular expression would take three times as long.
    """
    return 0 < len(key) <= MOST_OF_KEY and key.translate(_WRONG_CHANGED) == key


def clean_reason(text: str) -> str:
    """Return the reason as we keep it: on one line, in valid UTF-8, and truncated after a whole character."""
    shown = _CONTROL.sub(" ", text[:MOST_OF_REASON]).encode("utf-8", "replace")
    return shown[:MOST_OF_REASON].decode("utf-8", "ignore")


def decode_reason(words: list[bytes]) -> str:
    """Return the reason in the last words of a BURY, with invalid UTF-8 replaced."""
    return clean_reason(b" ".join(words).decode("utf-8", "replace"))


def granted(asked: tuple[str, ...] | None, offered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the offered extensions that the client asked for. Unknown and repeated names are ignored."""
    return tuple(name for name in offered if asked is not None and name in asked)


# The commands as clients and tests send them


def bury(message_id: bytes, reason: str = "") -> bytes:
    return b"BURY %b %b\n" % (message_id, clean_reason(reason).encode())


def req_free(message_id: bytes, ms: int) -> bytes:
    """Encode a REQ whose delivery doesn't count as an attempt."""
    return b"REQ %b %d %b\n" % (message_id, ms, FREE)
