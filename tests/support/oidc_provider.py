"""An OpenID Connect provider for tests: an ASGI application that keeps to the rules, unless a test makes it lie.

It has one user, who is logged in there already, so its page sends the browser back at once. It checks what a strict
provider checks: the redirect URI, PKCE, the client's secret, that a code is used once, and, with `rotates`, that a
refresh token is; otherwise it ends all tokens of that login.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey

Claims = dict[str, Any]


@dataclass
class Grant:
    """What a code or a refresh token stands for."""

    nonce: str
    challenge: str = ""
    redirect_uri: str = ""
    family: str = field(default_factory=lambda: secrets.token_hex(8))


def new_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "alg": "ES256", "use": "sig"})


class OidcProvider:
    def __init__(
        self, issuer: str, clock: Callable[[], float], *, client_id: str = "nsqadmin", client_secret: str = "s3:c ret%"
    ) -> None:
        self.issuer, self.clock = issuer, clock
        self.client_id, self.client_secret = client_id, client_secret
        self.redirect_uris: set[str] = set()
        self.user: Claims = {"sub": "u-1", "email": "ana@example.com", "email_verified": True, "groups": ["sre"]}
        self.key = new_key("k1")
        self.keys: list[Claims] = [dict(self.key.as_dict(private=False))]
        self.metadata: Claims = {}  # in addition to the usual ones, or instead of them
        self.extra_claims: Claims = {}  # in ID tokens, in addition to the usual ones, or instead of them
        self.header: Claims = {}  # the same in the header
        self.sign: Callable[[Claims, Claims], str] = self._sign  # how ID tokens are made of header and claims
        self.keeps: frozenset[str] = frozenset()  # claims that are at the userinfo endpoint only
        self.sends_id_token = True  # at a refresh
        self.sends_refresh_token = True
        self.rotates = True
        self.refuses = ""  # an error of OAuth with which the token endpoint answers
        self.before: Callable[[str], Awaitable[None]] | None = None  # awaited with the path of each request
        self.asked: Counter[str] = Counter()
        self.revoked: list[str] = []
        self._codes: dict[str, Grant] = {}
        self._refresh_tokens: dict[str, Grant] = {}
        self._used: dict[str, str] = {}  # families of refresh tokens that were replaced
        self._access_tokens: dict[str, Claims] = {}

    def end_sessions(self) -> None:
        """Do as if the user was blocked."""
        self._refresh_tokens.clear()

    # The user's browser

    def authorize(self, url: str) -> str:
        """Return where the login page sends the browser: back to nsqadmin, with a code."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{self.issuer}/authorize?")
        assert asked["redirect_uri"] in self.redirect_uris, asked
        assert (asked["response_type"], asked["client_id"]) == ("code", self.client_id)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = Grant(asked["nonce"], asked["code_challenge"], asked["redirect_uri"])
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.issuer})}"

    # Requests of nsqadmin

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.asked[path] += 1
        if self.before is not None:
            await self.before(path)
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        status, answer = self.answer(path, dict(parse_qsl(body.decode(), keep_blank_values=True)), headers)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        lines = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": content})

    def answer(self, path: str, fields: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        match path:
            case "/.well-known/openid-configuration":
                return 200, self._discovery()
            case "/jwks":
                return 200, {"keys": self.keys}
            case "/userinfo":
                claims = self._access_tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
                return (200, claims) if claims is not None else (401, {"error": "invalid_token"})
            case "/token" | "/revoke":
                if not self._is_client(fields, headers):
                    return 401, {"error": "invalid_client"}
                if self.refuses:
                    return 400, {"error": self.refuses}
                return self._token(fields) if path == "/token" else self._revoke(fields)
        return 404, {}

    def _discovery(self) -> Claims:
        names = {"authorization": "/authorize", "token": "/token", "userinfo": "/userinfo", "revocation": "/revoke"}
        endpoints = {f"{name}_endpoint": self.issuer + path for name, path in names.items()}
        logout = {"end_session_endpoint": f"{self.issuer}/logout"}
        return {"issuer": self.issuer, **endpoints, **logout, "jwks_uri": f"{self.issuer}/jwks", **self.metadata}

    def _is_client(self, fields: dict[str, str], headers: dict[str, str]) -> bool:
        if "authorization" in headers:
            pair = b64decode(headers["authorization"].removeprefix("Basic ")).decode()
            client_id, _, secret = (unquote_plus(part) for part in pair.partition(":"))
        else:
            client_id, secret = fields.get("client_id", ""), fields.get("client_secret", "")
        return (client_id, secret) == (self.client_id, self.client_secret)

    def _token(self, fields: dict[str, str]) -> tuple[int, Any]:
        if fields["grant_type"] == "authorization_code":
            grant = self._codes.pop(fields["code"], None)
            challenge = urlsafe_b64encode(hashlib.sha256(fields["code_verifier"].encode()).digest()).rstrip(b"=")
            fits = grant and (grant.challenge, grant.redirect_uri) == (challenge.decode(), fields["redirect_uri"])
            return (200, self._tokens(grant)) if grant and fits else (400, {"error": "invalid_grant"})
        old = fields["refresh_token"]
        if (family := self._used.get(old)) is not None:
            self._refresh_tokens = {it: kept for it, kept in self._refresh_tokens.items() if kept.family != family}
        grant = self._refresh_tokens.get(old)
        if grant is None:
            return 400, {"error": "invalid_grant", "error_description": "Session not active"}
        if self.rotates:
            self._used[old] = self._refresh_tokens.pop(old).family
        return 200, self._tokens(grant, is_refresh=True)

    def _tokens(self, grant: Grant, *, is_refresh: bool = False) -> Claims:
        access_token = secrets.token_urlsafe(16)
        self._access_tokens[access_token] = dict(self.user)
        answer: Claims = {"access_token": access_token, "token_type": "Bearer", "expires_in": 300}
        if self.sends_id_token or not is_refresh:
            answer["id_token"] = self._id_token("" if is_refresh else grant.nonce, access_token)
        if self.sends_refresh_token and (self.rotates or not is_refresh):
            answer["refresh_token"] = token = secrets.token_urlsafe(16)
            self._refresh_tokens[token] = grant
        return answer

    def _id_token(self, nonce: str, access_token: str) -> str:
        now = int(self.clock())
        half = urlsafe_b64encode(hashlib.sha256(access_token.encode()).digest()[:16]).rstrip(b"=").decode()
        claims: Claims = {"iss": self.issuer, "aud": self.client_id, "iat": now, "exp": now + 300, "at_hash": half}
        if nonce:
            claims["nonce"] = nonce
        claims |= {name: it for name, it in self.user.items() if name not in self.keeps}
        claims |= self.extra_claims
        given = {name: it for name, it in claims.items() if it is not None}
        return self.sign({"alg": "ES256", "kid": "k1", "typ": "JWT", **self.header}, given)

    def _sign(self, header: Claims, claims: Claims) -> str:
        return jwt.encode(header, claims, self.key, algorithms=[header["alg"]])

    def _revoke(self, fields: dict[str, str]) -> tuple[int, Any]:
        self.revoked.append(fields["token"])
        self._refresh_tokens.pop(fields["token"], None)
        return 200, b""
