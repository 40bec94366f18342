"""Checks and publishes `POST /pub` and `POST /mpub`, in NSQ's order (specification 4.4). No sockets, no waiting.

Both paths use this: the fast one on the poller (`quick.py`) and the ASGI application (`pub.py`). Clients can observe
the order of the checks, so keep it:

    /pub    length → body empty → query → topic (created here) → defer and key → publish
    /mpub   length → query → topic (created here) → defer and key → body → publish
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, Response, parse_query
from nsqcommon.wire.commands import HeadedPublications
from nsqcommon.wire.extensions import is_valid_key
from nsqcommon.wire.names import is_valid_name
from nsqd.broker.batch import Receipt
from nsqd.broker.topic import PublishRefused
from nsqd.http.mpub_body import BODY_TOO_BIG, MSG_TOO_BIG, BinaryBody, HeadedBody, LinesBody, MpubBody

if TYPE_CHECKING:
    from nsqcommon.wire.limits import SizeLimits
    from nsqd.broker.broker import Broker

_log = logging.getLogger(__name__)

_is_decimal: Final = re.compile(r"[+-]?[0-9]+", re.ASCII).fullmatch
_BINARY_WORDS: Final = {"true": True, "1": True, "false": False, "0": False}
_MOST_QUERIES: Final = 4096  # in the cache
_LONGEST_QUERY: Final = 512  # bytes; longer ones aren't cached

INVALID_DEFER: Final = HttpError(400, "INVALID_DEFER")
INVALID_KEY: Final = HttpError(400, "INVALID_KEY")
INVALID_HEADERS: Final = "INVALID_HEADERS"
MSG_EMPTY: Final = HttpError(400, "MSG_EMPTY")
EXITING: Final = HttpError(503, "EXITING")
RETRY_AFTER: Final = (b"retry-after", b"1")  # seconds; consumers may have made room by then
UNREADABLE: Final = HttpError(500, "INTERNAL_ERROR", close=True)  # the client closed before its body was complete


class _Full(HttpError):
    """The response to a publish that exceeds a limit of the policy."""

    def __init__(self, cause: str) -> None:
        super().__init__(429, "FULL", details={"reason": cause})
        answer = super().response
        self._response = replace(answer, headers=(*answer.headers, RETRY_AFTER))

    @property
    def response(self) -> Response:
        return self._response


# Cached so that the fast path renders each response only once, because refused publishers keep trying.
_full: Final = lru_cache(maxsize=256)(_Full)


@dataclass(frozen=True, slots=True)
class _Target:
    """A parsed query. We report an `early` error before creating the topic, and a `late` error after."""

    topic: str = ""
    delay_ms: int = 0
    binary: bool = False
    key: bytes = b""
    early: HttpError | None = None
    late: HttpError | None = None


class Publishing:
    """Publishes for HTTP requests. Returns errors instead of raising them, because they are ordinary responses."""

    def __init__(self, broker: Broker, limits: SizeLimits, *, max_defer_ms: int) -> None:
        self.limits = limits
        self._broker = broker
        self._max_defer_ms = max_defer_ms
        # Clients send the same few queries again and again. Looking them up instead of parsing saves 2 of 5 µs.
        self._pub_targets: dict[bytes, _Target] = {}
        self._mpub_targets: dict[bytes, _Target] = {}

    def pub_length(self, content_length: int) -> HttpError | None:
        return MSG_TOO_BIG if content_length > self.limits.max_message else None

    def mpub_length(self, content_length: int) -> HttpError | None:
        return BODY_TOO_BIG if content_length > self.limits.max_body else None

    def pub(self, query: bytes, sized_body: bytes, headers: bytes = b"") -> Receipt | HttpError:
        """Publish one message. `sized_body` begins with its size; `headers` are encoded."""
        size = len(sized_body) - 4
        if size > self.limits.max_message:
            return MSG_TOO_BIG
        if not size:
            return MSG_EMPTY
        target = self._pub_targets.get(query) or self._learn_pub(query)
        if target.early is not None:
            return target.early
        try:
            topic = self._broker.topic(target.topic)
            if target.late is not None:
                return target.late
            return topic.publish_one(sized_body, target.delay_ms, target.key, headers)
        except PublishRefused as refused:
            return _full(refused.cause) if refused.is_full else EXITING

    def mpub_query(self, query: bytes) -> HttpError | None:
        """Check the query before the body arrives, and create the topic. Returns the error, if any."""
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        if target.early is None:
            self._broker.topic(target.topic)
        return target.early

    def mpub_body(self, query: bytes) -> MpubBody:
        """Create the body for `mpub`. Pass it the pieces as they arrive."""
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        return BinaryBody(self.limits) if target.binary else LinesBody(self.limits)

    def mpub(self, query: bytes, body: bytes | MpubBody, headers: bytes = b"") -> Receipt | HttpError:
        """Publish all messages of the body, each with these headers."""
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        if target.early is not None:
            return target.early
        try:
            topic = self._broker.topic(target.topic)
            if target.late is not None:
                return target.late
            if isinstance(body, bytes):
                whole = self.mpub_body(query)
                whole.receive(body)
                body = whole
            cut = body.cut()
            if isinstance(cut, HttpError):
                return cut
            payload, offsets = cut
            if not payload:
                return _settled_receipt()
            area = headers * (len(offsets) - 1)
            return topic.publish(payload, offsets, target.delay_ms, target.key, area)
        except PublishRefused as refused:
            return _full(refused.cause) if refused.is_full else EXITING

    def hmpub(self, query: bytes, body: HeadedBody) -> Receipt | HttpError:
        """Publish all messages of the body, each with its own headers."""
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        if (refusal := target.early or target.late) is not None:
            return refusal
        cut = body.cut()
        if isinstance(cut, HttpError):
            return cut
        headers = cut.headers if isinstance(cut, HeadedPublications) else b""
        try:
            topic = self._broker.topic(target.topic)
            return topic.publish(cut.payload, cut.offsets, target.delay_ms, target.key, headers)
        except PublishRefused as refused:
            return _full(refused.cause) if refused.is_full else EXITING

    def mpub_cut_short(self, query: bytes, body: MpubBody, headers: bytes = b"") -> Receipt | HttpError:
        """Handle a request whose body is shorter than its Content-Length.

        A binary body has a count and sizes, so we can tell if all of its messages have arrived. If so, we publish them.
        """
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        if target.binary:
            return self.mpub(query, body, headers)
        return self.mpub_query(query) or UNREADABLE

    def _learn_pub(self, query: bytes) -> _Target:
        return _remember(self._pub_targets, query, self._pub_target(query))

    def _learn_mpub(self, query: bytes) -> _Target:
        return _remember(self._mpub_targets, query, self._mpub_target(query))

    def _pub_target(self, query: bytes) -> _Target:
        topic = _topic(query)
        if isinstance(topic, HttpError):
            return _Target(early=topic)
        return self._checked(_Target(topic), parse_query(query))

    def _mpub_target(self, query: bytes) -> _Target:
        """Parse a query of /mpub. `defer` and `key` are extensions: NSQ has only `defer`, and only in /pub."""
        topic = _topic(query)
        if isinstance(topic, HttpError):
            return _Target(early=topic)
        arguments = parse_query(query)
        word = arguments.get("binary", "false")
        if word not in _BINARY_WORDS:
            _log.warning("deprecated value '%s' used for /mpub binary param", word.encode(errors="replace").decode())
        return self._checked(_Target(topic, binary=_BINARY_WORDS.get(word, True)), arguments)

    def _checked(self, target: _Target, arguments: dict[str, str]) -> _Target:
        """Add delay and key to the target, or a late error if one of them is invalid."""
        delay_ms = self.delay_ms(arguments)
        if delay_ms is None:
            return _Target(target.topic, late=INVALID_DEFER)
        key = arguments.get("key")
        if key is not None and not (self._broker.turn.keys.window and is_valid_key(key.encode())):
            return _Target(target.topic, late=INVALID_KEY)
        return replace(target, delay_ms=delay_ms, key=(key or "").encode())

    def delay_ms(self, arguments: dict[str, str]) -> int | None:
        """Return the delay, or None if the argument is invalid."""
        defer = arguments.get("defer")
        if defer is None:
            return 0
        is_valid = _is_decimal(defer) and len(defer) <= 20 and 0 <= int(defer) <= self._max_defer_ms
        return int(defer) if is_valid else None


def _topic(query: bytes) -> str | HttpError:
    try:
        topic = parse_query(query).get("topic")
    except HttpError as error:
        return HttpError(error.status, error.code)  # we cache it, so create one without the traceback and its frames
    if topic is None:
        return HttpError(400, "MISSING_ARG_TOPIC")
    return topic if is_valid_name(topic) else HttpError(400, "INVALID_TOPIC")


def _remember(targets: dict[bytes, _Target], query: bytes, target: _Target) -> _Target:
    if len(query) <= _LONGEST_QUERY and not target.key:  # a key is used once or twice, so it would only fill the cache
        if len(targets) >= _MOST_QUERIES:
            targets.clear()
        targets[query] = target
    return target


def _settled_receipt() -> Receipt:
    receipt = Receipt()
    receipt.settle()
    return receipt
