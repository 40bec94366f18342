"""The short path for publishing over HTTP: bytes in, bytes out, on the poller, without a task or an event loop.

    receive(data) ─► head known? ─yes─► body complete? ─► publish ─► owed: [receipt, receipt, ...] ─► bytes_to_send()
                        │ no, or not one of ours
                        └────────────────────────────► hand_off(all bytes of this and later requests)

Only plain `POST /pub`, `POST /mpub` and `GET /ping` are served here. Any other request, valid or not, hands the
connection over to the ASGI application for good, which has the same routes and also answers garbage.

A publisher sends the same head again and again, so heads are remembered: finding the blank line, one dictionary look-up
and a slice replace a run of the parser with its callbacks. httptools decides once what a head means. Only a head whose
last byte is also the parser's last byte is accepted, so that the two can never disagree about where it ends.
"""

from __future__ import annotations

from collections import deque
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

import httptools

from nsqcommon.http_api import HttpDate, HttpError, Response, plain, text, wire_head
from nsqcommon.http_heads import keeps_open, refusal_of
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd.http.access import PUBLISH
from nsqd.http.message_headers import BadHeaders, headers_of
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
# A head with one of these is left to the application.
_NOT_OURS: Final = frozenset((b"expect", b"transfer-encoding", b"upgrade"))

_TRACE: Final = b"traceparent"
_LONGEST_HEAD: Final = 16 * 1024  # longer ones are handed over
_LONGEST_KEPT: Final = 1024
_MOST_HEADS: Final = 4096  # remembered heads, so at most 4 MiB
_LINGER: Final = 0.5  # seconds; as long as in Go
_MOST_OWED: Final = 1024  # answers that wait for the disk before reading pauses
_MOST_REQUESTS: Final = 512  # in one read, before others have their turn: 5 to 10 ms of work
_BYTES_AS_REQUEST: Final = 128  # of an MPUB's body count as one request more: it may have a message in each two of them
_SHORT_MPUB: Final = 32 * 1024  # bytes of a body that is cut at once, if all of it is here
_MOST_TOPICS: Final = 32  # that get their first message of the turn from one read: each is a write to another file
_BREATH: Final = 0.000_001  # seconds; any later time gives all others their turn first

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
    """The meaning of one request's head."""

    __slots__ = ("authorization", "headers", "kind", "length", "manner", "prefix", "query", "refusal")

    def __init__(
        self, kind: int, query: bytes, length: int, manner: int, authorization: bytes, headers: bytes = b""
    ) -> None:
        self.authorization = authorization
        self.headers = headers  # of the message
        self.kind = kind
        self.query = query
        self.length = length
        self.manner = manner
        self.prefix = b""  # put in front of the body: the size, for a PUB
        self.refusal: HttpError | None = None  # set if the body is so long that it is not even read


class QuickRoutes:
    """The parts that all quick connections of a daemon share: publishing, known heads, and rendered answers."""

    def __init__(
        self,
        broker: Broker,
        publishing: Publishing,
        date: HttpDate | None = None,
        guard: Guard | None = None,
        unfinished: UnfinishedBodies | None = None,
        *,
        left_out: frozenset[bytes] = frozenset(),
    ) -> None:
        """`left_out` are further headers, in lower case, whose requests are left to the application."""
        self.publishing = publishing
        self._not_ours = _NOT_OURS | left_out
        self.unfinished = unfinished or UnfinishedBodies(publishing.limits.max_body)
        self.guard = guard
        self.heads: dict[bytes, _Head] = {}
        self._broker = broker
        self._date = date or HttpDate()
        self._dated = b""
        self._rendered: dict[tuple[Response, int], bytes] = {}

    def learn(self, head: bytes) -> _Head | None:
        """Parse a head and remember it. None: it is not for the short path."""
        known = _parse(head, self._not_ours)
        if known is None:
            return None
        if known.kind == _PUB:
            known.refusal = self.publishing.pub_length(known.length)
            known.prefix = b"" if known.refusal else _pack_size(known.length)
        elif known.kind == _MPUB:
            known.refusal = self.publishing.mpub_length(known.length)
        if len(head) <= _LONGEST_KEPT and _TRACE not in known.headers:  # a trace comes once
            if len(self.heads) >= _MOST_HEADS:
                self.heads.clear()
            self.heads[head] = known
        return known

    def ping(self) -> Response:
        return ping_answer(self._broker.store.health)

    @property
    def topics_in_turn(self) -> int:
        """How many topics have got messages in this turn so far."""
        return len(self._broker.turn.unsealed)

    def rendered(self) -> dict[tuple[Response, int], bytes]:
        """Return the answers rendered for this second, by answer and manner. `render` adds missing ones."""
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
    """One HTTP connection on the poller (a `nsqcommon.poller.Handler`), until it ends or is handed over.

    `hand_off(received)` is called at most once, inside `receive`, `tick` or `sent`, when the operating system has everything
    that was owed. From then on the connection belongs to another handler. `wake()` asks for `bytes_to_send`.
    """

    write_timeout: Final = inf  # NSQ sets none for HTTP; the poller bounds what is unsent
    aborted: Final = False
    lingers: Final = False  # a refused body is read on by this class itself

    def __init__(
        self,
        routes: QuickRoutes,
        *,
        hand_off: Callable[[bytes], None],
        wake: Callable[[], None],
        common_name: Callable[[], str] = str,
    ) -> None:
        """Serve a new connection. `common_name` returns the name in the peer's certificate."""
        self._guard = routes.guard
        self._common_name = common_name
        self.next_deadline = inf
        self._routes = routes
        self._heads = routes.heads
        self._hand_off = hand_off
        self._wake = wake
        self._rest = b""  # the beginning of a head
        self._head: _Head | None = None  # the one whose body is arriving
        self._body: bytearray | MpubBody = bytearray()
        self._missing = 0
        self._owed: deque[tuple[Receipt | Response, int]] = deque()
        self._awaited: Receipt | None = None  # the receipt that will wake us
        self._others: list[bytes] | None = None  # bytes to hand over once nothing is owed
        self._sending = False
        self._closing = False
        self._gives_way = False  # others have their turn before `_rest` is read
        self._ended = False  # the peer will send nothing more, which counts once it no longer gives way

    @property
    def reading(self) -> bool:
        """Whether `receive` wants more now. Bytes that arrive anyway are kept."""
        return self._others is None and not self._gives_way and len(self._owed) < _MOST_OWED

    @property
    def finished(self) -> bool:
        return self._closing and not self._owed and self.next_deadline == inf

    def receive(self, data: bytes, now: float) -> None:
        if self._others is not None:
            self._others.append(data)
            return
        if self._closing:
            return
        if self._gives_way:
            self._rest += data
            return
        if self._head is not None:
            self._receive_body(data, now)
        else:
            if self._rest:
                data = self._rest + data
                self._rest = b""
            self._requests(data, 0, now)
        if self._owed:
            self._wake()

    def _receive_body(self, data: bytes, now: float) -> None:
        """Hold what arrives of a body, and perform the request once it is complete, and those behind it."""
        assert self._head is not None
        size = min(len(data), self._missing)
        if not isinstance(self._body, bytearray):
            size = self._body.first_part(data[:size])
        self._hold(data[:size])
        self._missing -= size
        if not self._missing:
            self._perform(*self._take_held(self._head))
            self._requests(data, size, now)
            return
        self._routes.unfinished.hold(self, self._held_size)
        if size < len(data):
            self._give_way(data[size:], now)

    def _give_way(self, rest: bytes, now: float) -> None:
        """Let others have their turn before the rest of what has arrived."""
        self._rest = rest
        self._gives_way = True
        self.next_deadline = now + _BREATH
        self._wake()

    def end(self) -> None:
        """Close after the remaining answers: the peer will send nothing more."""
        if self._gives_way:
            self._ended = True
        elif self._others is None:
            if self._head is not None:
                self._perform(*self._take_held(self._head), cut_short=True)
            self._closing = True
            self.next_deadline = inf
            self._wake()

    def give_up_body(self) -> None:
        """Discard the unfinished body, as others need the memory.

        Nothing of it is published, and the connection ends.
        """
        head, self._head = self._head, None
        self._body = bytearray()
        if head is not None:
            self._owe(GIVEN_UP, head.manner)
            self._wake()

    def abort(self) -> None:
        self._routes.unfinished.release(self)
        self._body = bytearray()
        self._rest, self._gives_way, self.next_deadline = b"", False, inf
        self._owed.clear()
        # These may refer back to this connection. Cutting the cycle frees it at once, which matters most for TLS.
        self._hand_off, self._common_name = _hand_off_nothing, str

    def tick(self, now: float) -> None:
        """Continue after others had their turn, or end the connection: it has read on long enough after a refused body."""
        if now < self.next_deadline:
            return
        self.next_deadline = inf
        if self._gives_way:
            self._gives_way = False
            rest, self._rest = self._rest, b""
            self.receive(rest, now)
            if self._ended:
                self.end()
        self._wake()

    def _requests(self, data: bytes, at: int, now: float) -> None:
        """Carry out the requests complete in `data` from `at` on, and keep the beginning of the next.

        If these are very many, others have their turn after some.
        """
        heads = self._heads
        end = len(data)
        left, most_topics = _MOST_REQUESTS, 0
        while at < end and not self._closing:
            if left < _MOST_REQUESTS:  # there is more than one
                topics = self._routes.topics_in_turn
                most_topics = most_topics or topics + _MOST_TOPICS - 1
                if left <= 0 or topics >= most_topics:
                    self._give_way(data[at:], now)
                    return
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
            left -= 1 + head.length // _BYTES_AS_REQUEST if head.kind == _MPUB else 1
            at = body + head.length
            if head.refusal is not None:
                self._owe(head.refusal, head.manner)
                # Closing with unread data would send a reset, and the peer would never see the reason.
                self.next_deadline = now + _LINGER
            elif at <= end and (head.kind != _MPUB or head.length <= _SHORT_MPUB):
                self._perform(head, head.prefix + data[body:at])
            else:
                self._head = head
                self._body = (
                    self._routes.publishing.mpub_body(head.query) if head.kind == _MPUB else bytearray(head.prefix)
                )
                self._missing = head.length
                self._receive_body(data[body:], now)
                return

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of the arriving body."""
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
        """Carry out a request whose body is complete or `cut_short`. The body of a PUB has its size in front."""
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
                publishing.mpub(head.query, body, head.headers)
                if isinstance(body, bytes) or not cut_short
                else publishing.mpub_cut_short(head.query, body, head.headers)
            )
        else:
            assert isinstance(body, bytes)
            answer = UNREADABLE if cut_short else publishing.pub(head.query, body, head.headers)
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
        """Return the answers that may go out now, in the order of the requests.

        None are returned while the first one waits.
        """
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
    """Do nothing: the connection has gone."""


def _may_be_ours(beginning: bytes) -> bool:
    return any(beginning.startswith(start) or start.startswith(beginning) for start in _STARTS)


class _Parsed:
    """The callbacks for httptools. It does not know its parser, which refers to it."""

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


def _parse(head: bytes, not_ours: frozenset[bytes]) -> _Head | None:
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
    # Refusing a head is not for the short path: the refusal comes after other answers, and the body is read on for a
    # while.
    if refusal_of(version, parsed.headers, len(head), date=b"") is not None:
        return None
    length = 0
    authorization = b""
    for name, value in parsed.headers:
        if name in not_ours:
            return None
        if name == b"content-length":
            length = int(value)
        elif name == b"authorization":
            authorization = value
    if kind == _PING and length:
        return None
    try:
        headers = headers_of(parsed.headers, of_batch=kind == _MPUB)
    except BadHeaders:
        return None  # the application says so
    stay, leave = (_KEEP, _CLOSE) if version == "1.1" else (_KEEP_10, _CLOSE_10)
    # The parser's `should_keep_alive` would say nothing here: it has forgotten the headers once a request without a body
    # is complete.
    manner = stay if keeps_open(version, parsed.headers) else leave
    return _Head(kind, query, length, manner, authorization, headers)
