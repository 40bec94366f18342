"""Records the changes that operators make over HTTP: logs each change, and keeps the newest for `GET /changes`.

It also records topics and channels that the policy file expires, but not publishes or reports of a reader's position.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final
from urllib.parse import unquote_to_bytes

from nsqcommon.http_api import JSON, V1, HttpError, Request, Response, Stream, all_query_values, handler_slices
from nsqcommon.nsq_json import dumps
from nsqcommon.wire.quoting import quote
from nsqd.http.access import GuardedRoute, Scope
from nsqd.http.calls import ClientLeft

log = logging.getLogger(__name__)

KEPT: Final = 1000  # changes; at most about a megabyte, because we truncate long texts
POLICY: Final = "policy file"  # `who` for topics and channels that expire
_LONGEST: Final = 200  # characters of a text that the client chooses
_DIGITS: Final = 19
STOPPED: Final = "STOPPED"  # the error code of long work that was stopped; its changes so far are not undone
# With these statuses, nothing has changed. After a 500, the change is in effect, see nsqd/http/calls.py.
_FAILED: Final = range(400, 500)


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """One change, as `/changes` shows it."""

    n: int
    at: int  # nanoseconds since 1970
    what: str  # nsqadmin's word for the action: "pause_channel"
    topic: str
    channel: str
    detail: str  # the other arguments: "from=earliest"
    who: str  # the holder of the token or certificate; the client's address if there is none
    remote: str
    user: str  # the user nsqadmin reports. Any client can send this, so never base a decision on it
    user_agent: str


class Changes:
    def __init__(self, wall: Callable[[], int]) -> None:
        """`wall` returns nanoseconds since 1970."""
        self._wall = wall
        self._newest: deque[OperatorChange] = deque(maxlen=KEPT)
        self._last = 0  # the number of the newest change

    def record_calls(self, endpoint: GuardedRoute) -> GuardedRoute:
        """Wrap the endpoint's handler to record each change. Returns endpoints that change nothing as they are."""
        if not endpoint.change:
            return endpoint
        handler = endpoint.handler

        async def handle(request: Request) -> Response | Stream:
            try:
                answer = await handler(request)
            except HttpError as error:
                if error.status not in _FAILED or error.code == STOPPED:
                    self._record(endpoint, request)
                raise
            except ClientLeft:
                self._record(endpoint, request)
                raise
            if answer.status not in _FAILED:
                self._record(endpoint, request)
            return answer

        return replace(endpoint, handler=handle)

    def record_expiry(self, what: str, topic: str, channel: str, detail: str) -> None:
        """Record that the policy file deleted a topic or channel, or would have in a dry run."""
        self._add(
            what,
            topic=topic,
            channel=channel,
            detail=detail,
            who=POLICY,
            remote="",
            user="",
            user_agent="",
        )

    def _record(self, endpoint: GuardedRoute, request: Request) -> None:
        arguments = request.query()
        about = ("topic", "channel") if endpoint.access.scope is Scope.TOPIC else ()
        topic, channel = ((arguments.get(name, "") if name in about else "") for name in ("topic", "channel"))
        others = list(request.words.items())
        for name, values in all_query_values(request.query_string).items():
            others += [(name, text) for text in values if name not in about]
        self._add(
            endpoint.change,
            topic=topic[:_LONGEST],
            channel=channel[:_LONGEST],
            detail=" ".join(f"{name}={text}" for name, text in others)[:_LONGEST],
            who=request.holder or request.remote,
            remote=request.remote,
            user=_user_of(request),
            user_agent=_text(request.headers.get(b"user-agent", b"")),
        )

    def _add(self, what: str, **about: str) -> None:
        self._last += 1
        change = OperatorChange(n=self._last, at=self._wall(), what=what, **about)
        self._newest.append(change)
        log.info(
            "CHANGE: %s topic=%s channel=%s %s who=%s remote=%s user=%s agent=%s",
            change.what,
            _quoted(change.topic),
            _quoted(change.channel),
            _quoted(change.detail),
            _quoted(change.who),
            change.remote,
            _quoted(change.user),
            _quoted(change.user_agent),
        )

    async def show(self, request: Request) -> Response:
        """Return the changes after number `after`, oldest first.

        With `topic=`, returns only this topic's changes. A holder limited to certain topics must pass one of these.
        """
        arguments = request.query()
        after = _number(arguments.get("after", "0"), "INVALID_ARG_AFTER")
        limit = _number(arguments.get("limit", str(KEPT)), "INVALID_ARG_LIMIT")
        if after > self._last:  # from before a restart, after which the numbers start again at 1
            after = 0
        topic = arguments.get("topic")
        found = [it for it in self._newest if it.n > after and (topic is None or it.topic == topic)]
        shown = found[:limit]
        # After a complete list, the next call skips other topics' changes too. If not, it begins after the last shown.
        reached = self._last if len(shown) == len(found) else shown[-1].n if shown else after
        pieces = await handler_slices().all_of(dumps(asdict(it)) for it in shown)
        return Response(body=b'{"changes":[%b],"next":%d}' % (b",".join(pieces), reached), headers=(JSON, V1))


def who_asks(request: Request) -> str:
    """Return who began long work, for its record: `ana (on call)` is nsqadmin's user, and the name behind its token.

    Without a user, that is the token's holder or the client's address. It is in the journal and on pages, so it has no
    control characters and is bounded.
    """
    caller = request.holder or request.remote
    user = "".join(it if it.isprintable() else " " for it in _user_of(request)).strip()
    return f"{user} ({caller})" if user else caller


def _user_of(request: Request) -> str:
    """Return nsqadmin's user, as any client can claim."""
    return _text(unquote_to_bytes(request.headers.get(b"nsqadmin-user", b"")))


def _number(text: str, refusal: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise HttpError(400, refusal)
    return int(text)


def _text(header: bytes) -> str:
    return header.decode("utf-8", "replace")[:_LONGEST]


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape")).decode()
