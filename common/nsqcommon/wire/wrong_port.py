"""What shows that a peer expects another protocol at this port: HTTP, or the one of nsqlookupd.

NSQ's daemons have two ports each, so it happens to everyone once.
"""

from __future__ import annotations

from typing import Final

# The first four bytes of HTTP requests, where a magic belongs.
HTTP_REQUESTS: Final = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN"})
# The first four bytes of an HTTP response, read as a size.
HTTP_RESPONSE: Final = int.from_bytes(b"HTTP")
# nsqlookupd's answer to the magic of nsqd's clients. It has no frame types, so they read its first four bytes as one.
KIND_OF_NSQLOOKUPD: Final = int.from_bytes(b"E_BAD_PROTOCOL"[:4])
