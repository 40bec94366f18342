"""Reads the messages in a topic's log, on one nsqd or several, over HTTP (docs/reference/http-history.md).

Nothing stays open between two pages, so a slow reader, or one that waits for another node, keeps no file of nsqd open.
"""

from __future__ import annotations

import base64
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import trio

from nsqcommon.durations import parse_long_duration
from nsqcommon.http_client import HttpFailed, OpenAnswer, open_answer
from nsqcommon.startup import StartupError
from nsqcommon.wire.history import MSGPACK, BadHistory, End, Gap, HistoryReader, LogRange, StoredBatch
from nsqtools.json_fields import number_in, text_in
from nsqtools.nodes import AskFailed, NodeQueries, Server, refusal

log = logging.getLogger(__name__)

_PAGE_BYTES: Final = 4 << 20
_PATIENCE: Final = 30.0  # seconds for the next piece of a page
_DIGITS: Final = 19  # of the largest sequence
_TRIES: Final = 30  # seconds between tries while nsqd has too many readers
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")

_REASONS: Final = {
    "NOT_FOUND": "this nsqd has no readable history",
    "TOPIC_NOT_FOUND": "there is no such topic",
    "EPHEMERAL_TOPIC": "an ephemeral topic has no history",
    "GONE": "these messages have been removed",
    "BEYOND_END": "these messages have not been published yet",
    "ANOTHER_LOG": "the topic was deleted and created again",
}


def parse_position(flag: str, text: str, now: datetime) -> str:
    """Translate a flag's value into the argument `from` of `/topic/read`.

    The value is `earliest`, `latest`, a sequence, a time, or a duration before now such as `1h`. Raises StartupError.
    """
    if text in ("earliest", "latest") or (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        return text
    if _TIME.fullmatch(text):
        return text
    try:
        ago = timedelta(microseconds=abs(parse_long_duration(text)) / 1000)
    except ValueError:
        raise StartupError(
            f"--{flag} should be earliest, latest, a sequence, a time (2026-03-01T12:00:00Z), or 1h (an hour ago)"
        ) from None
    return (now.astimezone(UTC) - ago).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message from the log."""

    sequence: int
    id: int
    timestamp: int  # wall time in nanoseconds
    delay_ms: int
    body: bytes
    headers: Mapping[str, bytes]

    def document(self) -> dict[str, Any]:
        """Return the message in the form of `/topic/read`."""
        document: dict[str, Any] = {"sequence": self.sequence, "id": f"{self.id:016x}", "timestamp": self.timestamp}
        if self.delay_ms:
            document["delay_ms"] = self.delay_ms
        return document | headers_document(self.headers) | body_document(self.body)


def body_document(body: bytes) -> dict[str, str]:
    """Return the body as a JSON field, in base64 if it isn't UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def headers_document(headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the headers as a JSON field, in the form of /topic/read, or nothing if there are none."""
    return {"headers": {name: header_text(value) for name, value in headers.items()}} if headers else {}


def header_text(value: bytes) -> Any:
    """Return the value of a header for JSON."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The messages of a topic on one nsqd: [first, next) of this log."""

    node: str
    log_id: str
    first: int
    next: int


def _bounds(said: Any) -> Bounds:
    """Parse an answer of `/topic/log`."""
    return Bounds(text_in(said, "node"), text_in(said, "log"), number_in(said, "first"), number_in(said, "next"))


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The messages to read: [first, end) of this log."""

    node: str
    log_id: str
    first: int
    end: int

    @property
    def messages(self) -> int:
        return self.end - self.first


class RemoteTopicLog:
    """A topic's log on one nsqd."""

    def __init__(self, queries: NodeQueries, server: Server, topic: str) -> None:
        self.server = server
        self.topic = topic
        self._queries = queries

    def __str__(self) -> str:
        return f"{self.topic} on {self.server}"

    async def bounds(self) -> Bounds:
        """Return the log's range of sequences. Raise AskFailed."""
        try:
            return await self._queries.ask(self.server, f"/topic/log?topic={quote(self.topic)}", _bounds)
        except AskFailed as error:
            raise self._explained(error) from error

    async def sequence_at(self, text: str, bounds: Bounds) -> int:
        """Return the sequence for a position from `parse_position`, within the bounds. Raise AskFailed."""
        match text:
            case "earliest":
                return bounds.first
            case "latest":
                return bounds.next
        if text.isdecimal():  # with no more digits than a sequence
            return min(max(int(text), bounds.first), bounds.next)
        async with self._open(f"from={quote(text)}&limit=1&log={bounds.log_id}") as answer:
            reader = HistoryReader()
            while data := await answer.next_piece():
                reader.receive(data)
                if isinstance(event := reader.next_event(), LogRange):
                    return min(event.first, bounds.next)
        raise AskFailed(f"{self}: the answer is incomplete")

    async def page(self, first: int, end: int, log_id: str) -> tuple[list[StoredBatch | Gap], int]:
        """Read a page of [first, end), at least one message or gap. Also return the next sequence. Raise AskFailed."""
        for _ in range(_TRIES):
            try:
                return await self._page(first, end, log_id)
            except AskFailed as error:
                if error.code != "TOO_MANY_READERS":
                    raise
                await trio.sleep(1)
        raise AskFailed(f"{self}: this nsqd is at its limit of readers")

    async def _page(self, first: int, end: int, log_id: str) -> tuple[list[StoredBatch | Gap], int]:
        reader = HistoryReader()
        events: list[StoredBatch | Gap] = []
        size = 0
        async with self._open(f"from={first}&to={end}&log={log_id}") as answer:
            try:
                while (size < _PAGE_BYTES or not events) and (data := await answer.next_piece()):
                    size += len(data)
                    reader.receive(data)
                    for event in iter(reader.next_event, None):
                        if isinstance(event, End):
                            return events, event.next
                        if isinstance(event, StoredBatch | Gap):
                            events.append(event)
            except (HttpFailed, BadHistory) as error:
                if not events:  # the events received before are valid
                    raise AskFailed(f"{self}: {error}") from error
        if not events:
            raise AskFailed(f"{self}: the answer is incomplete")
        return events, events[-1].end

    @asynccontextmanager
    async def _open(self, arguments: str) -> AsyncIterator[OpenAnswer]:
        where = self._queries.where(self.server)
        try:
            async with open_answer(
                where.host,
                where.port,
                f"/topic/read?topic={quote(self.topic)}&{arguments}",
                tls=self._queries.tls if where.has_tls else None,
                headers=(("Accept", MSGPACK),),
                connect_timeout=self._queries.connect_timeout,
                patience=_PATIENCE,
            ) as answer:
                if answer.status != 200:
                    raise self._explained(refusal(str(self), answer.status, await answer.next_piece()))
                yield answer
        except HttpFailed as error:
            raise AskFailed(f"{self}: {error}") from error

    def _explained(self, error: AskFailed) -> AskFailed:
        reason = _REASONS.get(error.code)
        return AskFailed(f"{self}: {reason}", status=error.status, code=error.code) if reason else error


class SpanReader:
    """Reads the messages of one span in order, page by page."""

    def __init__(self, log: RemoteTopicLog, span: ReadRange) -> None:
        self.log = log
        self.span = span
        self.position = span.first  # everything before it was taken
        self.unreadable = 0
        self._read_to = span.first
        self._waiting: deque[StoredMessage] = deque()

    async def head(self) -> StoredMessage | None:
        """Peek at the next message; None after the last one. Raise AskFailed."""
        while not self._waiting and self._read_to < self.span.end:
            events, self._read_to = await self.log.page(self._read_to, self.span.end, self.span.log_id)
            for event in events:
                if isinstance(event, Gap):
                    self.unreadable += event.end - event.first
                    log.warning("%s: messages %d to %d cannot be read", self.log, event.first, event.end - 1)
                elif not event.is_copy:  # a copy is of an event that the topic has already, for one of its channels
                    self._waiting += (
                        StoredMessage(sequence, id, event.timestamp, event.delay_ms, body, headers)
                        for (sequence, id, body), headers in zip(event.messages(), event.headers_of(), strict=True)
                    )
        if self._waiting:
            return self._waiting[0]
        self.position = self.span.end
        return None

    def take(self) -> StoredMessage:
        """Take the message from `head`."""
        message = self._waiting.popleft()
        self.position = message.sequence + 1
        return message


async def next_in_time(readers: Sequence[SpanReader]) -> tuple[SpanReader, StoredMessage] | None:
    """Take the earliest published message of all readers; None if nothing is left. Raise AskFailed."""
    first: tuple[int, SpanReader] | None = None
    for reader in readers:
        head = await reader.head()
        if head is not None and (first is None or head.timestamp < first[0]):
            first = head.timestamp, reader
    return None if first is None else (first[1], first[1].take())
