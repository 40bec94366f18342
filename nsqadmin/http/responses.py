"""NSQ-style answers with Starlette's responses, and helpers for reading requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl

from starlette.responses import Response

from nsqadmin.access import Identity, Right
from nsqcommon import nsq_json
from nsqcommon.http_api import CUT_SHORT, ClientGone, HttpError
from nsqcommon.net import format_name

if TYPE_CHECKING:
    from starlette.requests import Request

MOST_BODY: Final = 1024 * 1024  # of a request; NSQ's own limit for /config

_V1: Final = {"x-nsq-content-type": "nsq; version=1.0"}


def json_answer(value: object, *, status: int = 200) -> Response:
    return Response(nsq_json.dumps(value), status, _V1, "application/json; charset=utf-8")


def text_answer(text: str, *, status: int = 200, v1: bool = True) -> Response:
    return Response(text, status, _V1 if v1 else {}, "text/plain; charset=utf-8")


def refusal(error: HttpError) -> Response:
    return json_answer({"message": error.code, **(error.details or {})}, status=error.status)


def raw_json(body: bytes) -> Response:
    return Response(body, 200, _V1, "application/json; charset=utf-8")


# The caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user behind an action, for the audit log and notifications."""

    identity: Identity
    remote: str
    basic_user: str = ""  # the name in HTTP Basic, checked or not, because NSQ puts it into notifications
    user_agent: str = ""
    url: str = ""

    @property
    def name(self) -> str:
        """The name that nodes record. Without a login, the address of the browser says more than ours."""
        return self.identity.user or self.basic_user or f"anonymous at {self.remote.rpartition(':')[0]}"


def identity_of(request: Request) -> Identity:
    """Return the user. The application has identified them before it called the handler."""
    return cast(Identity, request.state.identity)


def caller_of(request: Request) -> Caller:
    headers = request.headers
    secure = request.url.scheme == "https" or headers.get("x-scheme") == "https"
    query = f"?{request.url.query}" if request.url.query else ""
    raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return Caller(
        identity=identity_of(request),
        remote=remote_of(request),
        basic_user=request.state.basic_user,
        user_agent=headers.get("user-agent", ""),
        url=f"{'https' if secure else 'http'}://{headers.get('host', '')}{raw_path.decode('latin-1')}{query}",
    )


def remote_of(request: Request) -> str:
    client = request.scope.get("client")
    return format_name(tuple(client)) if client else "@"


def require(request: Request, right: Right, topic: str = "") -> Identity:
    """Return the user if they have the right. Otherwise raise 403, with NSQ's word and the reason."""
    identity = identity_of(request)
    if reason := identity.why_not(right, topic):
        raise HttpError(403, "FORBIDDEN", details={"reason": reason})
    return identity


# Bodies and arguments


async def body_of(request: Request, *, limit: int = MOST_BODY) -> bytes:
    """Read the request's body.

    Raise 413 if it exceeds `limit`, and ClientGone if the peer leaves meanwhile. A peer that only half-closes the
    connection too early gets an answer. Starlette's `Request.stream` would wait for the rest as long as it stays.
    """
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        more = message.get("more_body", False)
        if size > limit:
            raise HttpError(413, "INVALID_VALUE")
        if more and CUT_SHORT in request.scope:
            raise HttpError(500, "INTERNAL_ERROR")
    return b"".join(pieces)


async def form_of(request: Request, *, limit: int = MOST_BODY) -> dict[str, str]:
    """Read an HTML form in the default encoding of browsers. Return the first value of each name."""
    return {name: values[0] for name, values in (await lists_of(request, limit=limit)).items()}


async def lists_of(request: Request, *, limit: int = MOST_BODY) -> dict[str, list[str]]:
    """Read a form like `form_of`, but return all values of each name."""
    try:
        pairs = parse_qsl((await body_of(request, limit=limit)).decode(), keep_blank_values=True, max_num_fields=10_000)
    except ValueError:
        raise HttpError(400, "INVALID_BODY") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return values


async def object_of(request: Request, *, limit: int = MOST_BODY) -> dict[str, Any]:
    """Read a JSON object. Raise 400 for any other body."""
    try:
        value = nsq_json.loads(await body_of(request, limit=limit))
    except nsq_json.JsonError as error:
        raise HttpError(400, "INVALID_BODY", details={"reason": str(error)}) from None
    if not isinstance(value, dict):
        raise HttpError(400, "INVALID_BODY", details={"reason": "expected a JSON object"})
    return value


def word_in(body: Mapping[str, Any], name: str) -> str:
    """Return the text with this name in a JSON object; empty if there is none. Raise 400 for any other value."""
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise HttpError(400, "INVALID_BODY", details={"reason": f"{name} is a string"})
    return value


def number_argument(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """Read a whole number from the query, or return `default` if it is missing. Raise 400 for anything else."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
        raise HttpError(
            400, f"INVALID_ARG_{name.upper()}", details={"reason": f"expected a number from {least} to {most}"}
        )
    return int(text)
