"""The rules for an ID token (OpenID Connect Core 3.1.3.7). `signatures.py` verifies its signature.

The header decides nothing: which algorithms are allowed, and which key may have signed with which of them, is said here.
Otherwise an attacker could send a token without a signature (`none`), or one whose HMAC key is the provider's public
key.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nsqadmin.oidc.claims import Claims

LEEWAY: Final = 60.0  # seconds by which the clocks of provider and nsqadmin may differ

# By algorithm: the kind of key that it needs, and the curve of that kind.
_KEY_OF: Final[Mapping[str, tuple[str, str]]] = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
}
_SHORTEST_RSA: Final = 256  # bytes: 2,048 bits
_LONGEST_RSA: Final = 1024  # bytes; verifying takes longer with each
_MOST_KEYS: Final = 4  # to try for a token that names no key
_TYPES: Final = ("JWT", "jwt")  # an access token has `at+jwt`, and is not for us
_LONGEST: Final = 64 * 1024  # characters of a token


class BadToken(ValueError):
    """The ID token is not valid. The message says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class Header:
    alg: str
    kid: str  # "" if the token names no key


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The values that a token for us has."""

    issuer: str
    client_id: str
    nonce: str
    subject: str = ""  # at a refresh: the one of the login


def header_of(token: str) -> Header:
    """Return the header of a token that may be verified. Raise BadToken."""
    if len(token) > _LONGEST or token.count(".") != 2:
        raise BadToken("it is not a signed token of three parts")
    try:
        header = json.loads(_decoded(token.partition(".")[0]))
    except (ValueError, RecursionError):
        raise BadToken("its header is not JSON") from None
    if not isinstance(header, dict):
        raise BadToken("its header is not a JSON object")
    alg, kid = header.get("alg"), header.get("kid", "")
    if not isinstance(alg, str) or alg not in _KEY_OF:
        raise BadToken(f"its algorithm is {str(alg)[:20]!r}; allowed are {', '.join(_KEY_OF)}")
    if not isinstance(kid, str):
        raise BadToken("its key id is not a text")
    if "crit" in header:
        raise BadToken("it has critical extensions")
    if header.get("typ", "JWT") not in _TYPES:
        raise BadToken(f"its type is {str(header['typ'])[:20]!r}, not 'JWT'")
    return Header(alg, kid)


def keys_for(header: Header, keys: Iterable[object]) -> list[dict[str, Any]]:
    """Return the provider's keys that may have signed a token with this header."""
    fitting = [key for key in keys if isinstance(key, dict) and _fits(key, header.alg)]
    if header.kid:
        return [key for key in fitting if key.get("kid") == header.kid][:_MOST_KEYS]
    return fitting[:_MOST_KEYS]


def _fits(key: Mapping[str, Any], alg: str) -> bool:
    kind, curve = _KEY_OF[alg]
    if key.get("kty") != kind or key.get("use", "sig") != "sig" or key.get("alg", alg) != alg:
        return False
    if kind == "EC":
        return bool(key.get("crv") == curve)
    try:
        return _SHORTEST_RSA <= len(_decoded(key.get("n", "")).lstrip(b"\0")) <= _LONGEST_RSA
    except (ValueError, TypeError):
        return False


def check_claims(claims: Claims, expected: Expected, now: float, *, is_refresh: bool = False) -> None:
    """Raise BadToken unless the claims of a verified token are meant for us, and for this login.

    The token of a refresh needs no nonce; if it has one, it is that of the login (OpenID Connect Core 12.2).
    """
    if claims.get("iss") != expected.issuer:
        raise BadToken(f"its issuer is {_shown(claims.get('iss'))}, not {expected.issuer}")
    _check_audience(claims, expected.client_id)
    expires, issued, valid_from = (_moment(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise BadToken("it does not say when it was issued and when it expires")
    if now >= expires + LEEWAY:
        raise BadToken(f"it expired {now - expires:.0f} s ago; compare the clocks of the provider and nsqadmin")
    if max(issued, valid_from or issued) > now + LEEWAY:
        raise BadToken(f"it was issued {issued - now:.0f} s from now; compare the clocks of the provider and nsqadmin")
    nonce = claims.get("nonce")
    if nonce != expected.nonce and not (is_refresh and nonce is None):
        raise BadToken("its nonce is not the one of this login")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise BadToken("it names no subject")
    if expected.subject and subject != expected.subject:
        raise BadToken("it is about another account")


def _check_audience(claims: Claims, client_id: str) -> None:
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if client_id not in named:
        raise BadToken(f"it is for {_shown(audience)}, not for {client_id}")
    party = claims.get("azp")
    if (party is not None or len(named) > 1) and party != client_id:
        raise BadToken(f"it was issued to {_shown(party)}, not to {client_id}")


def check_access_token(claims: Claims, header: Header, access_token: str) -> None:
    """Raise BadToken if the ID token was made for another access token (`at_hash`, which is optional)."""
    if (given := claims.get("at_hash")) is None:
        return
    digest = hashlib.new(f"sha{header.alg[2:]}", access_token.encode()).digest()
    half = urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode()
    if given != half:
        raise BadToken("its at_hash does not fit the access token")


def _moment(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:  # also refuses NaN
        raise BadToken(f"its {name} is not a time")
    return float(value)


def _decoded(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except NotBase64 as error:
        raise ValueError(str(error)) from error


def _shown(value: object) -> str:
    return repr(str(value)[:200])
