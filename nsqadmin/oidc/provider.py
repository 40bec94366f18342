"""The provider over HTTP: its discovery document and keys, tokens for a code or a refresh token, and userinfo.

Everything here waits under trio. Answers have a time limit and a size limit, and we follow no redirects: the endpoints
are those that the discovery document of the issuer names.
"""

from __future__ import annotations

import json
import logging
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlsplit

import httpx
import trio

from nsqadmin.oidc.id_token import BadToken, Expected, Header, check_access_token, check_claims, header_of, keys_for
from nsqadmin.oidc.urls import why_not_a_url
from nsqadmin.session_keys import read_client_secret
from nsqadmin.upstream.client import FAILURES, failure_of
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqadmin.oidc.claims import Claims
    from nsqadmin.options import Options

log = logging.getLogger(__name__)

TIMEOUT: Final = 10.0  # seconds for one request
_MOST_BYTES: Final = 256 * 1024  # of an answer
_MOST_AT_ONCE: Final = 8  # requests to the provider
# Anyone can make us send a code, so these requests must not be in the way of those that confirm sessions.
_MOST_CODES_AT_ONCE: Final = 4
_FRESH_FOR: Final = 3600.0  # seconds after which we read the discovery document and the keys again
_KEYS_PAUSE: Final = 60.0  # seconds between two looks for a key that we don't know
_FAILED_PAUSE: Final = 5.0  # seconds in which we don't repeat a request for the discovery document that has failed


class ProviderAway(Exception):
    """The provider doesn't answer, or its answer is of no use. The message says what we have seen."""

    def __init__(self, message: str, *, is_silent: bool = False) -> None:
        """`is_silent`: it would not answer anyone else, either."""
        super().__init__(message)
        self.is_silent = is_silent


class Refused(Exception):
    """The provider refuses what we asked, with an error code of OAuth."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code}: {description}" if description else code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of the discovery document that we use."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    revocation_endpoint: str = ""
    sends_issuer: bool = False  # with the code (RFC 9207)
    secret_in_body: bool = False  # it takes our secret as a field only, not by HTTP Basic


@dataclass(frozen=True, slots=True)
class Tokens:
    """The answer of the token endpoint."""

    access_token: str
    id_token: str
    refresh_token: str


class Provider:
    def __init__(
        self,
        options: Options,
        *,
        clock: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Read the files that the options name; send nothing. Raise StartupError. Tests hand in a `transport`."""
        self.issuer = options.oidc_issuer
        self.client_id = options.oidc_client_id
        self._secret = read_client_secret(options.oidc_client_secret_file)
        self._tls: ssl.SSLContext | None = None  # loading the system's authorities takes a while, so we do it later
        if options.oidc_ca_file:
            self._tls = _tls_context(options.oidc_ca_file)
        elif transport is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._clock = clock
        self._transport = transport
        self._at_once = trio.CapacityLimiter(_MOST_AT_ONCE)
        self._codes_at_once = trio.CapacityLimiter(_MOST_CODES_AT_ONCE)
        self._reading = trio.Lock()  # held while we read the discovery document or the keys
        self._metadata: Metadata | None = None
        self._metadata_at = -_FRESH_FOR
        self._failed: tuple[float, ProviderAway] | None = None
        self._keys: list[object] = []
        self._keys_at = -_FRESH_FOR
        self._keys_tried_at = -_KEYS_PAUSE

    @property
    def host(self) -> str:
        return urlsplit(self.issuer).hostname or ""

    async def metadata(self) -> Metadata:
        """Return the discovery document, read at most an hour ago if the provider answers. Raise ProviderAway."""
        async with self._reading:
            now = trio.current_time()  # `_clock` may be set back, and then nothing would be read again for a long time
            if self._metadata is not None and now < self._metadata_at + _FRESH_FOR:
                return self._metadata
            if self._failed is not None and now < self._failed[0] + _FAILED_PAUSE:
                raise ProviderAway(str(self._failed[1]), is_silent=self._failed[1].is_silent)
            url = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
            try:
                self._metadata = self._checked(await self._get_json(url))
                self._metadata_at = now
            except ProviderAway as error:
                if self._metadata is None:
                    self._failed = (trio.current_time(), error)  # after the time limit, that is not `now`
                    raise
                self._metadata_at = now - _FRESH_FOR + _KEYS_PAUSE  # go on with the old one, and try again soon
                log.warning("OIDC: keeping the old discovery document - %s", error)
            return self._metadata

    async def redeem(self, code: str, *, verifier: str, redirect_uri: str) -> Tokens:
        """Exchange the code of a login. Raise ProviderAway or Refused."""
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        return await self._tokens(fields, self._codes_at_once)

    async def refresh(self, refresh_token: str) -> Tokens:
        """Get new tokens. Raise ProviderAway or Refused."""
        return await self._tokens({"grant_type": "refresh_token", "refresh_token": refresh_token}, self._at_once)

    async def revoke(self, refresh_token: str) -> None:
        """Tell the provider to forget a refresh token, if it can. Raise ProviderAway or Refused."""
        metadata = await self.metadata()
        if metadata.revocation_endpoint:
            await self._post(metadata, metadata.revocation_endpoint, {"token": refresh_token}, self._at_once)

    async def userinfo(self, access_token: str, subject: str) -> Claims:
        """Return the claims of the userinfo endpoint, {} if there is none. Raise ProviderAway or BadToken."""
        endpoint = (await self.metadata()).userinfo_endpoint
        if not endpoint or not access_token:
            return {}
        claims = await self._get_json(endpoint, {"authorization": f"Bearer {access_token}"})
        if claims.get("sub") != subject:  # OpenID Connect Core 5.3.2: otherwise it may be about someone else
            raise BadToken("the userinfo endpoint has answered about another account")
        return claims

    async def claims_of(self, tokens: Tokens, expected: Expected, *, is_refresh: bool = False) -> Claims:
        """Return the claims of the ID token, once everything about it is verified. Raise ProviderAway or BadToken."""
        header = header_of(tokens.id_token)
        keys = keys_for(header, await self._known_keys(header))
        signatures = await trio.to_thread.run_sync(import_module, "nsqadmin.oidc.signatures")
        claims: Claims = signatures.verified_claims(tokens.id_token, header, keys)
        check_claims(claims, expected, self._clock(), is_refresh=is_refresh)
        check_access_token(claims, header, tokens.access_token)
        return claims

    # Keys

    async def _known_keys(self, header: Header) -> list[object]:
        """Return the provider's keys. Read them again if they are old, or if none fits the token.

        The second happens after the provider has changed its keys, but tokens with invented key ids must not make us
        ask it all the time.
        """
        metadata = await self.metadata()
        async with self._reading:
            now = trio.current_time()
            is_old = now >= self._keys_at + _FRESH_FOR
            is_missing = not keys_for(header, self._keys) and now >= self._keys_tried_at + _KEYS_PAUSE
            if is_old or is_missing:
                self._keys_tried_at = now
                try:
                    found = (await self._get_json(metadata.jwks_uri)).get("keys")
                    if not isinstance(found, list):
                        raise ProviderAway(f"{metadata.jwks_uri} has no list of keys")
                except ProviderAway as error:
                    if is_missing or not self._keys:
                        raise
                    self._keys_at = now - _FRESH_FOR + _KEYS_PAUSE
                    log.warning("OIDC: keeping the old keys - %s", error)
                else:
                    self._keys, self._keys_at = found, now
            return self._keys

    # Requests

    async def _tokens(self, fields: Mapping[str, str], limiter: trio.CapacityLimiter) -> Tokens:
        metadata = await self.metadata()
        answer = await self._post(metadata, metadata.token_endpoint, fields, limiter)
        words = {name: answer.get(name, "") for name in ("access_token", "id_token", "refresh_token")}
        if not all(isinstance(word, str) and word.isascii() for word in words.values()):
            raise ProviderAway(f"{metadata.token_endpoint} has sent tokens that are no texts")
        return Tokens(**words)

    async def _post(
        self, metadata: Metadata, url: str, fields: Mapping[str, str], limiter: trio.CapacityLimiter
    ) -> dict[str, Any]:
        """Send a form, with proof of who we are. Return the answer. Raise ProviderAway or Refused."""
        headers = {}
        fields = {**fields, "client_id": self.client_id}
        if self._secret and metadata.secret_in_body:
            fields["client_secret"] = self._secret
        elif self._secret:
            # RFC 6749 2.3.1: both are encoded as in a form first, so that a colon in the id is no border.
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self._secret)}"
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        status, body = await self._exchange("POST", url, headers, limiter, fields)
        if status == 200:
            return _object(body, url) if body.strip() else {}
        error = {}
        if 400 <= status < 500:
            try:
                error = _object(body, url)
            except ProviderAway:
                pass
        if not isinstance(code := error.get("error"), str):
            raise ProviderAway(f"{url} answers with status {status}", is_silent=status >= 500)
        raise Refused(plain(code), plain(error.get("error_description", "")))

    async def _get_json(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        status, body = await self._exchange("GET", url, headers or {}, self._at_once)
        if status != 200:
            raise ProviderAway(f"{url} answers with status {status}", is_silent=status >= 500)
        return _object(body, url)

    async def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        limiter: trio.CapacityLimiter,
        fields: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body. Logins are rare, so a connection is opened for each request."""
        try:
            with trio.fail_after(TIMEOUT):
                async with limiter:
                    if self._tls is None:
                        self._tls = await trio.to_thread.run_sync(_tls_context, "")
                    async with (
                        httpx.AsyncClient(
                            verify=self._tls,
                            trust_env=False,
                            follow_redirects=False,
                            timeout=TIMEOUT,
                            transport=self._transport,
                            # Unpacking could make any number of bytes of a few.
                            headers={
                                "user-agent": "nsqadmin",
                                "accept": "application/json",
                                "accept-encoding": "identity",
                            },
                        ) as client,
                        client.stream(method, url, headers=dict(headers), data=fields) as response,
                    ):
                        return response.status_code, await _body_of(response)
        except FAILURES as error:
            reason = (
                f"no answer within {TIMEOUT:g} s" if isinstance(error, trio.TooSlowError) else failure_of(url, error)
            )
            is_silent = isinstance(error, httpx.TransportError | trio.TooSlowError | OSError)
            raise ProviderAway(f"{url}: {reason}", is_silent=is_silent) from error

    # The discovery document

    def _checked(self, document: Mapping[str, Any]) -> Metadata:
        """Return the document if it is the issuer's own. Raise ProviderAway."""
        if document.get("issuer") != self.issuer:
            raise ProviderAway(
                f"the discovery document names the issuer {plain(document.get('issuer'))}, "
                f"but --oidc-issuer is {self.issuer}; they must be equal, also in a slash at the end"
            )
        urls = {
            name: self._endpoint(
                document, name, is_needed=name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
            )
            for name in Metadata.__dataclass_fields__
            if name.endswith(("_endpoint", "_uri"))
        }
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        known = methods if isinstance(methods, list) else []
        if self._secret and not {"client_secret_basic", "client_secret_post"} & {
            it for it in known if isinstance(it, str)
        }:
            raise ProviderAway(
                f"the provider takes a client secret neither by HTTP Basic nor as a field: {plain(known)}"
            )
        return Metadata(
            **urls,
            sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
            secret_in_body="client_secret_basic" not in known,
        )

    def _endpoint(self, document: Mapping[str, Any], name: str, *, is_needed: bool) -> str:
        url = document.get(name)
        if url is None and not is_needed:
            return ""
        # An issuer on this machine may have plain endpoints, but a real one must not lead us to this machine's others.
        if (
            not isinstance(url, str)
            or why_not_a_url(url)
            or (url.startswith("http:") and self.issuer.startswith("https:"))
        ):
            raise ProviderAway(f"the discovery document has no usable {name}: {plain(url)}")
        return url


async def _body_of(response: httpx.Response) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ValueError("its answer is compressed, although we asked for a plain one")
    body = bytearray()
    # Leaving the loop by an exception would leave httpx's generators to the garbage collector; cancelling ends each.
    with trio.CancelScope() as scope:
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > _MOST_BYTES:
                scope.cancel()
    if len(body) > _MOST_BYTES:
        raise ValueError(f"its answer has more than {_MOST_BYTES} bytes")
    return bytes(body)


def _object(body: bytes, url: str) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ProviderAway(f"{url} has not answered with a JSON object")
    return value


def plain(text: object) -> str:
    """Return a short text of someone else, fit for our log and pages."""
    return "".join(it if it.isprintable() else " " for it in str(text)[:300])


def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or only those of the file. Raise StartupError."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to read --oidc-ca-file ({ca_file}) - {error}") from error
