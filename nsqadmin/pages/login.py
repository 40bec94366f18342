"""The pages around a login by OIDC. All are for users who aren't logged in, so they show nothing of the cluster."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.responses import Response

from nsqadmin.http.app import CHALLENGE, Route
from nsqadmin.http.responses import text_answer
from nsqadmin.oidc.login_flow import LoginFailed, Redirect
from nsqadmin.oidc.provider import ProviderAway
from nsqadmin.oidc.urls import CALLBACK, LOGGED_OUT, LOGIN, LOGOUT, PASSWORD
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.http.login import Access
    from nsqadmin.oidc.login_flow import LoginFlow
    from nsqadmin.parts.painter import Painter

log = logging.getLogger(__name__)


def routes(flow: LoginFlow, access: Access, painter: Painter, *, has_passwords: bool) -> list[Route]:
    """Return the routes of these pages. `has_passwords`: there are local accounts, too."""
    pages = _LoginPages(flow, access, painter, has_passwords=has_passwords)
    found = [
        Route("GET", LOGIN, pages.login, public=True),
        Route("GET", CALLBACK, pages.finish, public=True),
        Route("POST", LOGOUT, pages.log_out, public=True),
        Route("GET", LOGGED_OUT, pages.logged_out, public=True),
    ]
    return [*found, Route("GET", PASSWORD, pages.password, public=True)] if has_passwords else found


class _LoginPages:
    def __init__(self, flow: LoginFlow, access: Access, painter: Painter, *, has_passwords: bool) -> None:
        self._flow = flow
        self._access = access
        self._painter = painter
        self._has_passwords = has_passwords

    async def login(self, request: Request) -> Response:
        """Send the user to the provider, or ask first if there is something to say or to choose."""
        urls, asked = self._flow.urls, request.query_params
        path = urls.safe_path(asked.get("next", ""))
        if not urls.is_called_by(request.headers.get("host", "")) and "here" not in asked:
            # The provider leads back to the external URL, and cookies of another name wouldn't be sent there. `here`
            # ends this if a proxy hides the name.
            return _redirect(urls.origin + urls.login_page(path, here="1"))
        is_chosen = asked.get("by") == "provider"
        if asked.get("ended") == "away" and not is_chosen:
            text = (
                f"{self._flow.provider.host} has not answered nsqadmin for an hour, so nothing has confirmed your "
                "groups. The log of nsqadmin says why."
            )
            return self._page("Your session has ended", text, path)
        if self._has_passwords and not is_chosen:
            return self._page("Log in", "", path)
        try:
            return _sent(await run_trio(self._flow.begin, path, request.cookies))
        except ProviderAway as error:
            return self._away(error, path)

    async def finish(self, request: Request) -> Response:
        try:
            return _sent(await run_trio(self._flow.finish, request.query_params, request.cookies))
        except LoginFailed as error:
            return self._page("The login has failed", str(error), status=403)
        except ProviderAway as error:
            return self._away(error)

    async def log_out(self, request: Request) -> Response:
        answer = _redirect(self._flow.urls.prefix + LOGGED_OUT)
        answer.headers["set-cookie"] = await run_trio(self._flow.log_out, request.cookies)
        return answer

    async def logged_out(self, request: Request) -> Response:
        """Say that it's done. The provider's own logout is a link: its session is also that of other programs."""
        host, more = self._flow.provider.host, await run_trio(self._flow.log_out_url)
        text = f"nsqadmin has ended your session. You may still be logged in at {host}."
        return self._page("Logged out", text, links=((f"Log out at {host}, too", more),) if more else ())

    async def password(self, request: Request) -> Response:
        """Let the browser ask for the password of a local account, and send it from then on."""
        if await self._access.is_password_right(request):
            return _redirect(self._flow.urls.safe_path(request.query_params.get("next", "")))
        answer = text_answer("log in", status=401, v1=False)
        answer.headers["www-authenticate"] = CHALLENGE
        return answer

    def _away(self, error: ProviderAway, path: str = "") -> Response:
        log.error("OIDC: no one can log in - %s", error)
        text = f"{self._flow.provider.host} does not answer as nsqadmin needs it. The log of nsqadmin says why."
        return self._page("You can't log in now", text, path, status=503)

    def _page(
        self, title: str, text: str, path: str = "", *, status: int = 200, links: tuple[tuple[str, str], ...] = ()
    ) -> Response:
        urls = self._flow.urls
        ways = [(f"Log in at {self._flow.provider.host}", urls.base + urls.login_page(path, by="provider"))]
        if self._has_passwords:
            ways.append(("Log in with a local password", urls.login_page(path).replace(LOGIN, PASSWORD, 1)))
        return self._painter.bare_page("login.html", status=status, title=title, text=text, links=(*ways, *links))


def _sent(target: Redirect) -> Response:
    answer = _redirect(target.url)
    for cookie in target.cookies:
        answer.headers.append("set-cookie", cookie)
    return answer


def _redirect(url: str) -> Response:
    return Response(status_code=303, headers={"location": url, "cache-control": "no-store"})
