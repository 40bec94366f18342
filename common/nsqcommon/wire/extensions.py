"""Extensions of NSQ's protocol: their names, and the words of those that are granted to a connection.

A client lists the names in IDENTIFY, and the answer lists those that it gets. Without them the connection is as in NSQ.
"""

from __future__ import annotations

import re
from typing import Final

BURY: Final = "bury"  # BURY, and REQ with FREE
KEYS: Final = "keys"  # a last word of PUB, DPUB and MPUB: a publish that may be repeated
HEADERS: Final = "headers"  # HPUB, HDPUB and HMPUB; messages that have headers come with them, as frames of type 3
HTTP: Final = "http"  # the answer to IDENTIFY tells where the same nsqd serves HTTP
EXTENSIONS: Final = (KEYS, HEADERS, BURY, HTTP)  # what nsqd grants and nsqclient asks for

FREE: Final = b"free"  # the word after the delay of a REQ whose attempt does not count
MOST_OF_REASON: Final = 256  # bytes of the reason of a BURY; a longer one is cut

MOST_OF_KEY: Final = 64  # bytes
# Changes each byte that a key may not have, and leaves the others, which are the printable ones without the space.
_WRONG_CHANGED: Final = bytes([byte if 32 < byte < 127 else (byte + 1) % 256 for byte in range(256)])
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def is_valid_key(key: bytes) -> bool:
    """Return whether a publish may have this key: 1 to 64 printable characters of ASCII, and no space.

    nsqd asks this for every publish with a key, and a regular expression takes three times as long.
    """
    return 0 < len(key) <= MOST_OF_KEY and key.translate(_WRONG_CHANGED) == key


def clean_reason(text: str) -> str:
    """Return the reason as it is kept: on one line, valid as UTF-8, and cut after its last whole character."""
    shown = _CONTROL.sub(" ", text[:MOST_OF_REASON]).encode("utf-8", "replace")
    return shown[:MOST_OF_REASON].decode("utf-8", "ignore")


def decode_reason(words: list[bytes]) -> str:
    """Return the reason that the last words of a BURY tell. What is not UTF-8 is replaced."""
    return clean_reason(b" ".join(words).decode("utf-8", "replace"))


def granted(asked: tuple[str, ...] | None, offered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the offered extensions that were asked for. Unknown names and repetitions do not matter."""
    return tuple(name for name in offered if asked is not None and name in asked)


# The commands as clients and tests send them


def bury(message_id: bytes, reason: str = "") -> bytes:
    return b"BURY %b %b\n" % (message_id, clean_reason(reason).encode())


def req_free(message_id: bytes, ms: int) -> bytes:
    """Encode a REQ that leaves the number of attempts as it was before the delivery."""
    return b"REQ %b %d %b\n" % (message_id, ms, FREE)
