"""Seals the values of cookies: encrypted, and unforgeable. Import this module in a thread, because that takes 50 ms.

A session holds a refresh token, with which anyone could get tokens of the user, so a signature alone isn't enough.
AES-GCM does both. For each purpose, and each pair of provider and own URL, we derive a key of its own: the cookie of a
login attempt is no session, and a session of a test cluster is none of production, even if they share the key file.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION: Final = b"\x01"
_ID: Final = 4  # bytes that tell which key has sealed
_NONCE: Final = 12  # bytes
_HEAD: Final = len(_VERSION) + _ID + _NONCE
_LONGEST: Final = 8192  # characters


class Sealer:
    def __init__(self, keys: Sequence[bytes], purpose: str) -> None:
        """The first key seals, and all of them open."""
        derived = [hmac.digest(key, f"nsqadmin {purpose}".encode(), "sha256") for key in keys]
        self._keys = {hmac.digest(key, b"id", "sha256")[:_ID]: AESGCM(key) for key in derived}
        self._first = next(iter(self._keys))

    def seal(self, value: bytes) -> str:
        nonce = secrets.token_bytes(_NONCE)
        head = _VERSION + self._first
        sealed = self._keys[self._first].encrypt(nonce, value, head)
        return urlsafe_b64encode(head + nonce + sealed).rstrip(b"=").decode()

    def open(self, text: str) -> bytes | None:
        """Return the value, or None if we haven't sealed this text."""
        if len(text) > _LONGEST or not text.isascii():
            return None
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (NotBase64, ValueError):
            return None
        key = self._keys.get(data[len(_VERSION) : len(_VERSION) + _ID])
        if key is None or data[: len(_VERSION)] != _VERSION:
            return None
        try:
            return key.decrypt(data[_HEAD - _NONCE : _HEAD], data[_HEAD:], data[: _HEAD - _NONCE])
        except (InvalidTag, ValueError):
            return None
