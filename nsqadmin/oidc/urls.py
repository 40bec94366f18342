"""URLs: the one to return to from the provider, paths that are safe to show after a login, and the provider's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlencode, urlsplit

LOGIN: Final = "/login"
CALLBACK: Final = "/login/callback"
LOGOUT: Final = "/logout"
LOGGED_OUT: Final = "/logged-out"
PASSWORD: Final = "/password"  # at the top, because browsers send a password only to the folder that asked for it
_OF_LOGIN: Final = frozenset((LOGIN, CALLBACK, LOGOUT, LOGGED_OUT, PASSWORD))
_MOST: Final = 500  # characters of a path; it travels in a cookie, and proxies allow some 8 kB of them together

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))

# One slash first, then printable ASCII without a backslash, which browsers read as a slash.
_is_path: Final = re.compile(r"/(?!/)[!-\[\]-~]*").fullmatch


@dataclass(frozen=True, slots=True)
class OwnUrls:
    """The URLs of this nsqadmin, as browsers see them."""

    origin: str  # --external-url, without a path
    prefix: str  # --base-path, or ""

    @property
    def base(self) -> str:
        return self.origin + self.prefix

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https:")

    @property
    def host(self) -> str:
        return urlsplit(self.origin).hostname or ""

    @property
    def callback(self) -> str:
        return self.base + CALLBACK

    @property
    def logged_out(self) -> str:
        return self.base + LOGGED_OUT

    @property
    def home(self) -> str:
        return self.prefix or "/"

    def is_called_by(self, host: str) -> bool:
        """Return True if a Host header names the origin: only there does the browser send the cookies of a login."""
        ours = urlsplit(self.origin)
        default = ":443" if self.is_secure else ":80"
        return host.lower().removesuffix(default) == ours.netloc.lower().removesuffix(default)

    def login_page(self, path: str = "", **arguments: str) -> str:
        """Return the path of the login page, which leads back to `path`."""
        safe = self.safe_path(path)
        given = arguments if safe == self.home else {**arguments, "next": safe}
        return self.prefix + LOGIN + (f"?{urlencode(given)}" if given else "")

    def safe_path(self, path: str) -> str:
        """Return the path if it is one of our own pages, otherwise the first page.

        A redirect to `//evil.example`, `/\\evil.example` or, by a proxy that resolves dots, out of the base path would
        lend our name to another site.
        """
        if len(path) > _MOST or not _is_path(path):
            return self.home
        plain = path.partition("#")[0].partition("?")[0]
        decoded = unquote(plain)
        if any(segment in (".", "..") for segment in re.split(r"[/\\]", decoded)):
            return self.home
        if plain != self.prefix and not plain.startswith(self.prefix + "/"):
            return self.home
        return self.home if plain.removeprefix(self.prefix) in _OF_LOGIN else path


def why_not_a_url(url: str) -> str:
    """Return why we don't send secrets to this URL of a provider, or "". Plain HTTP is for tests on one machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.fragment:
        return "expected https://host"
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        return "expected https://, because tokens and secrets go there"
    return ""
