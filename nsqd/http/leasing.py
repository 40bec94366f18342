"""The state that requests for leases share: settings, AUTH servers' grants, and the wake-ups of waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError
from nsqd.auth.grants import AuthQuestion
from nsqd.broker.http_consumers import HttpCaller
from nsqd.broker.leases import TooMany
from nsqd.http.guard import FORBIDDEN, UNKNOWN, token_of

if TYPE_CHECKING:
    from nsqcommon.http_api import Request, Response
    from nsqd.auth.grants import Grant
    from nsqd.broker.leases import Leases

_MOST_GRANTS: Final = 1024  # from AUTH servers, in the cache
_LONGEST_AGENT: Final = 256  # characters kept of the User-Agent

RETRY_AFTER: Final = (b"retry-after", b"1")  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    lease: float  # seconds; the default if a request has no `lease`
    longest_lease: float
    longest_delay_ms: int  # of a requeue


class Refusal(Exception):
    """The request is refused with this response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def refusal_for(error: TooMany) -> Refusal:
    answer = HttpError(429, "TOO_MANY", details={"reason": error.reason}).response
    return Refusal(_with_header(answer))


def _with_header(answer: Response) -> Response:
    return type(answer)(answer.status, answer.body, (*answer.headers, RETRY_AFTER))


@dataclass(eq=False)
class Leasing:
    """The node's leases, and the requests that wait for messages."""

    leases: Leases
    settings: LeaseSettings
    ask: Callable[[AuthQuestion], None] | None = None  # asks an AUTH server; None without one, or with a rights file
    stopping: bool = False
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)
    _grants: dict[tuple[bytes, str, str, bool], tuple[Grant, float]] = field(default_factory=dict)

    def stop(self) -> None:
        """Answer the waiting polls and end the streams, because the daemon is stopping."""
        self.stopping = True
        for future in self._waiting:
            wake(future)

    @asynccontextmanager
    async def count_waiting(self) -> AsyncIterator[None]:
        """Count a request as waiting. Raises Refusal if the maximum number of requests is waiting already."""
        try:
            self.leases.begin_waiting()
        except TooMany as error:
            raise refusal_for(error) from error
        try:
            yield
        finally:
            self.leases.end_waiting()

    def new_wakeup(self) -> asyncio.Future[None]:
        """Return a future that `stop` resolves too. Pass it to `drop_wakeup` when you are done."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    def drop_wakeup(self, future: asyncio.Future[None]) -> None:
        self._waiting.discard(future)

    # Authorization

    async def caller(self, request: Request, topic: str, channel: str, now: float) -> HttpCaller:
        """Return the identity of the client. Raises Refusal if an AUTH server doesn't allow this channel."""
        host = request.remote.rpartition(":")[0] or request.remote
        identity = request.holder
        if self.ask is not None:
            identity = await self._identity(request, host, topic, channel, now)
        agent = request.headers.get(b"user-agent", b"")[:_LONGEST_AGENT].decode("latin-1")
        return HttpCaller(
            holder=identity or host,
            remote_address=request.remote,
            user_agent=agent,
            identity=request.holder or identity,
        )

    async def _identity(self, request: Request, host: str, topic: str, channel: str, now: float) -> str:
        token = token_of(request.headers.get(b"authorization", b""))
        if not token:
            raise Refusal(UNKNOWN)
        who = (token, host, request.common_name, request.is_secure)
        grant, until = self._grants.get(who, (None, 0.0))
        if grant is None or now >= until:
            grant = await self._ask_server(request, token, host)
            if grant is None or not grant.entries:
                self._grants.pop(who, None)
                raise Refusal(UNKNOWN)
            if len(self._grants) >= _MOST_GRANTS:
                self._grants.clear()
            self._grants[who] = grant, now + grant.ttl
        if not grant.allows(topic, channel):
            raise Refusal(FORBIDDEN)
        return grant.identity

    async def _ask_server(self, request: Request, token: bytes, host: str) -> Grant | None:
        assert self.ask is not None
        answered: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()

        def answer(grant: Grant | None) -> None:
            if not answered.done():
                answered.set_result(grant)

        question = AuthQuestion(
            token,
            remote_ip=host,
            tls=request.is_secure,
            common_name=request.common_name,
            answer=answer,
            drop=request.abort,
        )
        self.ask(question)
        try:
            return await answered
        finally:
            question.waits = False


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
