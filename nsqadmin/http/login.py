"""Identifies users: by a proxy's headers, or by HTTP Basic with the users file."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqadmin.access import BadRoles, Identity, Policy, Role, is_within, networks, parse_roles
from nsqadmin.accounts import Accounts, read_accounts
from nsqadmin.http.app import LoginNeeded
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.options import Options

_AT_ONCE: Final = 2  # passwords to hash at the same time; each takes a core and 16 MiB


class Access:
    """Identifies users for the application."""

    def __init__(self, options: Options, policy: Callable[[], Policy]) -> None:
        """`policy()` is called for each request, so that rights can change at run time."""
        self._header = options.acl_http_header
        self._groups_header = options.acl_groups_header
        self._proxies = networks(options.trusted_proxy)
        self._accounts = Accounts(read_accounts(options.auth_file)) if options.auth_file else None
        self._policy = policy
        self._hashing = asyncio.Semaphore(_AT_ONCE)

    async def identify(self, request: Request) -> Identity:
        user, password = _basic(request)
        request.state.basic_user = user
        if self._accounts is None:
            return self._named_by_proxy(request)
        if not user or not await self._is_right(self._accounts, user, password):
            raise LoginNeeded
        return self._policy().identity(user)

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
