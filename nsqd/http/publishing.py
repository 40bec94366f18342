"""The decisions of `POST /pub` and `POST /mpub`, in NSQ's order of checks (specification 4.4). No sockets, no waiting.

Both ways into publishing use this: the short path on the poller (`quick.py`) and the ASGI application (`api.py`).
Clients can observe the order of the checks:

    /pub    length → body empty → query → topic (created here) → defer → publish
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
_MOST_QUERIES: Final = 4096  # remembered queries; queries longer than _LONGEST_QUERY bytes are not remembered
_LONGEST_QUERY: Final = 512

INVALID_DEFER: Final = HttpError(400, "INVALID_DEFER")
INVALID_KEY: Final = HttpError(400, "INVALID_KEY")
INVALID_HEADERS: Final = "INVALID_HEADERS"
MSG_EMPTY: Final = HttpError(400, "MSG_EMPTY")
EXITING: Final = HttpError(503, "EXITING")
RETRY_AFTER: Final = (b"retry-after", b"1")  # seconds: consumers may have made room by then
UNREADABLE: Final = HttpError(500, "INTERNAL_ERROR", close=True)  # the peer closed before its body was complete


class _Full(HttpError):
    """The answer to a publish beyond a bound of the policy."""

    def __init__(self, cause: str) -> None:
        super().__init__(429, "FULL", details={"reason": cause})
        answer = super().response
        self._response = replace(answer, headers=(*answer.headers, RETRY_AFTER))

    @property
    def response(self) -> Response:
        return self._response


# The same answer, so that it is rendered once: publishers try again and again.
_full: Final = lru_cache(maxsize=256)(_Full)


@dataclass(frozen=True, slots=True)
class _Target:
    """The meaning of a query. An `early` error is reported before the topic is created, a `late` one afterwards."""

    topic: str = ""
    delay_ms: int = 0
    binary: bool = False
    key: bytes = b""
    early: HttpError | None = None
    late: HttpError | None = None


class Publishing:
    """Turns requests into receipts. Errors are returned instead of raised: they are ordinary answers."""

    def __init__(self, broker: Broker, limits: SizeLimits, *, max_defer_ms: int) -> None:
        self.limits = limits
        self._broker = broker
        self._max_defer_ms = max_defer_ms
        # Clients repeat the same few queries: a look-up instead of parsing saves 2 µs of 5.
        self._pub_targets: dict[bytes, _Target] = {}
        self._mpub_targets: dict[bytes, _Target] = {}

    def pub_length(self, content_length: int) -> HttpError | None:
        return MSG_TOO_BIG if content_length > self.limits.max_message else None

    def mpub_length(self, content_length: int) -> HttpError | None:
        return BODY_TOO_BIG if content_length > self.limits.max_body else None

    def pub(self, query: bytes, sized_body: bytes, headers: bytes = b"") -> Receipt | HttpError:
        """Publish one message, given with its size in front, and its encoded headers, if it has any."""
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
        """Make the checks that come before the body is read, and create the topic."""
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        if target.early is None:
            self._broker.topic(target.topic)
        return target.early

    def mpub_body(self, query: bytes) -> MpubBody:
        """Return an empty body for `mpub`, which receives the pieces as they arrive."""
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        return BinaryBody(self.limits) if target.binary else LinesBody(self.limits)

    def mpub(self, query: bytes, body: bytes | MpubBody, headers: bytes = b"") -> Receipt | HttpError:
        """Publish all messages of the body, each with these headers, or none.

        At most one byte beyond the limit is examined.
        """
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
                return _nothing_to_do()
            area = headers * (len(offsets) - 1)
            return topic.publish(payload, offsets, target.delay_ms, target.key, area)
        except PublishRefused as refused:
            return _full(refused.cause) if refused.is_full else EXITING

    def hmpub(self, query: bytes, body: HeadedBody) -> Receipt | HttpError:
        """Publish all messages of the body with the headers that each of them has there."""
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
        """Answer a request whose body ended too early.

        A binary body states its own length, so it may be complete all the same; then it is published as by `mpub`.
        """
        target = self._mpub_targets.get(query) or self._learn_mpub(query)
        if target.binary:
            return self.mpub(query, body, headers)
        return self.mpub_query(query) or UNREADABLE

    def _learn_pub(self, query: bytes) -> _Target:
        return _keep(self._pub_targets, query, self._pub_target(query))

    def _learn_mpub(self, query: bytes) -> _Target:
        return _keep(self._mpub_targets, query, self._mpub_target(query))

    def _pub_target(self, query: bytes) -> _Target:
        topic = _topic(query)
        if isinstance(topic, HttpError):
            return _Target(early=topic)
        return self._checked(_Target(topic), parse_query(query))

    def _mpub_target(self, query: bytes) -> _Target:
        """Parse a query of /mpub. `defer` is not known to NSQ's /mpub, and `key` is not known to NSQ."""
        topic = _topic(query)
        if isinstance(topic, HttpError):
            return _Target(early=topic)
        arguments = parse_query(query)
        word = arguments.get("binary", "false")
        if word not in _BINARY_WORDS:
            _log.warning("deprecated value '%s' used for /mpub binary param", word.encode(errors="replace").decode())
        return self._checked(_Target(topic, binary=_BINARY_WORDS.get(word, True)), arguments)

    def _checked(self, target: _Target, arguments: dict[str, str]) -> _Target:
        """Return the target with its delay and key."""
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
        return HttpError(error.status, error.code)  # a new one without the traceback, because it is kept
    if topic is None:
        return HttpError(400, "MISSING_ARG_TOPIC")
    return topic if is_valid_name(topic) else HttpError(400, "INVALID_TOPIC")


def _keep(targets: dict[bytes, _Target], query: bytes, target: _Target) -> _Target:
    if len(query) <= _LONGEST_QUERY and not target.key:  # a key comes once or twice
        if len(targets) >= _MOST_QUERIES:
            targets.clear()
        targets[query] = target
    return target


def _nothing_to_do() -> Receipt:
    receipt = Receipt()
    receipt.settle()
    return receipt
