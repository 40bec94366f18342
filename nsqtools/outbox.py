"""The rows of an outbox, their messages, and the outcomes of publishing.

A row has one of these states, which follow from its columns:

    state       node   sent_at   error
    to send     -      -         -       not tried yet
    in doubt    set    -         -       this node may have it: no answer yet, or the relay died
    sent        set    set       -       the node has it
    refused     -      -         set     it can't be published, and is in no topic
    unknown     set    -         set     too late to find out whether the node has it

The relay commits `node` before it publishes. So whatever dies, a row that may be in a topic is in doubt, and is
repeated at the same node with the same key, so that nsqd recognizes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from nsqclient import ConnectError, PublishRejected, PublishUnsent, Unsupported
from nsqcommon.wire.extensions import is_valid_key
from nsqcommon.wire.headers import encode_headers
from nsqcommon.wire.names import is_valid_name

LONGEST_ERROR: Final = 500  # characters of the column `error`
_FAILED: Final = "PUB_FAILED"  # error codes of publishes that nsqd couldn't store end with it
_MOST_MARGIN: Final = 60.0  # seconds


class Unpublishable(ValueError):
    """A row that every nsqd would refuse. The message goes into the column `error`."""


class PublishOutcome(Enum):
    SENT = auto()
    NOT_STORED = auto()  # certainly; it may go to any node
    IN_DOUBT = auto()
    REFUSED = auto()  # certainly not stored, and no node would accept it
    REFUSED_LATER = auto()  # a repeat was refused: an earlier try may have been accepted


@dataclass(frozen=True, slots=True)
class RowPublication:
    """The message of a row."""

    topic: str
    body: bytes
    key: str
    headers: Mapping[str, str]
    delay: float | None


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row from the database, with a key and a node."""

    id: Any  # an integer, a text or a UUID; we only pass it back to the database
    topic: Any  # a text, as `key` is, if the table has the columns of the printed schema
    body: Any
    headers: Any
    key: Any
    deliver_at: Any
    delay: float | None  # seconds until `deliver_at`; None also if that isn't a time

    def publication(self, default_topic: str) -> RowPublication:
        """Return the message. Raise Unpublishable."""
        topic = self.topic or default_topic
        if not topic:
            raise Unpublishable("no topic, and no --topic")
        if not isinstance(topic, str) or not is_valid_name(topic):
            raise Unpublishable(f"invalid topic name {topic!r}")
        if not isinstance(self.key, str) or not is_valid_key(self.key.encode()):
            raise Unpublishable(f"invalid key {self.key!r}: 1 to 64 printable characters of ASCII without space")
        if self.deliver_at is not None and self.delay is None:
            raise Unpublishable(f"deliver_at is not a time: {self.deliver_at!r}")
        delay = self.delay if self.delay is not None and self.delay > 0 else None
        return RowPublication(topic, _body(self.body), self.key, _headers(self.headers), delay)


def _body(value: Any) -> bytes:
    if isinstance(value, str):
        body = value.encode("utf-8", "surrogateescape")
    elif isinstance(value, bytes | bytearray | memoryview):
        body = bytes(value)
    else:
        raise Unpublishable(f"a body of type {type(value).__name__}, which is neither bytes nor text")
    if not body:
        raise Unpublishable("an empty body")
    return body


def _headers(value: Any) -> Mapping[str, str]:
    if value is None or value == "":
        return {}
    try:
        headers = json.loads(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unpublishable(f"headers are not JSON: {error}") from None
    if headers is None:
        return {}
    if not isinstance(headers, dict) or not all(isinstance(it, str) for it in headers.values()):
        raise Unpublishable("headers are not a JSON object of strings")
    try:
        encode_headers(headers)
    except ValueError as error:
        raise Unpublishable(str(error)) from None
    return headers


def verdict_of(error: Exception | None, *, is_repeat: bool) -> PublishOutcome:
    """Return the verdict on a row after this outcome of one publish.

    Even a certain outcome of this try says nothing about an earlier one. nsqd looks up the key before it tries to
    store, but after it has checked the message and the client.
    """
    if error is None:
        return PublishOutcome.SENT
    if isinstance(error, PublishRejected):
        if error.code.endswith(_FAILED):
            return PublishOutcome.NOT_STORED
        return PublishOutcome.REFUSED_LATER if is_repeat else PublishOutcome.REFUSED
    if isinstance(error, ConnectError | PublishUnsent | Unsupported) and not is_repeat:
        return PublishOutcome.NOT_STORED
    return PublishOutcome.IN_DOUBT


def is_trouble(error: Exception | None) -> bool:
    """Return True if the node, not the row, is to blame for this outcome."""
    return error is not None and not (isinstance(error, PublishRejected) and not error.code.endswith(_FAILED))


def repeat_within(window: float) -> float:
    """Return how long after the first try a repeat may start. The rest is for its answer and for clock errors."""
    return window - min(_MOST_MARGIN, window / 5)


@dataclass(slots=True)
class RelayCounts:
    """A relay's counts of rows so far."""

    sent: int = 0
    repeated: int = 0  # sent ones that had been in doubt
    refused: int = 0
    unknown: int = 0
    again: int = 0  # unknown ones, released by --repeat-unknown
    in_doubt: int = 0  # after the last round

    def line(self, seconds: float, before: int) -> str:
        """Return the log line about the last `seconds`; `before` is the number of rows sent until then."""
        rate = (self.sent - before) / seconds if seconds > 0 else 0.0
        text = f"{self.sent} rows sent  {rate:.0f}/s"
        for count, what in (
            (self.repeated, "repeated"),
            (self.in_doubt, "in doubt"),
            (self.refused, "refused"),
            (self.unknown, "unknown"),
            (self.again, "sent again with unknown outcome"),
        ):
            if count:
                text += f"  {count} {what}"
        return text
