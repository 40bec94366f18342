"""The short path for publishing over HTTP: bytes in, bytes out, on the poller, without a task or an event loop.

    receive(data) ─► head known? ─yes─► body complete? ─► publish ─► owed: [receipt, receipt, ...] ─► bytes_to_send()
                        │ no, or not one of ours
                        └────────────────────────────► hand_off(all bytes of this and later requests)

Only plain `POST /pub`, `POST /mpub` and `GET /ping` are served here; whatever else a connection brings, valid or not,
hands it over to the ASGI application for good, which has the same routes and also knows what to say to garbage.

A publisher sends the same head again and again, so heads are remembered: finding the blank line, one dictionary
look-up and a slice replace a parser's run with its callbacks. What a head means is decided by httptools, once, and
only a head whose last byte is also the parser's last byte is taken, so that no two readings of it can differ.
"""

from __future__ import annotations

from collections import deque
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

import httptools

from common.http_api import HttpDate, HttpError, Response, plain, text, wire_head
from common.http_heads import refusal_of
from common.wire.unfinished import UnfinishedBodies
from nsqd.http.access import PUBLISH
from nsqd.http.publishing import EXITING, UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqd.broker.batch import Receipt
    from nsqd.broker.broker import Broker
    from nsqd.http.guard import Guard
    from nsqd.http.mpub_body import MpubBody
    from nsqd.http.publishing import Publishing

_PUB: Final = 0
_MPUB: Final = 1
_PING: Final = 2
_KINDS: Final = {(b"POST", b"/pub"): _PUB, (b"POST", b"/mpub"): _MPUB, (b"GET", b"/ping"): _PING}
_STARTS: Final = (b"POST /pub", b"POST /mpub", b"GET /ping")
# A head with one of these is the application's to understand.
_NOT_OURS: Final = frozenset((b"expect", b"transfer-encoding", b"upgrade"))

_LONGEST_HEAD: Final = 16 * 1024  # longer ones are handed over
_LONGEST_KEPT: Final = 1024
_MOST_HEADS: Final = 4096  # remembered, so at most 4 MiB
_LINGER: Final = 0.5  # seconds; Go waits as long
_MOST_OWED: Final = 1024  # answers that wait for the disk, before reading pauses

_KEEP: Final = 0
_CLOSE: Final = 1
_KEEP_10: Final = 2
_CLOSE_10: Final = 3
_MANNERS: Final = ((b"1.1", b""), (b"1.1", b"close"), (b"1.0", b"keep-alive"), (b"1.0", b""))

_pack_size: Final = Struct(">I").pack

OK: Final = text("OK")
PING_OK: Final = plain("OK")
GIVEN_UP: Final = HttpError(503, "TOO_MANY_UNFINISHED_BODIES", close=True)


def ping_answer(health: str) -> Response:
    return PING_OK if health == "OK" else plain(health, status=500)


class _Head:
    """What one request's head asks for."""

    __slots__ = ("authorization", "kind", "length", "manner", "prefix", "query", "refusal")

    def __init__(self, kind: int, query: bytes, length: int, manner: int, authorization: bytes) -> None:
        self.authorization = authorization
        self.kind = kind
        self.query = query
        self.length = length
        self.manner = manner
        self.prefix = b""  # what a body gets in front: the size, for a PUB
        self.refusal: HttpError | None = None  # so long a body is not even read


class QuickRoutes:
    """What all quick connections of a daemon share: what to publish with, known heads, and answers ready to send."""

    def __init__(
        self,
        broker: Broker,
        publishing: Publishing,
        date: HttpDate | None = None,
        guard: Guard | None = None,
        unfinished: UnfinishedBodies | None = None,
    ) -> None:
        self.publishing = publishing
        self.unfinished = unfinished or UnfinishedBodies(publishing.limits.max_body)
        self.guard = guard
        self.heads: dict[bytes, _Head] = {}
        self._broker = broker
        self._date = date or HttpDate()
        self._dated = b""
        self._rendered: dict[tuple[Response, int], bytes] = {}

    def learn(self, head: bytes) -> _Head | None:
        """Parses a head; None when it is not for the short path."""
        known = _parse(head)
        if known is None:
            return None
        if known.kind == _PUB:
            known.refusal = self.publishing.pub_length(known.length)
            known.prefix = b"" if known.refusal else _pack_size(known.length)
        elif known.kind == _MPUB:
            known.refusal = self.publishing.mpub_length(known.length)
        if len(head) <= _LONGEST_KEPT:
            if len(self.heads) >= _MOST_HEADS:
                self.heads.clear()
            self.heads[head] = known
        return known

    def ping(self) -> Response:
        return ping_answer(self._broker.store.health)

    def rendered(self) -> dict[tuple[Response, int], bytes]:
        """Answers as bytes, by answer and manner, as of this second; `render` fills in what is missing."""
        date = self._date()
        if date is not self._dated:
            self._dated = date
            self._rendered.clear()
        return self._rendered

    def render(self, response: Response, manner: int) -> bytes:
        version, connection = _MANNERS[manner]
        whole = wire_head(response, date=self._dated, version=version, connection=connection) + response.body
        self._rendered[response, manner] = whole
        return whole


class QuickHttp:
    """One HTTP connection on the poller (a `common.poller.Handler`), until it ends or is handed over.

    `hand_off(received)` is called at most once, inside `receive` or `sent`, when everything that was owed is with the
    operating system; from then on the connection is somebody else's. `wake()` asks for `bytes_to_send`.
    """

    write_timeout: Final = inf  # NSQ sets none for HTTP; what is unsent is bounded by the poller
    aborted: Final = False
    lingers: Final = False  # where a body is refused, it sees to that itself

    def __init__(
        self,
        routes: QuickRoutes,
        *,
        hand_off: Callable[[bytes], None],
        wake: Callable[[], None],
        common_name: Callable[[], str] = str,
    ) -> None:
        """`common_name` tells that of the peer's certificate."""
        self._guard = routes.guard
        self._common_name = common_name
        self.next_deadline = inf
        self._routes = routes
        self._heads = routes.heads
        self._hand_off = hand_off
        self._wake = wake
        self._rest = b""  # of a head
        self._head: _Head | None = None  # whose body is coming in
        self._body: bytearray | MpubBody = bytearray()
        self._missing = 0
        self._owed: deque[tuple[Receipt | Response, int]] = deque()
        self._awaited: Receipt | None = None  # will wake us
        self._others: list[bytes] | None = None  # what is to be handed over, once nothing is owed
        self._sending = False
        self._closing = False

    @property
    def reading(self) -> bool:
        """Whether `receive` wants more now; what comes all the same is kept."""
        return self._others is None and len(self._owed) < _MOST_OWED

    @property
    def finished(self) -> bool:
        return self._closing and not self._owed and self.next_deadline == inf

    def receive(self, data: bytes, now: float) -> None:
        if self._others is not None:
            self._others.append(data)
            return
        if self._closing:
            return
        at = 0
        if self._head is not None:
            at = self._missing
            if len(data) < at:
                self._hold(data)
                self._missing -= len(data)
                self._routes.unfinished.hold(self, self._held_size)
                return
            self._hold(data[:at])
            self._perform(*self._take_held(self._head))
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        self._requests(data, at, now)
        if self._owed:
            self._wake()

    def end(self) -> None:
        """The peer sends nothing more. It still gets its answers."""
        if self._others is None:
            if self._head is not None:
                self._perform(*self._take_held(self._head), cut_short=True)
            self._closing = True
            self.next_deadline = inf
            self._wake()

    def give_up_body(self) -> None:
        """Give up the body, as others need the memory: nothing of it is published, and the connection ends."""
        head, self._head = self._head, None
        self._body = bytearray()
        if head is not None:
            self._owe(GIVEN_UP, head.manner)
            self._wake()

    def abort(self) -> None:
        self._routes.unfinished.release(self)
        self._body = bytearray()
        self._owed.clear()
        # They may hold this connection in turn; it must not wait for the garbage collector, least of all behind TLS.
        self._hand_off, self._common_name = _hand_off_nothing, str

    def tick(self, now: float) -> None:
        """The time is over for which a refused body was read on."""
        if now >= self.next_deadline:
            self.next_deadline = inf
            self._wake()

    def _requests(self, data: bytes, at: int, now: float) -> None:
        """All requests that are whole in `data` from `at` on; the beginning of another is kept."""
        heads = self._heads
        end = len(data)
        while at < end and not self._closing:
            body = data.find(b"\r\n\r\n", at) + 4
            if body == 3:
                rest = data[at:]
                if len(rest) <= _LONGEST_HEAD and _may_be_ours(rest):
                    self._rest = rest
                else:
                    self._leave(rest)
                return
            raw = data[at:body]
            head = heads.get(raw) or self._routes.learn(raw)
            if head is None:
                self._leave(data[at:])
                return
            at = body + head.length
            if head.refusal is not None:
                self._owe(head.refusal, head.manner)
                # Closing with unread data would be a reset, and the peer would never see why.
                self.next_deadline = now + _LINGER
            elif at <= end:
                self._perform(head, head.prefix + data[body:at])
            else:
                self._head = head
                self._body = (
                    self._routes.publishing.mpub_body(head.query) if head.kind == _MPUB else bytearray(head.prefix)
                )
                self._hold(data[body:])
                self._missing = at - end
                self._routes.unfinished.hold(self, self._held_size)

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of the body that is coming in."""
        if isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body.receive(piece)

    @property
    def _held_size(self) -> int:
        return len(self._body) if isinstance(self._body, bytearray) else self._body.held

    def _take_held(self, head: _Head) -> tuple[_Head, bytes | MpubBody]:
        held, self._body = self._body, bytearray()
        self._head = None
        self._routes.unfinished.release(self)
        return head, bytes(held) if isinstance(held, bytearray) else held

    def _perform(self, head: _Head, body: bytes | MpubBody, *, cut_short: bool = False) -> None:
        """Does what a request asks, whose body has come, or ended too early. That of a PUB has its size in front."""
        answer: Receipt | HttpError | Response
        if self._guard is not None and head.kind != _PING:
            refusal = self._guard.refusal(PUBLISH, head.query, head.authorization, self._common_name())
            if refusal is not None:
                self._owe(refusal, head.manner)
                return
        publishing = self._routes.publishing
        if head.kind == _PING:
            answer = self._routes.ping()
        elif head.kind == _MPUB:
            answer = (
                publishing.mpub(head.query, body)
                if isinstance(body, bytes) or not cut_short
                else publishing.mpub_cut_short(head.query, body)
            )
        else:
            assert isinstance(body, bytes)
            answer = UNREADABLE if cut_short else publishing.pub(head.query, body)
        self._owe(answer, head.manner)

    def _owe(self, answer: Receipt | HttpError | Response, manner: int) -> None:
        if isinstance(answer, HttpError):
            answer = answer.response
        if isinstance(answer, Response) and answer.close:
            manner |= _CLOSE
        self._owed.append((answer, manner))
        if manner & _CLOSE:
            self._closing = True

    def bytes_to_send(self) -> list[bytes]:
        """The answers that may go out now, in the order of the requests; none while the first still waits."""
        ready: list[bytes] = []
        owed = self._owed
        if not owed:
            return ready
        rendered = self._routes.rendered()
        while owed:
            answer, manner = owed[0]
            if not isinstance(answer, Response):
                if not answer.settled:
                    if answer is not self._awaited:
                        self._awaited = answer
                        answer.when_settled(self._wake)
                    break
                answer = OK if answer.error is None else EXITING.response
            owed.popleft()
            ready.append(rendered.get((answer, manner)) or self._routes.render(answer, manner))
        self._sending = self._sending or bool(ready)
        return ready

    def sent(self, unsent: int) -> None:
        if not unsent:
            self._sending = False
            if self._others is not None:
                self._hand_off_if_free()

    def _leave(self, others: bytes) -> None:
        self._others = [others]
        self._hand_off_if_free()

    def _hand_off_if_free(self) -> None:
        if self._others and not self._owed and not self._sending:
            others = b"".join(self._others)
            self._others = []
            self._hand_off(others)


def _hand_off_nothing(received: bytes) -> None:
    """Of a connection that has gone."""


def _may_be_ours(beginning: bytes) -> bool:
    return any(beginning.startswith(start) or start.startswith(beginning) for start in _STARTS)


class _Parsed:
    """What httptools calls back with. It does not know its parser, which refers to it."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def _parse(head: bytes) -> _Head | None:
    if len(head) > _LONGEST_HEAD or not _may_be_ours(head):
        return None
    parsed = _Parsed()
    parser = httptools.HttpRequestParser(parsed)
    try:
        parser.feed_data(head[:-1])
        if parsed.complete:
            return None
        parser.feed_data(head[-1:])
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    version = parser.get_http_version()
    path, _, query = parsed.url.partition(b"?")
    kind = _KINDS.get((parser.get_method(), path))
    if not parsed.complete or kind is None or b"#" in query or version not in ("1.0", "1.1"):
        return None
    # Refusing it is not for the short path: it comes behind other answers, and reads on for a while.
    if refusal_of(version, parsed.headers, len(head), date=b"") is not None:
        return None
    length = 0
    authorization = b""
    for name, value in parsed.headers:
        if name in _NOT_OURS:
            return None
        if name == b"content-length":
            length = int(value)
        elif name == b"authorization":
            authorization = value
    if kind == _PING and length:
        return None
    stay, leave = (_KEEP, _CLOSE) if version == "1.1" else (_KEEP_10, _CLOSE_10)
    return _Head(kind, query, length, stay if parser.should_keep_alive() else leave, authorization)
