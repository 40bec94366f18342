"""Messages as they are shown, and what came of publishing some."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from nsqadmin.cluster.recording import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `body` is None for who may not see it; `is_masked`: something in it was replaced."""

    node: str
    id: str
    timestamp: float
    size: int
    body: bytes | None
    sequence: int | None = None  # None in a tail
    attempts: int | None = None  # before now; None: not known
    delay: float = 0.0  # seconds; it was published with one
    is_masked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """[first, end) cannot be read any more."""

    node: str
    first: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """What there is to read on one node; `reason` says why nothing is."""

    node: str
    first: int = 0
    next: int = 0
    first_time: float | None = None
    last_time: float | None = None
    continue_at: int | None = None  # where to read on after this page; None: at its end
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """By time, the oldest first."""

    messages: tuple[Message, ...]
    gaps: tuple[Gap, ...] = ()
    logs: tuple[NodeLog, ...] = ()
    scanned: int = 0  # messages that were looked at, for a filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How many messages a node has taken; `error` is why it took no more."""

    node: str
    count: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Messages [first, end) of a node's log, to be published to `target` again."""

    topic: str
    node: str
    first: int
    end: int
    target: str
    count: int
    title: str
    consequences: tuple[str, ...]
    must_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReceipt:
    plan: ReplayPlan
    published: int
    skipped: int  # in gaps
    continue_at: int | None  # where to go on, when it did not get to the end
    error: str = ""
    took: float = 0.0


def message_json(message: Message, *, most: int) -> dict[str, Any]:
    """As `/topic/read` says it: `body` where it is text, else `body_base64`; cut after `most` bytes."""
    document = {name: value for name, value in to_json_but_body(message).items() if value is not None}
    if message.body is None:
        return document | {"body_withheld": True}
    body = message.body[:most]
    if len(message.body) > most:
        document["is_cut"] = True
    try:
        # A cut may go through the middle of a character.
        return document | {"body": body.decode("utf-8") if body is message.body else _decoded_start(body)}
    except UnicodeDecodeError:
        return document | {"body_base64": b64encode(body).decode()}


def to_json_but_body(message: Message) -> dict[str, Any]:
    fields = ("node", "id", "timestamp", "size", "sequence", "attempts", "delay", "is_masked")
    return {name: getattr(message, name) for name in fields}


def _decoded_start(body: bytes) -> str:
    for missing in range(4):
        try:
            return body[: len(body) - missing].decode("utf-8")
        except UnicodeDecodeError:
            if missing == 3:
                raise
    raise AssertionError("the loop returns or raises")


def page_json(page: Page, *, most: int) -> dict[str, Any]:
    return {
        "messages": [message_json(message, most=most) for message in page.messages],
        "gaps": to_json(page.gaps),
        "logs": to_json(page.logs),
        "scanned": page.scanned,
    }
