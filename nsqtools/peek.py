"""nsq_tail --peek: print the messages in some topics' logs, in the order of publication."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from nsqtools.command import ToolFailed
from nsqtools.history import Span, SpanReader, StoredMessage, TopicLog, next_in_time, parse_position
from nsqtools.nodes import AskFailed, servers_of
from nsqtools.output import header_lines, message_line

if TYPE_CHECKING:
    from nsqtools.nodes import Queries
    from nsqtools.output import Output


class PeekOptions(Protocol):
    """The options of nsq_tail used here."""

    @property
    def topic(self) -> tuple[str, ...]: ...
    @property
    def n(self) -> int: ...
    @property
    def from_(self) -> str: ...
    @property
    def print_topic(self) -> bool: ...
    @property
    def print_headers(self) -> bool: ...
    @property
    def json(self) -> bool: ...
    @property
    def nsqd_tcp_address(self) -> tuple[str, ...]: ...
    @property
    def nsqd_http_address(self) -> tuple[str, ...]: ...
    @property
    def lookupd_http_address(self) -> tuple[str, ...]: ...


async def peek(options: PeekOptions, queries: Queries, output: Output) -> None:
    """Print the messages. Raise ToolFailed or OutputClosed."""
    try:
        await _peek(options, queries, output)
    except AskFailed as error:
        raise ToolFailed(str(error)) from error


async def _peek(options: PeekOptions, queries: Queries, output: Output) -> None:
    readers = [reader for topic in options.topic for reader in await _readers(options, topic, queries)]
    if options.from_ or not options.n:
        shown = 0
        while (found := await next_in_time(readers)) is not None:
            await output.write(_line(*found, options))
            shown += 1
            if shown == options.n:
                return
    else:
        last: deque[tuple[SpanReader, StoredMessage]] = deque(maxlen=options.n)
        while (found := await next_in_time(readers)) is not None:
            last.append(found)
        for it in last:
            await output.write(_line(*it, options))


async def _readers(options: PeekOptions, topic: str, queries: Queries) -> Sequence[SpanReader]:
    servers = await servers_of(
        queries,
        topic,
        lookupd=options.lookupd_http_address,
        nsqd_http=options.nsqd_http_address,
        nsqd_tcp=options.nsqd_tcp_address,
    )
    if options.from_.isdecimal() and len(servers) > 1:
        raise ToolFailed(
            f"a sequence is a position on one nsqd, but {len(servers)} have the topic: use --nsqd-http-address"
        )
    position = parse_position("from", options.from_ or "earliest", datetime.now(UTC))
    readers = []
    for log in (TopicLog(queries, server, topic) for server in servers):
        bounds = await log.bounds()
        first = await log.sequence_at(position, bounds)
        if options.n and not options.from_:
            first = max(first, bounds.next - options.n)
        readers.append(SpanReader(log, Span(bounds.node, bounds.log_id, first, bounds.next)))
    return readers


def _line(reader: SpanReader, message: StoredMessage, options: PeekOptions) -> bytes:
    about = {"nsqd": str(reader.log.server), **message.document()}
    line = message_line(reader.log.topic, message.body, about, print_topic=options.print_topic, as_json=options.json)
    return header_lines(message.headers) + line if options.print_headers and not options.json else line
