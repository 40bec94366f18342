"""nsqadmins, a provider and a browser in one process, on a clock that only tests move."""

from __future__ import annotations

import hmac
import json
import logging
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from http.cookies import SimpleCookie
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import trio
import trio.testing
import trio_asyncio
from starlette.applications import Starlette

from nsqadmin.accounts import Secret
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.cluster.model import Recording
from nsqadmin.cluster.view import SavedView
from nsqadmin.daemon import _own_hosts, routes_of
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.http.app import application
from nsqadmin.http.config import Settings
from nsqadmin.http.live import Hub
from nsqadmin.http.login import Access, read_policy
from nsqadmin.oidc.login_flow import LoginFlow
from nsqadmin.options import Options
from nsqadmin.services import Services
from nsqadmin.site import missing
from nsqcommon.options import parse
from tests.support.oidc_provider import OidcProvider
from tests.support.picture import snapshot

NOW: Final = 1_800_000_000.0
ISSUER: Final = "https://idp.example"
ORIGIN: Final = "https://nsq.example"
ROLES: Final = """
[[role]]
name = "sre"
groups = ["sre"]
can = ["admin"]

[[role]]
name = "support"
groups = ["support", "*-support"]
users = ["eve@example.com"]
can = ["viewer"]
"""
PAGE: Final[Mapping[str, Any]] = {"accept": "text/html", "sec-fetch-mode": "navigate"}


class Answer:
    """What an application has sent so far."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.has_ended = trio.Event()

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    def all(self, name: str) -> list[str]:
        return [value.decode() for it, value in self.messages[0]["headers"] if it.decode() == name]

    def header(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    @property
    def text(self) -> str:
        return b"".join(it["body"] for it in self.messages[1:]).decode()


class Site:
    """One nsqadmin, that shows a saved picture."""

    def __init__(self, flow: LoginFlow, app: Starlette) -> None:
        self.flow = flow
        self._app = app

    async def ask(self, method: str, target: str, headers: Mapping[str, str], answer: Answer | None = None) -> Answer:
        answer = answer or Answer()
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("10.0.0.1", 5555),
        }
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await trio_asyncio.trio_as_aio(trio.sleep_forever)()
            sent = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            answer.messages.append(message)

        await trio_asyncio.aio_as_trio(self._app)(scope, receive, send)
        answer.has_ended.set()
        return answer


class Browser:
    """Cookies, and the way from nsqadmin to the provider and back."""

    def __init__(self, site: Site, provider: OidcProvider) -> None:
        self.site = site
        self.provider = provider
        self.cookies: dict[str, str] = {}
        self.set: list[str] = []  # every Set-Cookie header

    async def ask(
        self,
        target: str,
        method: str = "GET",
        *,
        site: Site | None = None,
        cookies: Mapping[str, str] | None = None,
        answer: Answer | None = None,
        **headers: str,
    ) -> Answer:
        """Send a request. `cookies` are sent instead of the browser's own."""
        given = {"host": "nsq.example"} | {name.replace("_", "-"): value for name, value in headers.items()}
        if jar := self.cookies if cookies is None else cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in jar.items())
        answer = await (site or self.site).ask(method, target, given, answer)
        if cookies is None:
            self.take_cookies(answer)
        return answer

    def take_cookies(self, answer: Answer) -> None:
        for line in answer.all("set-cookie"):
            self.set.append(line)
            for name, it in SimpleCookie(line).items():
                if it["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = it.value

    async def open(self, target: str, **more: Any) -> Answer:
        """Open a page, like a person."""
        return await self.ask(target, **{**PAGE, **more})

    async def begin(self, target: str = "/login") -> str:
        """Begin a login, and return the URL of the callback to which the provider sends the browser."""
        answer = await self.open(target)
        assert answer.status == 303, answer.text
        return self.provider.authorize(answer.header("location"))

    async def finish(self, url: str, **more: Any) -> Answer:
        """Follow the provider back to nsqadmin."""
        parts = urlsplit(url)
        return await self.open(f"{parts.path}?{parts.query}", **more)

    async def log_in(self, target: str = "/login") -> Answer:
        answer = await self.finish(await self.begin(target))
        assert answer.status == 303, answer.text
        return answer

    @property
    def session(self) -> str:
        return self.cookies[self.site.flow.cookies.session]

    async def me(self, **more: Any) -> Any:
        """Return the status of a program's request, or the user with their groups and rights."""
        answer = await self.ask("/api/v2/me", **more)
        return json.loads(answer.text) if answer.status == 200 else answer.status


class World:
    def __init__(self, clock: trio.testing.MockClock, folder: Path) -> None:
        self.folder = folder
        self._clock = clock
        self.ahead = 0.0  # seconds by which the clock of nsqadmin is ahead of the provider's
        self.provider = OidcProvider(ISSUER, lambda: NOW + trio.current_time())
        self.provider.redirect_uris.add(f"{ORIGIN}/login/callback")
        (folder / "roles.toml").write_text(ROLES)
        self.file("secret", self.provider.client_secret)

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def pass_time(self, seconds: float) -> None:
        self._clock.jump(seconds)

    def site(self, *options: str, accounts: Mapping[str, Secret] | None = None, **more: str) -> Site:
        """Start another nsqadmin. `more` are options without a dash that replace the usual ones."""
        usual = {
            "oidc_issuer": ISSUER,
            "oidc_client_id": "nsqadmin",
            "oidc_client_secret_file": str(self.folder / "secret"),
            "external_url": ORIGIN,
            "roles_file": str(self.folder / "roles.toml"),
            "snapshot": "none",
        }
        given = [f"--{name.replace('_', '-')}={value}" for name, value in (usual | more).items() if value]
        chosen = parse(Options, [*given, *options], {}, "nsqadmin")
        known = accounts or {}
        policy = read_policy(chosen)
        flow = LoginFlow(
            chosen,
            is_group_used=policy.is_about,
            is_local=known.__contains__,
            clock=lambda: NOW + trio.current_time() + self.ahead,
            transport=httpx.ASGITransport(self.provider),
        )
        access = Access(chosen, lambda: policy, known, flow)
        view, activity, book = SavedView(Recording(snapshot=snapshot(), series={}, activity=())), ActivityLog(), Book()
        services = Services(
            settings=Settings(chosen),
            view=view,
            policy=policy,
            access=access,
            login=flow,
            hub=Hub(view, book),
            incidents=book,
            activity=activity,
        )
        app = application(
            routes_of(services), access, _own_hosts(chosen), prefix=chosen.prefix, missing=missing(services)
        )
        return Site(flow, app)

    def browser(self, site: Site | None = None) -> Browser:
        return Browser(site or self.site(), self.provider)


def in_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with a world of its own."""

    @wraps(test)
    def run() -> None:
        clock = trio.testing.MockClock()

        async def main() -> None:
            with TemporaryDirectory() as folder:
                async with trio_asyncio.open_loop():
                    await test(World(clock, Path(folder)))

        trio.run(main, clock=clock)

    del run.__wrapped__  # pytest would look for a fixture `world`
    return run


# Tokens that no honest provider makes


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    return f"{_part(header)}.{_part(claims)}."


def by_hmac(header: Mapping[str, Any], claims: Mapping[str, Any], key: bytes) -> str:
    signed = f"{_part({**header, 'alg': 'HS256'})}.{_part(claims)}"
    return f"{signed}.{_coded(hmac.digest(key, signed.encode(), 'sha256'))}"


def _part(value: Mapping[str, Any]) -> str:
    return _coded(json.dumps(value).encode())


def _coded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@contextmanager
def captured() -> Iterator[list[str]]:
    """Collect the lines of nsqadmin's log."""
    lines: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("nsqadmin"), Collecting()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
