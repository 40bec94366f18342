"""The login by a provider, from the button to the session and its end.

A login that is under way is kept in a cookie of the browser that began it, so another nsqadmin can finish it, and a
callback without that cookie, or a second one with it, is refused. Each login has a state, a nonce and a PKCE verifier of
its own. All methods that wait run under trio.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from time import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import trio

from nsqadmin.oidc.claims import BadClaims, are_groups_elsewhere, groups_in, name_in
from nsqadmin.oidc.cookies import ATTEMPT_HOLDS_FOR, MOST, Cookies
from nsqadmin.oidc.id_token import BadToken, Expected
from nsqadmin.oidc.provider import TIMEOUT, Provider, ProviderAway, Refused, plain
from nsqadmin.oidc.session import Session, State, load_session
from nsqadmin.oidc.session_book import SessionBook
from nsqadmin.oidc.urls import OwnUrls
from nsqadmin.session_keys import read_keys
from nsqcommon.options import seconds
from nsqcommon.startup import StartupError
from nsqcommon.version import how_to_install

if TYPE_CHECKING:
    import httpx

    from nsqadmin.oidc.claims import Claims
    from nsqadmin.oidc.provider import Tokens
    from nsqadmin.oidc.sealing import Sealer
    from nsqadmin.options import Options

log = logging.getLogger(__name__)

EXTRA: Final = "admin-oidc"
_NEEDED: Final = ("joserfc", "cryptography")
_MOST_ASKING: Final = TIMEOUT + 2  # seconds to confirm a session, which takes one to four requests
_NONE: Final = ""
_RETRY: Final = 15.0  # seconds until we ask a provider again that hasn't answered
_MOST_USED: Final = 10_000  # states of finished logins that we remember
_MOST_PAUSES: Final = 10_000
# The user has logged out or was blocked, the token is too old, or the provider wants to see the user. Any other error is
# about nsqadmin, such as a client secret that was changed.
_GONE: Final = frozenset(
    ("invalid_grant", "access_denied", "interaction_required", "login_required", "consent_required")
)


class LoginFailed(Exception):
    """The login can't be finished. The message is for the user."""


class NoSession(Exception):
    """The user has to log in. The message says why; it is empty if there was no session."""

    def __init__(self, reason: str = "", *, is_provider_away: bool = False) -> None:
        super().__init__(reason)
        self.is_provider_away = is_provider_away


@dataclass(frozen=True, slots=True)
class Current:
    """The session of a request."""

    session: Session
    cookie: str = ""  # the header that hands the browser a newer copy; empty if it has the newest


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where to send the browser, with the cookies to set."""

    url: str
    cookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """A login that is under way."""

    state: str
    nonce: str
    verifier: str
    path: str  # to show afterwards
    began: float


class LoginFlow:
    def __init__(
        self,
        options: Options,
        *,
        is_group_used: Callable[[str], bool],
        is_local: Callable[[str], bool],
        clock: Callable[[], float] = time,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Read the files that the options name. Raise StartupError if one can't be used, or a package is missing.

        `is_group_used` tells whether a role is about a group; other groups find no room in the cookie. `is_local` tells
        whether a name is that of a local account.
        """
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            raise StartupError(f"--oidc-issuer needs {missing[0]}, which comes with: {how_to_install(EXTRA)}")
        self.urls = OwnUrls(options.external_url.rstrip("/"), options.prefix)
        self.cookies = Cookies(self.urls)
        self.provider = Provider(options, clock=clock, transport=transport)
        self.book = SessionBook()
        self._scopes = options.oidc_scope
        self._parameters = dict(it.partition("=")[::2] for it in options.oidc_authorization_parameter)
        self._name_claim, self._groups_claim = options.oidc_name_claim, options.oidc_groups_claim
        self._prefix = options.oidc_prefix
        self._longest = seconds(options.oidc_max_session)
        self._is_group_used, self._is_local = is_group_used, is_local
        self._clock = clock
        self._keys = read_keys(options.session_key_file)
        self._sealers: dict[str, Sealer] = {}
        self._used: OrderedDict[str, float] = OrderedDict()  # states of finished logins
        self._asking: dict[str, trio.Event] = {}  # by session: set when the provider has answered
        self._is_away = False  # the provider didn't answer the last question
        self._not_before: dict[str, float] = {}  # by session, "" for all: when to ask again after a failure
        if not self.urls.is_secure:
            log.warning("OIDC: --external-url is plain HTTP, so anyone on the network can take over sessions")
        if not options.session_key_file:
            log.warning("OIDC: without --session-key-file all users have to log in again after a restart")

    # Log in

    async def begin(self, path: str, cookies: Mapping[str, str]) -> Redirect:
        """Begin a login that leads back to `path`. Raise ProviderAway."""
        endpoint = (await self.provider.metadata()).authorization_endpoint
        attempt = _Attempt(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            path=self.urls.safe_path(path),
            began=self._clock(),
        )
        challenge = urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode()
        query = urlencode(
            {
                **self._parameters,
                "response_type": "code",
                "client_id": self.provider.client_id,
                "redirect_uri": self.urls.callback,
                "scope": " ".join(self._scopes),
                "state": attempt.state,
                "nonce": attempt.nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        sealer = await self._sealer("login")
        fields = [attempt.state, attempt.nonce, attempt.verifier, attempt.path, attempt.began]
        value = sealer.seal(json.dumps(fields).encode())
        return Redirect(
            f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{query}",
            (*self.cookies.end_old_attempts(cookies), self.cookies.set_attempt(attempt.state, value)),
        )

    async def finish(self, answer: Mapping[str, str], cookies: Mapping[str, str]) -> Redirect:
        """Finish a login with the arguments of the callback.

        Return the page to show, with the cookie of the session. Raise LoginFailed, or ProviderAway.
        """
        attempt = await self._attempt(answer.get("state", ""), cookies)
        self._use_up(attempt.state)
        if (error := answer.get("error")) is not None:
            description = plain(answer.get("error_description", ""))
            raise LoginFailed(f"The provider refused: {plain(error)}" + (f" ({description})" if description else ""))
        if not answer.get("code"):
            raise LoginFailed("The answer of the provider has no code.")
        issuer = answer.get("iss")
        if issuer != self.provider.issuer and (issuer is not None or (await self.provider.metadata()).sends_issuer):
            raise LoginFailed("The answer comes from another provider than the one that was asked.")
        try:
            tokens = await self.provider.redeem(
                answer.get("code", ""), verifier=attempt.verifier, redirect_uri=self.urls.callback
            )
            session = await self._logged_in(attempt, tokens)
        except Refused as error:
            log.warning("OIDC: the provider refused a code - %s", error)
            raise LoginFailed(f"The provider refused to finish the login: {error}") from error
        except BadToken as error:
            log.warning("OIDC: refused an ID token - %s", error)
            raise LoginFailed(f"The ID token of the provider is not valid: {error}.") from error
        except BadClaims as error:
            log.warning("OIDC: refused a login - %s", error)
            raise LoginFailed(f"This account can't be used: {error}.") from error
        log.info("logged in user=%s groups=%s", self.name_of(session), ",".join(self.groups_of(session)))
        return Redirect(attempt.path, (self.cookies.end_attempt(attempt.state), await self._cookie(session)))

    async def _attempt(self, state: str, cookies: Mapping[str, str]) -> _Attempt:
        value = cookies.get(self.cookies.attempt(state), "")
        opened = (await self._sealer("login")).open(value) if value else None
        if opened is None:
            raise LoginFailed("This login wasn't begun in this browser, is finished already, or took too long.")
        try:
            kept, nonce, verifier, path, began = json.loads(opened)
        except ValueError:
            raise LoginFailed("Another version of nsqadmin began this login.") from None
        attempt = _Attempt(state=kept, nonce=nonce, verifier=verifier, path=path, began=began)
        if attempt.state != state or state in self._used:
            raise LoginFailed("This login is finished already.")
        if not -ATTEMPT_HOLDS_FOR <= self._clock() - attempt.began < ATTEMPT_HOLDS_FOR:
            raise LoginFailed("This login took too long.")
        return attempt

    def _use_up(self, state: str) -> None:
        """Remember the state, because a browser needn't obey when we end its cookie."""
        self._used[state] = self._clock()
        while len(self._used) > _MOST_USED:
            self._used.popitem(last=False)

    async def _logged_in(self, attempt: _Attempt, tokens: Tokens) -> Session:
        if not tokens.id_token:
            raise BadToken("there is none; is openid among the scopes?")
        expected = Expected(issuer=self.provider.issuer, client_id=self.provider.client_id, nonce=attempt.nonce)
        claims = await self.provider.claims_of(tokens, expected)
        user, groups = await self._user_of(claims, tokens)
        now = self._clock()
        return Session(
            id=attempt.nonce,
            subject=claims["sub"],
            user=user,
            groups=groups,
            began=now,
            confirmed=now,
            refresh_token=tokens.refresh_token,
        )

    async def _user_of(self, claims: Claims, tokens: Tokens) -> tuple[str, tuple[str, ...]]:
        """Return name and groups. Claims that the ID token lacks may be at the userinfo endpoint."""
        user, groups = name_in(claims, self._name_claim), groups_in(claims, self._groups_claim)
        if not user or groups is None:
            more = await self.provider.userinfo(tokens.access_token, claims["sub"])
            user = user or name_in(more, self._name_claim)
            groups = groups if groups is not None else groups_in(more, self._groups_claim)
        if not user:
            raise BadClaims(f"the provider sends no claim {self._name_claim}, which --oidc-name-claim names")
        if self._is_local(self._prefix + user):
            raise BadClaims(f"{self._prefix + user} is the name of a local account; --oidc-prefix tells them apart")
        if groups is None and are_groups_elsewhere(claims, self._groups_claim):
            log.warning("OIDC: the provider left out the groups of %s, because there are too many", user)
        return user, tuple(it for it in groups or () if self._is_group_used(self._prefix + it))

    # Sessions

    def name_of(self, session: Session) -> str:
        """Return the user's name as the roles file has it."""
        return self._prefix + session.user

    def groups_of(self, session: Session) -> tuple[str, ...]:
        return tuple(self._prefix + it for it in session.groups)

    def confirmed(self, cookies: Mapping[str, str]) -> Session | None:
        """Return the session if there is nothing to wait for, which is nearly always so. Otherwise ask `current`."""
        sealer = self._sealers.get("session")
        session = self._opened(sealer, cookies) if sealer is not None else None
        if session is None or self.book.newest(session) != session:
            return None
        return session if session.state(self._clock(), longest=self._longest) is State.CONFIRMED else None

    async def current(self, cookies: Mapping[str, str]) -> Current:
        """Return the session of a request, and ask the provider if it is due. Raise NoSession."""
        given = self._opened(await self._sealer("session"), cookies)
        if given is None:
            raise NoSession
        newest = self.book.newest(given)
        while newest is not None and self._asks_for(newest):
            newest = await self._asked(newest)
        if newest is None:
            raise NoSession("the provider has ended it, or you have logged out")
        if newest.state(self._clock(), longest=self._longest) is State.OVER:
            raise self._over(newest)
        try:
            return Current(newest, await self._cookie(newest) if newest.version > given.version else "")
        except LoginFailed as error:
            raise NoSession(str(error)) from error

    async def log_out(self, cookies: Mapping[str, str]) -> str:
        """End the session here, and its refresh token at the provider. Return the header that ends the cookie."""
        session = self._opened(await self._sealer("session"), cookies)
        if session is not None and (newest := self.book.newest(session)) is not None:
            self.book.end(newest)
            log.info("logged out user=%s", self.name_of(newest))
            if newest.refresh_token:
                try:
                    await self.provider.revoke(newest.refresh_token)
                except (ProviderAway, Refused) as error:
                    log.warning("OIDC: the refresh token of a user who logged out was not revoked - %s", error)
        return self.cookies.set_session("")

    async def log_out_url(self) -> str:
        """Return the provider's page that ends its own session, or "" if it has none."""
        try:
            endpoint = (await self.provider.metadata()).end_session_endpoint
        except ProviderAway:
            return ""
        if not endpoint:
            return ""
        back = {"client_id": self.provider.client_id, "post_logout_redirect_uri": self.urls.logged_out}
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(back)}"

    def seconds_left(self, session: Session, *, until_asking: bool) -> float:
        """Return for how long an answer to this session may still be sent; at most 0: no longer.

        With `until_asking`, only until the provider has to be asked: for a stream that browsers open again, which then
        asks, and gets the new cookie.
        """
        newest = self.book.newest(session)
        if newest is None or (newest.user, newest.groups) != (session.user, session.groups):
            return 0.0  # its rights have changed, perhaps between the beginning of the request and that of the answer
        now, end = self._clock(), newest.ends_at(self._longest)
        if until_asking:
            end = min(end, max(newest.asks_at(self._longest), self._pause_of(newest)))
        return end - now

    def _asks_for(self, session: Session) -> bool:
        now = self._clock()
        return session.state(now, longest=self._longest) is State.DUE and now >= self._pause_of(session)

    def _pause_of(self, session: Session) -> float:
        until = max(self._not_before.get("", 0.0), self._not_before.get(session.id, 0.0))
        return until if until <= self._clock() + _RETRY else 0.0  # otherwise the clock was set back since

    def _over(self, session: Session) -> NoSession:
        if session.refresh_token and self._is_away and self._clock() < session.began + self._longest:
            return NoSession("the provider has not answered for an hour", is_provider_away=True)
        if not session.refresh_token:
            return NoSession("an hour has passed since the login")
        return NoSession("it was not used for an hour, or has reached its longest time")

    async def _asked(self, session: Session) -> Session | None:
        """Ask the provider about a session, once for all requests that wait. Return its newest copy, None if it is over."""
        if (asking := self._asking.get(session.id)) is not None:
            await asking.wait()
            return self.book.newest(session)
        self._asking[session.id] = done = trio.Event()
        try:
            # A request that is cancelled in the middle would lose the new refresh token. But nsqadmin must be able to
            # stop, so there is a limit.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _MOST_ASKING) as scope:
                await self._ask(session)
            if scope.cancelled_caught:
                self._pause(session.id, f"no complete answer within {_MOST_ASKING:g} s")
        finally:
            del self._asking[session.id]
            done.set()
        return self.book.newest(session)

    async def _ask(self, session: Session) -> None:
        user = self.name_of(session)
        try:
            tokens = await self.provider.refresh(session.refresh_token)
            if tokens.refresh_token:
                # The old one may have ended, so keep this even if the next step fails.
                session = replace(session, refresh_token=tokens.refresh_token, version=session.version + 1)
                self.book.put(session)
            name, groups = await self._user_now(session, tokens)
        except ProviderAway as error:
            # Others wait only if they would get no answer, either: one user must not keep their rights from being read.
            self._pause("" if error.is_silent else session.id, error)
        except Refused as error:
            if error.code not in _GONE:
                self._pause(session.id, error)
                return
            log.info("OIDC: the provider has ended a session user=%s - %s", user, error)
            self.book.end(session)
        except (BadToken, BadClaims) as error:
            log.warning("OIDC: ended a session user=%s - %s", user, error)
            self.book.end(session)
        else:
            self._is_away = False
            for key in ("", session.id):
                self._not_before.pop(key, None)
            new = replace(session, user=name, groups=groups, confirmed=self._clock(), version=session.version + 1)
            self.book.put(new)
            if (new.user, new.groups) != (session.user, session.groups):
                log.info(
                    "OIDC: rights have changed user=%s groups=%s", self.name_of(new), ",".join(self.groups_of(new))
                )
                self.book.end_streams(new.id)

    async def _user_now(self, session: Session, tokens: Tokens) -> tuple[str, tuple[str, ...]]:
        expected = Expected(
            issuer=self.provider.issuer,
            client_id=self.provider.client_id,
            nonce=session.id,
            subject=session.subject,
        )
        if tokens.id_token:
            claims = await self.provider.claims_of(tokens, expected, is_refresh=True)
        else:
            claims = await self.provider.userinfo(tokens.access_token, session.subject)
            if not claims:
                raise ProviderAway("a refresh brings no ID token, and there is no userinfo endpoint")
        return await self._user_of(claims, tokens)

    def _pause(self, key: str, error: object) -> None:
        self._is_away = True
        if len(self._not_before) >= _MOST_PAUSES:
            self._not_before.clear()
        self._not_before[key] = self._clock() + _RETRY
        log.warning("OIDC: sessions can't be confirmed, and end an hour after they last were - %s", error)

    # Cookies

    def _opened(self, sealer: Sealer, cookies: Mapping[str, str]) -> Session | None:
        value = cookies.get(self.cookies.session, "")
        opened = sealer.open(value) if value else None
        return load_session(opened) if opened is not None else None

    async def _cookie(self, session: Session) -> str:
        """Return the header with a session. If its refresh token finds no room, the session ends after an hour."""
        sealer = await self._sealer("session")
        value = sealer.seal(session.dump())
        if len(value) > MOST and session.refresh_token:
            log.warning("OIDC: a refresh token of %d bytes is too long for a cookie", len(session.refresh_token))
            value = sealer.seal(replace(session, refresh_token=_NONE).dump())
        if len(value) > MOST:
            raise LoginFailed("You are in more groups of the roles file than fit into a cookie.")
        return self.cookies.set_session(value)

    async def _sealer(self, purpose: str) -> Sealer:
        if (sealer := self._sealers.get(purpose)) is None:
            module: Any = await trio.to_thread.run_sync(import_module, "nsqadmin.oidc.sealing")
            whose = f"{purpose}\n{self.provider.issuer}\n{self.provider.client_id}\n{self.urls.base}"
            sealer = self._sealers[purpose] = module.Sealer(self._keys, whose)
        return sealer
