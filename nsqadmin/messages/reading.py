"""Reads the history of topics from the nodes that keep it. This changes nothing there, and affects no channel."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Container, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import trio

from nsqadmin.decoding.decoders import Decoders
from nsqadmin.messages.filters import Filter
from nsqadmin.messages.looking import Looking, Seen
from nsqadmin.messages.model import BINARY, Gap, Message, NodeLog, Page
from nsqadmin.messages.selection import runs_of
from nsqadmin.upstream import sliced_json
from nsqadmin.upstream.client import UpstreamError, in_words
from nsqcommon.wire.headers import MOST_BYTES, MOST_PAIRS

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Node, Snapshot
    from nsqadmin.messages.masking import Masking
    from nsqadmin.upstream.client import Upstream

MOST: Final = 1000  # messages of a page
MOST_SCANNED: Final = 20_000  # messages of one node to search for one page
_MOST_BYTES: Final = 32 << 20  # of the bodies of one node on one page
_SILENT: Final = "it does not answer"  # the error itself may name other topics, and is on the node's page
_LONGEST_LINE: Final = 64 << 20  # bytes: a message may be as large as --max-msg-size, and base64 makes it larger
_MOST_OF_A_REFUSAL: Final = 64 * 1024
_LONGEST_READ: Final = 60.0  # seconds for one page
_NANOSECOND: Final = 1e-9
_OK: Final = 200
_HIGHEST: Final = (1 << 63) - 1
_LONGEST_KEY: Final = 1024  # characters; nsqd allows fewer
_LOG_ID: Final = re.compile(r"[\w.-]{1,64}", re.ASCII).fullmatch
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError)

ANOTHER_LOG: Final = "the topic has been deleted and created again there: these messages are gone"
NOT_KEPT: Final = "it keeps no history: it is a Go nsqd or an older version"


class Unreadable(Exception):
    """A node's history can't be read from there; the message is for users."""


@dataclass(slots=True)
class _Read:
    """The data read from one node."""

    log: NodeLog
    messages: list[Message] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    scanned: int = 0

    def add_gap(self, gap: Gap) -> None:
        """Add a gap. Raise Unreadable if the node sends more gaps than any log has."""
        self.gaps.append(gap)
        if len(self.gaps) > MOST_SCANNED:
            raise Unreadable(f"more than {MOST_SCANNED:,} gaps")


class Reader:
    """Reads and peeks, on trio."""

    def __init__(self, upstream: Upstream, masking: Masking, decoders: Decoders | None = None) -> None:
        self._upstream = upstream
        self._masking = masking
        self._decoders = decoders if decoders is not None else Decoders()

    async def logs(self, snapshot: Snapshot, topic: str, node: str = "") -> tuple[NodeLog, ...]:
        """Return the readable history of each node, or of `node` only."""
        nodes = nodes_with(snapshot, topic, node)
        logs: dict[str, NodeLog] = {}

        async def ask(asked: Node) -> None:
            logs[asked.address] = await self.log(asked, topic)

        async with trio.open_nursery() as nursery:
            for asked in nodes:
                nursery.start_soon(ask, asked)
        return tuple(logs[asked.address] for asked in nodes)

    async def page(
        self,
        snapshot: Snapshot,
        topic: str,
        *,
        identity: Identity,
        node: str = "",
        place: str = "earliest",
        limit: int = 100,
        wanted: Filter | None = None,
    ) -> Page:
        """Return the messages from `place` on: earliest, latest (the last `limit`), a sequence or a time.

        Each node has its own sequences, so a sequence needs a `node`.
        """
        reads: list[_Read] = []

        async def read(log: NodeLog) -> None:
            reads.append(await _in_time(log, self._read(log, topic, identity, place, limit, wanted or Filter())))

        async with trio.open_nursery() as nursery:
            for log in await self.logs(snapshot, topic, node):
                nursery.start_soon(read, log)
        return _page(reads, limit, newest=place == "latest")

    async def peek(
        self, snapshot: Snapshot, topic: str, channel: str, *, identity: Identity, node: str = "", limit: int = 20
    ) -> Page:
        """Return the messages that the channel would deliver next. They stay where they are."""
        found = snapshot.channel(topic, channel)
        having = {row.node for row in found.nodes} if found is not None else set()
        logs = [log for log in await self.logs(snapshot, topic, node) if log.node in having]
        reads: list[_Read] = []

        async def peek(log: NodeLog) -> None:
            reads.append(await _in_time(log, self._peek(log, topic, channel, identity, limit)))

        async with trio.open_nursery() as nursery:
            for log in logs:
                nursery.start_soon(peek, log)
        return _page(reads, limit)

    # One node

    async def log(self, node: Node, topic: str) -> NodeLog:
        """Return this node's readable history, or why there is none."""
        if not node.is_reachable:
            return NodeLog(node=node.address, reason=_SILENT)
        if not node.has_history:
            return NodeLog(node=node.address, reason=NOT_KEPT)
        return await self.log_at(node.address, topic)

    async def log_at(self, node: str, topic: str) -> NodeLog:
        """Ask the node for its readable history."""
        try:
            raw = await self._upstream.get_json(node, f"/topic/log?topic={quote_plus(topic)}")
            return NodeLog(
                node=node,
                first=_whole(raw["first"]),
                next=_whole(raw["next"]),
                first_time=_seconds(raw.get("first_time")),
                last_time=_seconds(raw.get("last_time")),
                log=log_id_in(raw.get("log")),
            )
        except UpstreamError as error:
            return NodeLog(node=node, reason=why(error))
        except _NONSENSE as error:
            return NodeLog(node=node, reason=str(_unreadable(error)))

    async def _read(
        self, log: NodeLog, topic: str, identity: Identity, place: str, limit: int, wanted: Filter
    ) -> _Read:
        read = _Read(log)
        if log.reason or log.first == log.next:
            return read
        start = str(max(log.first, log.next - limit)) if place == "latest" else place
        most = limit if wanted.is_empty else MOST_SCANNED
        looking = self.look(identity, topic, wanted)
        size = 0
        at = None

        def add(ready: list[Seen[None]]) -> None:
            nonlocal size, at
            for _, message, is_wanted in ready:
                assert message is not None
                at = (message.sequence or 0) + 1
                if is_wanted:
                    read.messages.append(message)
                    size += message.held

        try:
            async with aclosing(self.lines(log.node, topic, start, f"&limit={most}{of_log(log.log)}")) as lines:
                async for line in lines:
                    if "next" in line:
                        add(await looking.rest())
                        at = next_in(line)
                        break
                    if "gap" in line:
                        read.add_gap(gap_in(log.node, line))
                        continue
                    read.scanned += 1
                    add(await looking.add(None, message_in(log.node, line, log.log)))
                    if len(read.messages) >= limit or size >= _MOST_BYTES or read.scanned >= MOST_SCANNED:
                        break
                add(await looking.rest())
        except Unreadable as error:
            add(await looking.rest())  # what has arrived still counts
            read.log = replace(log, reason=str(error))
            return read
        read.log = replace(log, continue_at=at if at is not None and at < log.next else None)
        return read

    async def _peek(self, log: NodeLog, topic: str, channel: str, identity: Identity, limit: int) -> _Read:
        read = _Read(log)
        if log.reason:
            return read
        arguments = f"topic={quote_plus(topic)}&channel={quote_plus(channel)}&limit={limit}"
        looking = self.look(identity, topic, Filter())
        try:
            raw = await self._upstream.get_json(log.node, f"/channel/position?{arguments}")
            attempts = waiting_in(raw)
            size = count = 0
            for first, end in runs_of(attempts):
                if count >= limit or size >= _MOST_BYTES:
                    break
                async with aclosing(self.lines(log.node, topic, str(first), f"&to={end}{of_log(log.log)}")) as lines:
                    async for line in lines:
                        if "gap" in line:
                            read.add_gap(gap_in(log.node, line))
                        elif "next" not in line:
                            message = message_in(log.node, line, log.log)
                            known = attempts.get(message.sequence if message.sequence is not None else -1)
                            ready = await looking.add(None, replace(message, attempts=known))
                            read.messages += [it.message for it in ready if it.message is not None]
                            size, count = size + message.size, count + 1
                            if count >= limit or size >= _MOST_BYTES:
                                break
        except UpstreamError as error:
            read.log = replace(log, reason=why(error))
        except Unreadable as error:
            read.log = replace(log, reason=str(error))
        read.messages += [it.message for it in await looking.rest() if it.message is not None]
        return read

    async def lines(self, node: str, topic: str, start: str, more: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the lines of an answer to /topic/read. Raise Unreadable, also if the answer breaks off."""
        target = f"/topic/read?topic={quote_plus(topic)}&from={quote_plus(start)}{more}"
        is_whole = False
        async with aclosing(self.documents(node, target)) as documents:
            async for document in documents:
                is_whole |= "next" in document
                yield document
        if not is_whole:
            raise Unreadable("the answer broke off")

    async def documents(
        self, node: str, target: str, *, nothing: Container[str] = ()
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the objects of an answer with one per line. Raise Unreadable.

        A refusal with one of the words in `nothing` counts as an answer without lines.
        """
        try:
            async with self._upstream.stream(node, target) as answer:
                if answer.status != _OK:
                    body = b""
                    async for piece in answer.pieces:
                        body += piece
                        if len(body) > _MOST_OF_A_REFUSAL:
                            break
                    refusal = UpstreamError(f"HTTP {answer.status}", status=answer.status, body=body)
                    if code_of(refusal) in nothing:
                        return
                    raise Unreadable(why(refusal))
                async with aclosing(_lines(answer.pieces)) as lines:
                    async for line in lines:
                        yield await self._object(line)
        except UpstreamError as error:
            raise Unreadable(why(error)) from error

    async def _object(self, line: bytes) -> dict[str, Any]:
        """Parse a line. A hostile node can make it long, so we parse it in slices, but its body in one go."""
        try:
            if len(line) <= sliced_json.WINDOW:
                document = json.loads(line)
            else:
                document = await self._upstream.in_slices(sliced_json.loads(line, longest_text=_LONGEST_LINE))
        except (ValueError, RecursionError) as error:
            raise _unreadable(error) from error
        if not isinstance(document, dict):
            raise Unreadable("its answer cannot be read: expected an object")
        return document

    def look(self, identity: Identity, topic: str, wanted: Filter) -> Looking[Any]:
        """Return what makes messages as this user may see them."""
        return Looking(self._decoders, self._masking, identity, topic, wanted)


async def _in_time(log: NodeLog, reading: Awaitable[_Read]) -> _Read:
    """Read for a minute at most: a node that trickles data must not block a page forever."""
    with trio.move_on_after(_LONGEST_READ):
        return await reading
    return _Read(replace(log, reason=f"it took more than {_LONGEST_READ:.0f} s"))


def silence(snapshot: Snapshot, address: str) -> str:
    """Return why we needn't ask a node: the last sample didn't reach it; "": ask it."""
    node = snapshot.node(address)
    return _SILENT if node is not None and not node.is_reachable else ""


def nodes_with(snapshot: Snapshot, topic: str, node: str) -> list[Node]:
    """Return the nodes with the topic, and the nodes that don't answer and so may have it."""
    found = snapshot.topic(topic)
    having = {row.node for row in found.nodes} if found is not None else set()
    return [
        each
        for each in snapshot.nodes
        if (each.address in having or not each.is_reachable) and (not node or each.address == node)
    ]


def _page(reads: Sequence[_Read], limit: int, *, newest: bool = False) -> Page:
    """Merge the nodes' messages by time. Messages beyond the limit are read again for their node's next page."""
    messages = (message for read in reads for message in read.messages)
    everything = sorted(messages, key=lambda message: (message.timestamp, message.node))
    kept = everything[-limit:] if newest else everything[:limit]
    dropped = {} if newest else _first_dropped(everything[limit:])
    logs = tuple(
        replace(read.log, continue_at=dropped.get(read.log.node, read.log.continue_at))
        for read in sorted(reads, key=lambda read: read.log.node)
    )
    return Page(
        messages=tuple(kept),
        gaps=tuple(gap for read in reads for gap in read.gaps),
        logs=logs,
        scanned=sum(read.scanned for read in reads),
    )


def _first_dropped(messages: Iterable[Message]) -> dict[str, int]:
    first: dict[str, int] = {}
    for message in messages:
        if (sequence := message.sequence) is not None:
            first[message.node] = min(first.get(message.node, sequence), sequence)
    return first


# A node's answer. A missing value or one of the wrong type fails only this node.


def _unreadable(error: Exception) -> Unreadable:
    return Unreadable(f"its answer cannot be read: {error!r}")


def message_in(node: str, line: dict[str, Any], log: str = "") -> Message:
    """Parse the message of this log from a line of `Reader.lines`. Raise Unreadable."""
    try:
        body = line["body"].encode("utf-8", "surrogatepass") if "body" in line else b64decode(line["body_base64"])
        return Message(
            node=node,
            id=str(line["id"]),
            sequence=_whole(line["sequence"]),
            log=log or None,
            timestamp=_seconds(line["timestamp"]) or 0.0,
            size=len(body),
            body=body,
            delay=_whole(line.get("delay_ms", 0)) / 1000,
            key=str(line.get("key", ""))[:_LONGEST_KEY],
            headers=headers_in(line.get("headers", {})),
        )
    except _NONSENSE as error:
        raise _unreadable(error) from error


def headers_in(told: Any) -> dict[str, str]:
    """Parse headers from a node: a text, or {"base64": ...}. Raise KeyError, TypeError, ValueError, AttributeError."""
    found = {}
    for name, value in told.items():
        text = value if isinstance(value, str) else BINARY + str(value["base64"])
        found[str(name)] = text[:MOST_BYTES]
    if len(found) > MOST_PAIRS:
        raise ValueError(f"{len(found)} headers")
    return found


def gap_in(node: str, line: dict[str, Any]) -> Gap:
    """Parse the gap from a line of `Reader.lines`. Raise Unreadable."""
    try:
        first, end = map(_whole, line["gap"])
    except _NONSENSE as error:
        raise _unreadable(error) from error
    return Gap(node=node, first=first, end=end, reason=str(line.get("reason", "")))


def next_in(line: dict[str, Any]) -> int:
    """Parse the sequence to continue with from the last line of an answer. Raise Unreadable."""
    try:
        return _whole(line["next"])
    except _NONSENSE as error:
        raise _unreadable(error) from error


def waiting_in(raw: Any) -> dict[int, int]:
    """Return how often each waiting message was attempted, by sequence."""
    try:
        return {_whole(sequence): _whole(count) for sequence, count in raw["waiting"]}
    except _NONSENSE as error:
        raise _unreadable(error) from error


def of_log(log: str) -> str:
    """Return the argument that restricts a request to this log; nothing if its id is unknown."""
    return f"&log={log}" if log else ""


def log_id_in(value: Any) -> str:
    """Check the id of a log, because it becomes part of URLs, cursors and selections."""
    if value is None:
        return ""
    if not isinstance(value, str) or not _LOG_ID(value):
        raise TypeError(f"{value!r:.50} is no id of a log")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or abs(value) > _HIGHEST:
        raise TypeError(f"{value!r:.50} is not a whole number")
    return value


def _seconds(nanoseconds: Any) -> float | None:
    return None if nanoseconds is None else _whole(nanoseconds) * _NANOSECOND


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        rest += first
        if len(rest) > _LONGEST_LINE:
            raise Unreadable(f"a line of more than {_LONGEST_LINE >> 20} MiB")
        if others:
            for line in (bytes(rest), *others[:-1]):
                if line:
                    yield line
            rest = bytearray(others[-1])
    if rest:
        yield bytes(rest)


_NO_WORDS: Final[Mapping[str, str]] = {}
_WORDS: Final = {
    "ANOTHER_LOG": ANOTHER_LOG,
    "TOPIC_NOT_FOUND": "it does not have the topic",
    "CHANNEL_NOT_FOUND": "it does not have the channel",
    "EPHEMERAL_TOPIC": "an ephemeral topic is kept in memory only, and has no history",
    "EPHEMERAL_CHANNEL": "an ephemeral channel keeps no place in history",
    "GONE": "that part of its history has been removed already",
    "BEYOND_END": "its history does not reach that far",
    "TOO_MANY_READERS": "it has too many readers already: try again",
    "NOT_FOUND": NOT_KEPT,
    "INVALID_ARG_FROM": "that is not a place: expected earliest, latest, a sequence, or a time like 2026-03-01T12:00:00Z",
}


# Of a node that was read, and doesn't have the messages. With any other reason, it may have them.
GONE: Final = frozenset((ANOTHER_LOG, *(_WORDS[it] for it in ("TOPIC_NOT_FOUND", "GONE", "BEYOND_END"))))


def why(error: UpstreamError, words: Mapping[str, str] = _NO_WORDS) -> str:
    """Return a node's refusal or failure in words; `words` has those for one request, by nsqd's code."""
    code = code_of(error)
    return (words.get(code) or _WORDS.get(code, code)) if code else in_words(error)


def code_of(error: UpstreamError) -> str:
    """Return nsqd's word for a refusal; "" if there is none."""
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
