"""A message's group: its header `nsq-group`, 1 to 128 bytes of UTF-8.

nsqd refuses no message because of its group: one that breaks this rule counts as none there. Publishers (nsqclient, the
tools, publishing over HTTP) refuse it, because a program that sends one has a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from nsqcommon.wire.headers import BadHeaders

GROUP: Final = "nsq-group"
MOST_BYTES: Final = 128

_MOST_SHOWN: Final = 40  # characters of a group in an error


def checked_group(group: str | bytes) -> bytes:
    """Return the group encoded. Raise BadHeaders if nsqd would count it as none."""
    if not isinstance(group, str | bytes):
        raise BadHeaders(f"invalid group {_shown(group)}: expected text or bytes")
    try:
        encoded = group.encode() if isinstance(group, str) else group
        encoded.decode()
    except UnicodeError:
        raise BadHeaders(f"invalid group {_shown(group)}: not UTF-8") from None
    if not 1 <= len(encoded) <= MOST_BYTES:
        raise BadHeaders(f"invalid group {_shown(group)}: {len(encoded)} bytes, expected 1 to {MOST_BYTES}")
    return encoded


def valid_group(encoded: bytes | None) -> str | None:
    """Return the group in a header's value as text, or None if there is none that counts."""
    if encoded is None or not 1 <= len(encoded) <= MOST_BYTES:
        return None
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return None


def without_bad_group(headers: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return a message's headers without a group that nsqd counts as none, for passing the message on.

    Its next publisher would refuse it, each time that it is passed on again.
    """
    if GROUP not in headers or valid_group(headers[GROUP]) is not None:
        return headers
    return {name: value for name, value in headers.items() if name != GROUP}


def _shown(group: object) -> str:
    if isinstance(group, bytes):
        with suppress(UnicodeDecodeError):
            group = group.decode()
    text = repr(group)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
