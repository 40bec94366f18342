"""A daemon's HTTP routes, matched as by the router in NSQ's releases.

If a path differs from a route of the *same* method only by case, doubled slashes, dots or a trailing slash, we redirect
to that route. For example, GET /Stats/ is redirected to /stats. A path that exists only for other methods is "method
not allowed".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from posixpath import normpath
from typing import Final, Generic, Protocol, TypeVar


class AnyRoute(Protocol):
    """A route. Its `path` is exact or has placeholders in braces, for one segment each: `/topics/{topic}`."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=AnyRoute)

_NO_WORDS: Final[Mapping[str, str]] = {}


class RouteTable(Generic[R]):
    """Finds the route that a path matches, or nearly matches. Exact paths win over paths with placeholders."""

    def __init__(self, routes: Iterable[R], prefix: str = "") -> None:
        self._exact: dict[tuple[str, str], R] = {}
        self._by_lower: dict[tuple[str, str], str] = {}
        self._patterns: list[tuple[R, re.Pattern[str], str]] = []
        for route in routes:
            path = prefix + route.path if route.path != "/" or not prefix else prefix
            if "{" in path:
                pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
                self._patterns.append((route, re.compile(pattern), path))
            else:
                self._exact[route.method, path] = route
                self._by_lower[route.method, path.lower()] = path
        self._methods = sorted({method for method, _ in self._exact} | {it.method for it, _, _ in self._patterns})

    def find(self, method: str, path: str) -> tuple[R, Mapping[str, str]] | None:
        """Return the route and the segments for its placeholders, by name, or None if no route matches."""
        if (route := self._exact.get((method, path))) is not None:
            return route, _NO_WORDS
        for route, pattern, _ in self._patterns:
            if route.method == method and (match := pattern.fullmatch(path)) is not None:
                return route, match.groupdict()
        return None

    def allowed(self, path: str) -> list[str]:
        """Return the methods of this exact path, and OPTIONS, sorted. Returns [] if no route matches."""
        methods = [method for method in self._methods if self.find(method, path) is not None]
        return sorted([*methods, "OPTIONS"]) if methods else []

    def redirect(self, method: str, path: str) -> str | None:
        """Return the path to redirect to if `path` nearly matches a route of this method, or None."""
        if path == "/":
            return None
        other = _toggle_slash(path)
        if self.find(method, other) is not None:
            return other
        clean = _clean(path)
        return self._spelled(method, clean) or self._spelled(method, _toggle_slash(clean))

    def _spelled(self, method: str, path: str) -> str | None:
        if (spelled := self._by_lower.get((method, path.lower()))) is not None:
            return spelled
        for route, pattern, spelling in self._patterns:
            if route.method == method and (match := re.fullmatch(pattern.pattern, path, re.IGNORECASE)) is not None:
                return spelling.format(**match.groupdict())
        return None


def _toggle_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") else path + "/"


def _clean(path: str) -> str:
    clean = "/" + normpath("/" + path).lstrip("/")
    return clean + "/" if path.endswith("/") and clean != "/" else clean
