"""Identifies users: by a proxy's headers, by HTTP Basic with the users file, or by the session of an OIDC login."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.access import BadRoles, Identity, Policy, Role, is_within, networks, parse_roles
from nsqadmin.accounts import Accounts
from nsqadmin.http.app import LoginNeeded
from nsqcommon.startup import StartupError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.accounts import Secret
    from nsqadmin.oidc.login_flow import LoginFlow, NoSession
    from nsqadmin.oidc.session import Session
    from nsqadmin.options import Options

_AT_ONCE: Final = 2  # passwords to hash at the same time; each takes a core and 16 MiB


class Access:
    """Identifies users for the application."""

    def __init__(
        self,
        options: Options,
        policy: Callable[[], Policy],
        accounts: Mapping[str, Secret],
        flow: LoginFlow | None = None,
    ) -> None:
        """`policy()` is called for each request, so that rights can change at run time. `flow` is the login by OIDC."""
        self._header = options.acl_http_header
        self._groups_header = options.acl_groups_header
        self._proxies = networks(options.trusted_proxy)
        self._accounts = Accounts(accounts) if accounts else None
        self._flow = flow
        self._policy = policy
        self._hashing = asyncio.Semaphore(_AT_ONCE)

    async def identify(self, request: Request) -> Identity:
        user = request.state.basic_user = _basic(request)[0]
        if self._flow is not None and not (user and self._accounts is not None):
            return await self._by_session(self._flow, request)
        if self._accounts is None:
            return self._named_by_proxy(request)
        if not await self.is_password_right(request):
            raise LoginNeeded
        return self._policy().identity(user)

    async def is_password_right(self, request: Request) -> bool:
        """Return True if the request has the name and password of a local account."""
        user, password = _basic(request)
        return self._accounts is not None and bool(user) and await self._is_right(self._accounts, user, password)

    async def _by_session(self, flow: LoginFlow, request: Request) -> Identity:
        from nsqadmin.oidc.login_flow import NoSession  # it is loaded already, and would be for nothing without OIDC

        session = flow.confirmed(request.cookies)
        if session is None:
            try:
                current = await run_trio(flow.current, request.cookies)
            except NoSession as error:
                raise self._login_needed(flow, request, error) from None
            session = current.session
            request.state.cookies = [current.cookie] if current.cookie else []
        request.state.lease = _Lease(flow, session)
        user = request.state.basic_user = flow.name_of(session)
        return self._policy().identity(user, flow.groups_of(session), has_session=True)

    def _login_needed(self, flow: LoginFlow, request: Request, error: NoSession) -> LoginNeeded:
        path = (request.scope.get("raw_path") or b"").decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        arguments = {"ended": "away"} if error.is_provider_away else {}
        return LoginNeeded(
            f"your session has ended, because {error}" if str(error) else "",
            page=flow.urls.login_page(f"{path}?{query}" if query else path, **arguments),
            takes_passwords=self._accounts is not None,
        )

    async def _is_right(self, accounts: Accounts, user: str, password: str) -> bool:
        if accounts.known(user, password):
            return True
        async with self._hashing:
            return await asyncio.to_thread(accounts.check, user, password)

    def _named_by_proxy(self, request: Request) -> Identity:
        if not self._is_trusted(request):
            return self._policy().identity("")
        groups = request.headers.get(self._groups_header, "") if self._groups_header else ""
        user = request.headers.get(self._header, "") if self._header else ""
        return self._policy().identity(user, (group.strip() for group in groups.split(",") if group.strip()))

    def _is_trusted(self, request: Request) -> bool:
        client = request.scope.get("client")
        # A peer on a unix socket has no address; the permissions of the socket's file decide who can connect.
        return not self._proxies or client is None or is_within(client[0], self._proxies)


@dataclass(frozen=True, slots=True)
class _Lease:
    """Implements `http.event_stream.Lease` for a session of an OIDC login."""

    flow: LoginFlow
    session: Session

    def seconds_left(self, *, until_asking: bool) -> float:
        return self.flow.seconds_left(self.session, until_asking=until_asking)

    def watch(self, close: Callable[[], None]) -> Callable[[], None]:
        return self.flow.book.watch(self.session.id, close)


def read_policy(options: Options) -> Policy:
    """Read the access rules from the options and the roles file. Raise StartupError."""
    roles: tuple[Role, ...] = ()
    if options.roles_file:
        try:
            with open(options.roles_file, encoding="utf-8") as file:
                roles = parse_roles(file.read())
        except (OSError, UnicodeError, BadRoles) as error:
            raise StartupError(f"failed to read --roles-file ({options.roles_file}) - {error}") from error
    return Policy(
        roles=roles,
        admin_users=options.admin_user,
        refusal=_refusal(options),
        can_publish=options.enable_publish,
    )


def _refusal(options: Options) -> str:
    if options.snapshot:
        return "this is a snapshot: nothing can be changed"
    return "nsqadmin is read-only (--read-only)" if options.read_only else ""


def _basic(request: Request) -> tuple[str, str]:
    """Return user and password from HTTP Basic, or two empty strings."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except (NotBase64, ValueError):
        return "", ""
    return user, password
