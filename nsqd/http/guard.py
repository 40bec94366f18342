"""Which role each endpoint needs, and whether who asks has it. Without `--rights-file` nobody is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from common.http_api import JSON, V1, HttpError, Request, Response, Route, parse_query
from common.nsq_json import dumps
from nsqd.rights import Refusal, Rights, Role

# By the route's path; with the method in front where it matters. None: open to everybody.
ROLES: Final[Mapping[str, Role | None]] = {
    "/ping": None,
    "/healthz": None,
    "/readyz": None,
    "/pub": Role.PUBLISH,
    "/mpub": Role.PUBLISH,
    "/info": Role.READ,
    "/stats": Role.READ,
    "/metrics": Role.READ,
    "/topic/log": Role.READ,
    "/topic/read": Role.READ,
    "/channel/position": Role.READ,
    "GET /config/:option": Role.READ,
    "PUT /config/:option": Role.OPERATE,
    "/drain": Role.OPERATE,
    "/topic/empty": Role.OPERATE,
    "/topic/pause": Role.OPERATE,
    "/topic/unpause": Role.OPERATE,
    "/channel/empty": Role.OPERATE,
    "/channel/pause": Role.OPERATE,
    "/channel/unpause": Role.OPERATE,
    "/channel/seek": Role.OPERATE,
    "/topic/create": Role.ADMIN,
    "/topic/delete": Role.ADMIN,
    "/channel/create": Role.ADMIN,
    "/channel/delete": Role.ADMIN,
}
_DEBUG: Final = "/debug/"
# A publisher asks the same again and again.
_MOST_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 1024  # bytes

UNKNOWN: Final = Response(401, dumps({"message": "UNAUTHORIZED"}), (JSON, V1, (b"www-authenticate", b"Bearer")))
FORBIDDEN: Final = HttpError(403, "FORBIDDEN").response
_ANSWERS: Final[Mapping[Refusal, Response]] = {401: UNKNOWN, 403: FORBIDDEN}


def role_of(route: Route) -> Role | None:
    """What is not in the table is for those who may do everything."""
    for key in (route.path, f"{route.method} {route.path}"):
        if key in ROLES:
            return ROLES[key]
    return Role.OPERATE if route.path.startswith(_DEBUG) else Role.ADMIN


class Guard:
    def __init__(self, current: Callable[[], Rights], *, names_count: bool) -> None:
        self._current = current
        self._names_count = names_count
        self._rights: Rights | None = None  # which decided what is remembered
        self._decided: dict[tuple[Role, bytes, bytes, str], Response | None] = {}

    def check(self, request: Request, route: Route) -> Response | None:
        """The answer to a request that is refused."""
        role = role_of(route)
        if role is None:
            return None
        return self._refusal(
            role, request.query_string, request.headers.get(b"authorization", b""), request.common_name
        )

    def check_publish(self, query: bytes, authorization: bytes, common_name: str) -> Response | None:
        return self._refusal(Role.PUBLISH, query, authorization, common_name)

    def _refusal(self, role: Role, query: bytes, authorization: bytes, common_name: str) -> Response | None:
        rights = self._current()
        if rights is not self._rights or len(self._decided) >= _MOST_REMEMBERED:
            self._rights = rights
            self._decided.clear()
        question = (role, query, authorization, common_name)
        try:
            return self._decided[question]
        except KeyError:
            pass
        refusal = rights.refusal(
            role,
            _topic_in(query),
            token=token_of(authorization),
            common_name=common_name if self._names_count else "",
        )
        answer = _ANSWERS[refusal] if refusal is not None else None
        if len(query) + len(authorization) <= _LONGEST_REMEMBERED:
            self._decided[question] = answer
        return answer


def token_of(authorization: bytes) -> bytes:
    """Of an Authorization header. Another scheme's text is no token of ours, and still not nothing."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else authorization


def _topic_in(query: bytes) -> str | None:
    try:
        return parse_query(query).get("topic")
    except HttpError:  # the endpoint will say so to who may ask it
        return None
