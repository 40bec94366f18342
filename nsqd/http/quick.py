"""The fast path for publishing over HTTP: bytes in, bytes out, on the poller, without a task or an event loop.

    receive(data) ─► head known? ─yes─► body complete? ─► publish ─► answers: [receipt, receipt, ...] ─► bytes_to_send()
                        │ no, or another route
                        └────────────────────────────► hand_off(all bytes of this and later requests)

We only serve plain `POST /pub`, `POST /mpub` and `GET /ping` here. At any other request, valid or not, we hand the
connection to the ASGI application for good. The application has the same routes, and also responds to garbage.

A publisher sends the same head again and again, so we cache heads. Finding the blank line and looking up the bytes
before it is faster than running a parser with callbacks, so httptools parses each head only once. We only accept a head
if the parser completes it at its very last byte. Otherwise the parser and our search for the blank line could disagree
about where the body begins.
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
# A request with one of these goes to the application.
_NOT_OURS: Final = frozenset((b"expect", b"transfer-encoding", b"upgrade"))

_TRACE: Final = b"traceparent"
_LONGEST_HEAD: Final = 16 * 1024  # longer ones go to the application
_LONGEST_KEPT: Final = 1024  # bytes of a head in the cache
_MOST_HEADS: Final = 4096  # in the cache, so at most 4 MiB
_LINGER: Final = 0.5  # seconds; as long as in Go
_MOST_ANSWERS: Final = 1024  # unsent answers, beyond which we stop reading
_MOST_REQUESTS: Final = 512  # from one read before other clients are served; 5 to 10 ms of work
# Each 128 bytes of an MPUB's body count as one more request, because lines may be short: they can hold 64 messages.
_BYTES_AS_REQUEST: Final = 128
_SHORT_MPUB: Final = 32 * 1024  # bytes; a complete body up to this size is cut in one go
_MOST_TOPICS: Final = 32  # topics that get the turn's first message from one read; each is a write to another file
_SHORT_PAUSE: Final = 0.000_001  # seconds; any later deadline will do, because the poller serves all others before it

# The mode of a response: its HTTP version and Connection header, and whether we close the connection after it. All odd
# modes close the connection, so `mode | _CLOSE` is the closing variant of `mode`.
_KEEP: Final = 0
_CLOSE: Final = 1
_KEEP_10: Final = 2
_CLOSE_10: Final = 3
_MODES: Final = ((b"1.1", b""), (b"1.1", b"close"), (b"1.0", b"keep-alive"), (b"1.0", b""))

_pack_size: Final = Struct(">I").pack

OK: Final = text("OK")
PING_OK: Final = plain("OK")
GIVEN_UP: Final = HttpError(503, "TOO_MANY_UNFINISHED_BODIES", close=True)


def ping_answer(health: str) -> Response:
    return PING_OK if health == "OK" else plain(health, status=500)


class _Head:
    """The parsed head of a request."""

    __slots__ = ("authorization", "headers", "kind", "length", "mode", "prefix", "query", "refusal")

    def __init__(
        self, kind: int, query: bytes, length: int, mode: int, authorization: bytes, headers: bytes = b""
    ) -> None:
        self.authorization = authorization
        self.headers = headers  # of the message
        self.kind = kind
        self.query = query
        self.length = length
        self.mode = mode
        self.prefix = b""  # to put before the body: its size for PUB
        self.refusal: HttpError | None = None  # set if the body is too long, so that we don't even read it


class QuickRoutes:
    """The state that all connections share: publishing, the cache of heads, and the rendered responses."""

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
        """`left_out` has more names of headers, in lower case. A request with one of them goes to the application."""
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
        """Parse a head and cache it. Returns None if the request isn't for the fast path."""
        known = _parse(head, self._not_ours)
        if known is None:
            return None
        if known.kind == _PUB:
            known.refusal = self.publishing.pub_length(known.length)
            known.prefix = b"" if known.refusal else _pack_size(known.length)
        elif known.kind == _MPUB:
            known.refusal = self.publishing.mpub_length(known.length)
        if len(head) <= _LONGEST_KEPT and _TRACE not in known.headers:  # each trace id is new, so caching is useless
            if len(self.heads) >= _MOST_HEADS:
                self.heads.clear()
            self.heads[head] = known
        return known

    def ping(self) -> Response:
        return ping_answer(self._broker.store.health)

    @property
    def topics_in_turn(self) -> int:
        """The number of topics published to in this turn."""
        return len(self._broker.turn.unsealed)

    def rendered(self) -> dict[tuple[Response, int], bytes]:
        """Return the rendered responses, by response and mode. They expire each second, because of the Date header."""
        date = self._date()
        if date is not self._dated:
            self._dated = date
            self._rendered.clear()
        return self._rendered

    def render(self, response: Response, mode: int) -> bytes:
        version, connection = _MODES[mode]
        whole = wire_head(response, date=self._dated, version=version, connection=connection) + response.body
        self._rendered[response, mode] = whole
        return whole


class QuickHttp:
    """One HTTP connection on the poller (a `nsqcommon.poller.Handler`), until it ends or is handed over.

    We call `hand_off(received)` at most once, from `receive`, `tick` or `sent`, after the last response has been sent.
    The connection then belongs to another handler. `wake()` asks the poller to call `bytes_to_send`.
    """

    write_timeout: Final = inf  # as in NSQ; the poller limits the unsent bytes instead
    aborted: Final = False
    lingers: Final = False  # this class itself keeps reading after a refused body

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
        self._rest = b""  # an incomplete head, or bytes to process in a later turn
        self._head: _Head | None = None  # the request whose body is arriving
        self._body: bytearray | MpubBody = bytearray()
        self._missing = 0
        self._answers: deque[tuple[Receipt | Response, int]] = deque()
        self._awaited: Receipt | None = None  # the receipt that will wake us
        self._leftover: list[bytes] | None = None  # bytes to hand over after the last answer
        self._sending = False
        self._closing = False
        self._gives_way = False  # `_rest` waits for a later turn
        self._ended = False  # EOF arrived while `_gives_way`, so `tick` has to handle it

    @property
    def reading(self) -> bool:
        """Whether the poller should read more now. We keep bytes that arrive anyway."""
        return self._leftover is None and not self._gives_way and len(self._answers) < _MOST_ANSWERS

    @property
    def finished(self) -> bool:
        return self._closing and not self._answers and self.next_deadline == inf

    def receive(self, data: bytes, now: float) -> None:
        if self._leftover is not None:
            self._leftover.append(data)
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
        if self._answers:
            self._wake()

    def _receive_body(self, data: bytes, now: float) -> None:
        """Collect the body. Once it is complete, carry out the request, and the requests after it."""
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
        """Process the rest of the received bytes in a later turn, so that other clients are served first."""
        self._rest = rest
        self._gives_way = True
        self.next_deadline = now + _SHORT_PAUSE
        self._wake()

    def end(self) -> None:
        """Handle EOF: close the connection after the remaining responses."""
        if self._gives_way:
            self._ended = True
        elif self._leftover is None:
            if self._head is not None:
                self._perform(*self._take_held(self._head), cut_short=True)
            self._closing = True
            self.next_deadline = inf
            self._wake()

    def give_up_body(self) -> None:
        """Discard the unfinished body, because other connections need the memory. Responds with a 503, then closes."""
        head, self._head = self._head, None
        self._body = bytearray()
        if head is not None:
            self._queue_answer(GIVEN_UP, head.mode)
            self._wake()

    def abort(self) -> None:
        self._routes.unfinished.release(self)
        self._body = bytearray()
        self._rest, self._gives_way, self.next_deadline = b"", False, inf
        self._answers.clear()
        # These may refer back to this connection. Break the cycle so that its memory is freed now and not by the
        # garbage collector. That matters most for TLS.
        self._hand_off, self._common_name = _hand_off_nothing, str

    def tick(self, now: float) -> None:
        """Continue with `_rest`, or close the connection at the end of the linger time after a refused body."""
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
        """Carry out the complete requests in `data` from `at` on, and keep the beginning of the next one.

        Beyond `_MOST_REQUESTS` or `_MOST_TOPICS`, the rest waits for a later turn.
        """
        heads = self._heads
        end = len(data)
        left, most_topics = _MOST_REQUESTS, 0
        while at < end and not self._closing:
            if left < _MOST_REQUESTS:  # not the first, which always runs
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
                    self._begin_hand_off(rest)
                return
            raw = data[at:body]
            head = heads.get(raw) or self._routes.learn(raw)
            if head is None:
                self._begin_hand_off(data[at:])
                return
            left -= 1 + head.length // _BYTES_AS_REQUEST if head.kind == _MPUB else 1
            at = body + head.length
            if head.refusal is not None:
                self._queue_answer(head.refusal, head.mode)
                # Don't close yet: with unread data, the kernel sends a reset, and the client may never see our answer.
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
        """Append a piece to the arriving body."""
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
        """Carry out a request with a body that is complete or `cut_short` by EOF. A PUB's body begins with its size."""
        answer: Receipt | HttpError | Response
        if self._guard is not None and head.kind != _PING:
            refusal = self._guard.refusal(PUBLISH, head.query, head.authorization, self._common_name())
            if refusal is not None:
                self._queue_answer(refusal, head.mode)
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
        self._queue_answer(answer, head.mode)

    def _queue_answer(self, answer: Receipt | HttpError | Response, mode: int) -> None:
        if isinstance(answer, HttpError):
            answer = answer.response
        if isinstance(answer, Response) and answer.close:
            mode |= _CLOSE
        self._answers.append((answer, mode))
        if mode & _CLOSE:
            self._closing = True

    def bytes_to_send(self) -> list[bytes]:
        """Return the responses that are ready, in the order of requests. A pending one holds back all later ones."""
        ready: list[bytes] = []
        answers = self._answers
        if not answers:
            return ready
        rendered = self._routes.rendered()
        while answers:
            answer, mode = answers[0]
            if not isinstance(answer, Response):
                if not answer.settled:
                    if answer is not self._awaited:
                        self._awaited = answer
                        answer.when_settled(self._wake)
                    break
                answer = OK if answer.error is None else EXITING.response
            answers.popleft()
            ready.append(rendered.get((answer, mode)) or self._routes.render(answer, mode))
        self._sending = self._sending or bool(ready)
        return ready

    def sent(self, unsent: int) -> None:
        if not unsent:
            self._sending = False
            if self._leftover is not None:
                self._hand_off_if_free()

    def _begin_hand_off(self, received: bytes) -> None:
        self._leftover = [received]
        self._hand_off_if_free()

    def _hand_off_if_free(self) -> None:
        if self._leftover and not self._answers and not self._sending:
            received = b"".join(self._leftover)
            self._leftover = []
            self._hand_off(received)


def _hand_off_nothing(received: bytes) -> None:
    """Do nothing: the connection is closed."""


def _may_be_ours(beginning: bytes) -> bool:
    return any(beginning.startswith(start) or start.startswith(beginning) for start in _STARTS)


class _Parsed:
    """The callbacks for httptools. Has no reference to the parser, because that would create a reference cycle."""

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
    # Leave malformed heads to the application: it sends the refusal after earlier answers, and lingers.
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
        return None  # the application answers with the reason
    stay, leave = (_KEEP, _CLOSE) if version == "1.1" else (_KEEP_10, _CLOSE_10)
    # Don't use the parser's `should_keep_alive`: after a request without a body, it has already forgotten the headers.
    mode = stay if keeps_open(version, parsed.headers) else leave
    return _Head(kind, query, length, mode, authorization, headers)
