"""Who has changed what over HTTP: a line of the log for each change, and the newest of them for `GET /changes`.

Published messages, and reports of readers, are no changes in this sense.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final
from urllib.parse import unquote_to_bytes

from nsqcommon.http_api import JSON, V1, HttpError, Request, Response, Stream, all_query_values
from nsqcommon.nsq_json import dumps
from nsqcommon.wire.quoting import quote
from nsqd.http.access import GuardedRoute, Scope
from nsqd.http.calls import GoneMeanwhile
from nsqd.http.lines import handler_slices

log = logging.getLogger(__name__)

KEPT: Final = 1000  # changes; with texts that are cut, about a megabyte at most
POLICY: Final = "policy file"  # who has changed what expired
_LONGEST: Final = 200  # characters of a text that the peer chooses
_DIGITS: Final = 19
STOPPED: Final = "STOPPED"  # somebody has ended long work: what it has done stays done
_FAILED: Final = range(400, 500)  # the request was refused; after a 500 the change is in effect, see nsqd/http/calls.py


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """One change, as `/changes` shows it. The class has slots, and there are at most `KEPT`."""

    n: int
    at: int  # nanoseconds since 1970
    what: str  # nsqadmin's word for the action: "pause_channel"
    topic: str
    channel: str
    detail: str  # the other arguments: "from=earliest"
    who: str  # the name of the token's or certificate's holder, or else the address
    remote: str
    user: str  # whom nsqadmin names as its user. Anybody can send that, so it decides nothing
    user_agent: str


class Changes:
    def __init__(self, wall: Callable[[], int]) -> None:
        """`wall` returns nanoseconds since 1970."""
        self._wall = wall
        self._newest: deque[OperatorChange] = deque(maxlen=KEPT)
        self._last = 0  # the number of the newest change

    def noting(self, endpoint: GuardedRoute) -> GuardedRoute:
        """Return the endpoint with a handler that notes each change; an endpoint that changes nothing, as it is."""
        if not endpoint.change:
            return endpoint
        handler = endpoint.handler

        async def noted(request: Request) -> Response | Stream:
            try:
                answer = await handler(request)
            except HttpError as error:
                if error.status not in _FAILED or error.code == STOPPED:
                    self._note(endpoint, request)
                raise
            except GoneMeanwhile:
                self._note(endpoint, request)
                raise
            if answer.status not in _FAILED:
                self._note(endpoint, request)
            return answer

        return replace(endpoint, handler=noted)

    def note_expiry(self, what: str, topic: str, channel: str, detail: str) -> None:
        """Note that the policy file had something deleted, or would have had."""
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

    def _note(self, endpoint: GuardedRoute, request: Request) -> None:
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
            user=_text(unquote_to_bytes(request.headers.get(b"nsqadmin-user", b""))),
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
        """Answer with the changes after a number, the oldest first.

        A request that names a topic gets the changes of that topic only, and a holder limited to topics has to name one.
        """
        arguments = request.query()
        after = _number(arguments.get("after", "0"), "INVALID_ARG_AFTER")
        limit = _number(arguments.get("limit", str(KEPT)), "INVALID_ARG_LIMIT")
        if after > self._last:  # a number from before a restart, after which numbers begin again
            after = 0
        topic = arguments.get("topic")
        found = [it for it in self._newest if it.n > after and (topic is None or it.topic == topic)]
        shown = found[:limit]
        # Changes of other topics need not be looked at again.
        reached = self._last if len(shown) == len(found) else shown[-1].n if shown else after
        pieces = await handler_slices().all_of(dumps(asdict(it)) for it in shown)
        return Response(body=b'{"changes":[%b],"next":%d}' % (b",".join(pieces), reached), headers=(JSON, V1))


def _number(text: str, refusal: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise HttpError(400, refusal)
    return int(text)


def _text(header: bytes) -> str:
    return header.decode("utf-8", "replace")[:_LONGEST]


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape")).decode()
