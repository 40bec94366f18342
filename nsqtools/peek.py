"""nsq_tail --peek: what the logs of some topics have kept, in the order of publication."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from nsqtools.command import ToolFailed
from nsqtools.history import Span, SpanReader, StoredMessage, TopicLog, next_in_time, parse_place
from nsqtools.nodes import AskFailed, servers_of
from nsqtools.output import message_line

if TYPE_CHECKING:
    from nsqtools.nodes import Asking
    from nsqtools.output import Output


class What(Protocol):
    """The settings of nsq_tail that count here."""

    @property
    def topic(self) -> tuple[str, ...]: ...
    @property
    def n(self) -> int: ...
    @property
    def from_(self) -> str: ...
    @property
    def print_topic(self) -> bool: ...
    @property
    def json(self) -> bool: ...
    @property
    def nsqd_tcp_address(self) -> tuple[str, ...]: ...
    @property
    def nsqd_http_address(self) -> tuple[str, ...]: ...
    @property
    def lookupd_http_address(self) -> tuple[str, ...]: ...


async def peek(what: What, asking: Asking, output: Output) -> None:
    """Prints them. Raises ToolFailed or OutputClosed."""
    try:
        await _peek(what, asking, output)
    except AskFailed as error:
        raise ToolFailed(str(error)) from error


async def _peek(what: What, asking: Asking, output: Output) -> None:
    readers = [reader for topic in what.topic for reader in await _readers(what, topic, asking)]
    if what.from_ or not what.n:
        shown = 0
        while (found := await next_in_time(readers)) is not None:
            await output.write(_line(*found, what))
            shown += 1
            if shown == what.n:
                return
    else:
        last: deque[tuple[SpanReader, StoredMessage]] = deque(maxlen=what.n)
        while (found := await next_in_time(readers)) is not None:
            last.append(found)
        for it in last:
            await output.write(_line(*it, what))


async def _readers(what: What, topic: str, asking: Asking) -> Sequence[SpanReader]:
    servers = await servers_of(
        asking,
        topic,
        lookupd=what.lookupd_http_address,
        nsqd_http=what.nsqd_http_address,
        nsqd_tcp=what.nsqd_tcp_address,
    )
    if what.from_.isdigit() and len(servers) > 1:
        raise ToolFailed(
            f"a sequence is a place on one nsqd, and {len(servers)} have the topic: use --nsqd-http-address"
        )
    place = parse_place("from", what.from_ or "earliest", datetime.now(UTC))
    readers = []
    for log in (TopicLog(asking, server, topic) for server in servers):
        bounds = await log.bounds()
        first = await log.place(place, bounds)
        if what.n and not what.from_:
            first = max(first, bounds.next - what.n)
        readers.append(SpanReader(log, Span(bounds.node, bounds.log_id, first, bounds.next)))
    return readers


def _line(reader: SpanReader, message: StoredMessage, what: What) -> bytes:
    about = {"nsqd": str(reader.log.server), **message.document()}
    return message_line(reader.log.topic, message.body, about, print_topic=what.print_topic, as_json=what.json)
