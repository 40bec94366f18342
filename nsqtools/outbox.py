"""The rows of an outbox, what is published of them, and what is known afterwards.

A row is in one of these states, which its columns tell:

    state       node   sent_at   error
    to send     -      -         -       nobody has tried to publish it
    in doubt    set    -         -       this node may have it: a try there had no answer yet, or the relay died
    sent        set    set       -       the node has it
    refused     -      -         set     it cannot be published, and is in no topic
    unknown     set    -         set     nobody can tell any more whether the node has it

The relay commits `node` before it publishes. So whatever dies, a row that may be in a topic is in doubt, and is repeated
at the same node with the same key, by which nsqd recognizes it.
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
_FAILED: Final = "PUB_FAILED"  # ends the codes of what nsqd would have stored, and could not
_MOST_MARGIN: Final = 60.0  # seconds


class Unpublishable(ValueError):
    """A row that no nsqd would accept. The message is for the column `error`."""


class PublishOutcome(Enum):
    SENT = auto()
    NOT_STORED = auto()  # certainly; it may go to any node
    IN_DOUBT = auto()
    REFUSED = auto()  # certainly not stored, and no node would accept it
    REFUSED_LATER = auto()  # refused when it was repeated: an earlier try may have been accepted


@dataclass(frozen=True, slots=True)
class RowPublication:
    """What is published of a row."""

    topic: str
    body: bytes
    key: str
    headers: Mapping[str, str]
    delay: float | None


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row that has a key and a node, as the database returns it."""

    id: Any  # an integer, a text or a UUID: it is only handed back to the database
    topic: Any  # a text, as `key` is, if the table has the columns of the printed schema
    body: Any
    headers: Any
    key: Any
    deliver_at: Any
    delay: float | None  # seconds until `deliver_at`; None also if that is no time

    def publication(self, default_topic: str) -> RowPublication:
        """Return what to publish. Raise Unpublishable."""
        topic = self.topic or default_topic
        if not topic:
            raise Unpublishable("no topic, and no --topic")
        if not isinstance(topic, str) or not is_valid_name(topic):
            raise Unpublishable(f"invalid topic name {topic!r}")
        if not isinstance(self.key, str) or not is_valid_key(self.key.encode()):
            raise Unpublishable(f"invalid key {self.key!r}: 1 to 64 printable characters of ASCII without space")
        if self.deliver_at is not None and self.delay is None:
            raise Unpublishable(f"deliver_at is no time: {self.deliver_at!r}")
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
        raise Unpublishable("headers are no JSON object whose values are texts")
    try:
        encode_headers(headers)
    except ValueError as error:
        raise Unpublishable(str(error)) from None
    return headers


def verdict_of(error: Exception | None, *, is_repeat: bool) -> PublishOutcome:
    """Return what is known of a row after this outcome of one publish.

    An outcome that is certain for this try says nothing about an earlier one. nsqd looks for the key before it fails to
    store, but not before it refuses a message or a client.
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
    """Return whether this outcome is the fault of the node rather than of the row."""
    return error is not None and not (isinstance(error, PublishRejected) and not error.code.endswith(_FAILED))


def repeat_within(window: float) -> float:
    """Return for how long after the first try a repeat may begin: what remains is for its answer, and for clocks."""
    return window - min(_MOST_MARGIN, window / 5)


@dataclass(slots=True)
class RelayCounts:
    """What a relay has done so far, in rows."""

    sent: int = 0
    repeated: int = 0  # of those sent: in doubt before
    refused: int = 0
    unknown: int = 0
    again: int = 0  # unknown ones that --repeat-unknown lets be sent once more
    in_doubt: int = 0  # after the last round

    def line(self, seconds: float, before: int) -> str:
        """Return the line for the log about the last `seconds`, before which `before` rows had been sent."""
        rate = (self.sent - before) / seconds if seconds > 0 else 0.0
        text = f"{self.sent} rows sent  {rate:.0f}/s"
        for count, what in (
            (self.repeated, "repeated"),
            (self.in_doubt, "in doubt"),
            (self.refused, "refused"),
            (self.unknown, "unknown"),
            (self.again, "sent again though unknown"),
        ):
            if count:
                text += f"  {count} {what}"
        return text
