"""Checks each request against the rights file. Without `--rights-file` there is no `Guard`, and all requests pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import JSON, V1, HttpError, Request, Response, parse_query
from nsqcommon.nsq_json import dumps
from nsqcommon.wire.names import is_valid_name
from nsqd.auth.rights import Role
from nsqd.http.access import GuardedRoute, RequiredRole, Scope

if TYPE_CHECKING:
    from nsqd.auth.rights import Rights

# Verdicts are cached because publishers repeat the same request.
_MOST_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 1024  # bytes

UNKNOWN: Final = Response(401, dumps({"message": "UNAUTHORIZED"}), (JSON, V1, (b"www-authenticate", b"Bearer")))
FORBIDDEN: Final = HttpError(403, "FORBIDDEN").response


@dataclass(frozen=True, slots=True, eq=False)
class _Verdict:
    refusal: Response | None  # None: the request is allowed
    is_limited: bool = False  # the response may only show this topic
    holder: str = ""  # the name of the token's or certificate's holder
    may_act_for_others: bool = True  # the holder has the role `operate`
    may_discard: bool = True  # the holder has the role `admin`, so it may delete or skip messages


_UNKNOWN_HOLDER: Final = _Verdict(UNKNOWN)
_MISSING_ROLE: Final = _Verdict(FORBIDDEN)
_ALLOWED: Final = _Verdict(None)


class Guard:
    def __init__(self, current: Callable[[], Rights], *, trust_common_names: bool) -> None:
        self._current = current
        self._names_count = trust_common_names
        self._rights: Rights | None = None  # the rights that the remembered verdicts are based on
        self._decided: dict[tuple[RequiredRole, bytes, bytes, str], _Verdict] = {}

    def check(self, request: Request, endpoint: GuardedRoute) -> Response | None:
        """Return the refusal of a request, or None if it is allowed.

        Fills in the request's `holder`, `is_limited`, `may_act_for_others` and `may_discard` for its handler.
        """
        authorization = request.headers.get(b"authorization", b"")
        verdict = self._verdict(endpoint.access, request.query_string, authorization, request.common_name)
        request.is_limited, request.holder = verdict.is_limited, verdict.holder
        request.may_act_for_others, request.may_discard = verdict.may_act_for_others, verdict.may_discard
        return verdict.refusal

    def refusal(self, access: RequiredRole, query: bytes, authorization: bytes, common_name: str) -> Response | None:
        """Return the refusal as `check` does, but for the fast path, which has no `Request`."""
        return self._verdict(access, query, authorization, common_name).refusal

    def _verdict(self, access: RequiredRole, query: bytes, authorization: bytes, common_name: str) -> _Verdict:
        rights = self._current()
        if rights is not self._rights or len(self._decided) >= _MOST_REMEMBERED:
            self._rights = rights
            self._decided.clear()
        question = (access, query, authorization, common_name)
        try:
            return self._decided[question]
        except KeyError:
            pass
        verdict = self._decide(rights, access, query, authorization, common_name)
        if len(query) + len(authorization) <= _LONGEST_REMEMBERED:
            self._decided[question] = verdict
        return verdict

    def _decide(
        self, rights: Rights, access: RequiredRole, query: bytes, authorization: bytes, common_name: str
    ) -> _Verdict:
        if access.role is None:
            return _ALLOWED
        holder = rights.holder(token_of(authorization), common_name if self._names_count else "")
        if holder is None:
            return _UNKNOWN_HOLDER
        topic = _topic_in(query) if access.scope is Scope.TOPIC else None
        if not any(holder.may(role, topic) for role in (access.role, access.or_role) if role is not None):
            return _MISSING_ROLE
        if access.and_role is not None and not holder.may(access.and_role, topic):
            return _MISSING_ROLE
        return _Verdict(
            None,
            is_limited=bool(holder.topics),
            holder=holder.name,
            may_act_for_others=holder.may(Role.OPERATE, topic),
            may_discard=holder.may(Role.ADMIN, topic),
        )


def token_of(authorization: bytes) -> bytes:
    """Return the token in an Authorization header.

    If the scheme isn't Bearer, returns the whole header. It matches no token, so the request is refused. If we returned
    an empty token instead, we would fall back on the client's certificate.
    """
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else authorization


def _topic_in(query: bytes) -> str | None:
    """Return the topic in a query, or None if it is missing or invalid, or the query is malformed."""
    try:
        topic = parse_query(query).get("topic", "")  # if repeated, the first, which is also the one endpoints use
    except HttpError:
        return None
    return topic if is_valid_name(topic) else None
