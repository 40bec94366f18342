"""Verifies signatures of ID tokens, by joserfc. Import this module in a thread, because that takes 150 ms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from nsqadmin.oidc.id_token import BadToken, Header

if TYPE_CHECKING:
    from nsqadmin.oidc.claims import Claims

_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")


def verified_claims(token: str, header: Header, keys: Iterable[dict[str, Any]]) -> Claims:
    """Return the claims of a token that one of the keys has signed with the header's algorithm. Raise BadToken.

    `id_token.keys_for` has chosen the keys, so each of them is of the algorithm's kind.
    """
    for key in keys:
        public = {name: key[name] for name in _PUBLIC if isinstance(key.get(name), str)}
        try:
            imported = RSAKey.import_key(public) if key["kty"] == "RSA" else ECKey.import_key(public)
            return jwt.decode(token, imported, algorithms=[header.alg]).claims
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):
            continue
    raise BadToken("its signature is not by a key of the provider")
