"""The records of messages that are shown, published or replayed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nsqadmin.cluster.recording import to_json
from nsqadmin.messages.jobs import QueuedJob, job_in, job_json, without_job
from nsqcommon.wire.headers import decode_headers
from nsqcommon.wire.history import DAMAGED, MISSING, NEWER, REFUSED

BINARY: Final = "base64:"  # prefix of a header value that isn't UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a decoder made of a body."""

    how: str  # the decoder's steps, such as `gzip, Protobuf shop.Order`; empty: there is none, see `problem`
    content: bytes | None = None  # JSON, or unpacked bytes; None: the body couldn't be decoded
    problem: str = ""  # why it couldn't
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    node: str
    id: str
    timestamp: float
    size: int
    body: bytes | None  # as it was published; None: the user may not see it
    sequence: int | None = None  # None in a tail
    log: str | None = None  # id of the log that has the sequence; None: unknown
    attempts: int | None = None  # so far; None: unknown
    delay: float = 0.0  # seconds of delay with which it was published
    is_masked: bool = False  # a part of the body was replaced
    key: str = ""  # key of the publish, if the node reports it
    headers: Mapping[str, str] = field(default_factory=dict)  # by name; "base64:" and Base64 if it isn't UTF-8
    decoded: Decoded | None = None  # None: there is no decoder for it

    @property
    def readable(self) -> bytes | None:
        """The body to show and to search: decoded, if it can be. None: the user may not see it."""
        return self.decoded.content if self.decoded is not None and self.decoded.content is not None else self.body

    @property
    def held(self) -> int:
        """The number of bytes that its bodies take here."""
        return self.size + (len(self.decoded.content or b"") if self.decoded is not None else 0)

    @property
    def job(self) -> QueuedJob | None:
        """The job in its headers; None: it isn't a job, or the user may not see it."""
        return job_in(self.headers)

    @property
    def other_headers(self) -> Mapping[str, str]:
        """The headers that aren't about the job."""
        return without_job(self.headers)


def headers_of(encoded: bytes) -> dict[str, str]:
    """Return encoded headers as a message has them here. Raise BadHeaders."""
    return {name: _shown_header(value) for name, value in decode_headers(encoded).items()} if encoded else {}


def _shown_header(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return BINARY + b64encode(value).decode()


_WHY: Final = {
    DAMAGED: "cannot be read any more: they are damaged",
    MISSING: "cannot be read any more: their file is missing",
    REFUSED: "cannot be read now: the disk refuses",
    NEWER: "wait for a later version of nsqd, which wrote them",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A range of messages, [first, end), that can't be read, at least now."""

    node: str
    first: int
    end: int
    reason: str

    @property
    def why(self) -> str:
        """The reason in words."""
        return _WHY.get(self.reason, f"cannot be read: {self.reason}" if self.reason else "cannot be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """The readable history of one node."""

    node: str
    first: int = 0  # sequence of the oldest message
    next: int = 0  # sequence of the next message to be published
    log: str = ""  # its id; it changes if the topic is deleted and created again
    first_time: float | None = None
    last_time: float | None = None
    continue_at: int | None = None  # where to continue after this page; None: nothing is left
    reason: str = ""  # why nothing can be read; empty if something can


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Messages of all nodes, as one page of the history."""

    messages: tuple[Message, ...]  # by time, oldest first
    gaps: tuple[Gap, ...] = ()
    logs: tuple[NodeLog, ...] = ()
    scanned: int = 0  # number of messages read; with a filter, more than are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The hits of a search so far, and its progress."""

    messages: tuple[Message, ...] = ()  # in the order of the search
    newest_first: bool = True
    looked: int = 0  # messages examined
    total: int = 0  # messages to examine, on the nodes that answer
    reached: float | None = None  # time up to which all nodes have been searched; None: to the end
    cursor: str = ""  # where to continue
    goes_on: bool = False  # there is more to search
    silent: tuple[NodeLog, ...] = ()  # nodes that couldn't be searched, or not to the end, with the reasons
    gaps: tuple[Gap, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every message of every node was examined."""
        return not self.goes_on and not self.silent

    @property
    def has_more(self) -> bool:
        """True if there surely are more matches: everything was examined, and some of them were not returned yet."""
        return self.goes_on and self.looked == self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of publishing messages."""

    node: str
    count: int  # messages that the node has accepted
    error: str = ""  # why it accepted no more; empty if it accepted all
    original_error: str = ""  # as NSQ's programs write it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The consequences of replaying messages [first, end) of a node's log to `target`."""

    topic: str
    node: str
    first: int
    end: int
    target: str
    count: int  # messages in the range; some may turn out to be in gaps
    title: str
    consequences: tuple[str, ...]
    must_type: str = ""  # the name that the user has to type as a confirmation; empty: none
    log: str = ""  # id of the log; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReceipt:
    """The result of a replay."""

    plan: ReplayPlan
    published: int
    skipped: int  # messages in gaps
    continue_at: int | None  # where to continue, if it didn't reach the end
    error: str = ""
    original_error: str = ""
    took: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivered:
    """The result of redelivering selected messages of one node."""

    node: str
    asked: int  # messages selected
    redelivered: int = 0  # messages that are delivered once more
    waiting: int = 0  # messages that the channel has yet to deliver anyway, or has in flight
    gone: int = 0  # messages that the node no longer has
    error: str = ""  # why the node failed, perhaps in part; empty on success


def message_json(message: Message, *, most: int | None, raw: bool = False) -> dict[str, Any]:
    """Return the message in the form of nsqd's `/topic/read`: text as `body`, other bytes as `body_base64`.

    A decoded body is the `body`, and `decoded` says by which steps. With `raw`, it is the body as it was published. The
    body is cut after `most` bytes; None: it is whole. A masked or decoded body may be longer than `size`.
    """
    document = {name: value for name, value in to_json_but_body(message).items() if value is not None}
    if message.key:
        document["key"] = message.key
    if message.headers:
        document["headers"] = dict(message.headers)
    if message.job is not None:
        document["job"] = job_json(message.job)
    whole = message.body if raw else message.readable
    if (decoded := message.decoded) is not None and not raw:
        if decoded.content is not None:
            document["decoded"] = decoded.how
        else:
            document["not_decoded"] = decoded.problem
    if whole is None:
        return document | {"body_withheld": True}
    body, is_cut = whole[:most], most is not None and len(whole) > most
    if is_cut:
        document["is_cut"] = True
    try:
        return document | {"body": _decoded_start(body) if is_cut else body.decode("utf-8")}
    except UnicodeDecodeError:
        return document | {"body_base64": b64encode(body).decode()}


def to_json_but_body(message: Message) -> dict[str, Any]:
    fields = ("node", "id", "timestamp", "size", "sequence", "log", "attempts", "delay", "is_masked")
    return {name: getattr(message, name) for name in fields}


def _decoded_start(body: bytes) -> str:
    """Decode a truncated body, which may end within a character. Raise UnicodeDecodeError."""
    for missing in range(4):
        try:
            return body[: len(body) - missing].decode("utf-8")
        except UnicodeDecodeError:
            if missing == 3:
                raise
    raise AssertionError("the loop returns or raises")


def page_json(page: Page, *, most: int, raw: bool = False) -> dict[str, Any]:
    return {
        "messages": [message_json(message, most=most, raw=raw) for message in page.messages],
        "gaps": to_json(page.gaps),
        "logs": to_json(page.logs),
        "scanned": page.scanned,
    }


def found_json(found: SearchResult, *, most: int) -> dict[str, Any]:
    return progress_json(found) | {"messages": [message_json(message, most=most) for message in found.messages]}


def progress_json(found: SearchResult) -> dict[str, Any]:
    """Return the progress of a search, without its hits."""
    return {
        "looked": found.looked,
        "total": found.total,
        "reached": found.reached,
        "cursor": found.cursor,
        "goes_on": found.goes_on,
        "is_whole": found.is_whole,
        "silent": [{"node": log.node, "reason": log.reason} for log in found.silent],
        "gaps": to_json(found.gaps),
    }
