"""nsq_tail: print messages as they arrive, or with --peek the messages in a topic's log, changing nothing."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Final
from urllib.parse import quote

import trio

from nsqclient import Config, Consumer, Message, NSQError, open_consumer
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.wire.names import is_ephemeral
from nsqtools import flags
from nsqtools.client_flags import CLIENT_OPTIONS, CONSUMER_OPT, MAX_IN_FLIGHT, client_config
from nsqtools.command import (
    STATUS_OF_A_CLOSED_PIPE,
    OutputClosed,
    ToolFailed,
    ToolOptions,
    run_tool,
    run_until,
)
from nsqtools.history import (
    ReadRange,
    RemoteTopicLog,
    SpanReader,
    StoredMessage,
    body_document,
    headers_document,
    next_in_time,
    parse_position,
)
from nsqtools.json_fields import list_in, number_in
from nsqtools.nodes import AskFailed, NodeQueries, servers_of
from nsqtools.output import Output, header_lines, message_line

log = logging.getLogger(__name__)

ABOUT: Final = """\
Prints each message and a newline, and finishes it. Without --channel it creates its own ephemeral channel.

With --peek it reads the topics' logs: it creates no channel, nothing is delivered or finished, and it exits after the
last message. With just -n it shows the last n messages, with --from the first n from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    channel: str = option("", "channel to consume; empty: tailNNNNNN#ephemeral")
    max_in_flight: int = option(200, MAX_IN_FLIGHT)
    n: int = option(0, "number of messages to show, from all topics together; 0: no limit")
    print_topic: bool = option(False, "print the topic's name before each message")
    print_headers: bool = option(False, "print each message's headers before it, one per line")
    json: bool = option(False, "print each message as a JSON object")
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    nsqd_http_address: tuple[str, ...] = option(
        (), f"{flags.NSQD_HTTP_ADDRESS}; for --peek, and for the check before creating an ephemeral channel"
    )
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    topic: tuple[str, ...] = option((), "topic to show")
    consumer_opt: tuple[str, ...] = option((), CONSUMER_OPT, kind=CLIENT_OPTIONS)
    force: bool = option(
        False, "create an ephemeral channel even if it takes away messages that wait for a first channel"
    )
    peek: bool = option(False, "show the messages in the log, without changing anything")
    from_: str = option(
        "", "with --peek, where to start: earliest, a sequence, a time (2026-03-01T12:00:00Z), or 1h (an hour ago)",
        flag="from",
    )  # fmt: skip

    def check(self) -> None:
        if self.peek and self.nsqd_http_address:
            if self.lookupd_http_address:
                raise StartupError("use --nsqd-http-address or --lookupd-http-address not both")
        else:
            flags.check_sources(self.nsqd_tcp_address, self.lookupd_http_address)
        if not self.topic:
            raise StartupError("--topic required")
        for topic in self.topic:
            flags.check_topic(topic)
        if self.channel:
            flags.check_channel(self.channel)
        flags.check_addresses(self.nsqd_tcp_address, (*self.lookupd_http_address, *self.nsqd_http_address))
        if self.from_:
            if not self.peek:
                raise StartupError("--from only used with --peek")
            parse_position("from", self.from_, datetime.now(UTC))
        if self.n < 0:
            raise StartupError("-n should not be negative")

    @property
    def must_connect(self) -> bool:
        return bool(self.nsqd_tcp_address)


class TailRun:
    """Consumers. Prints their messages one by one, up to the limit."""

    def __init__(self, options: Options, config: Config, output: Output) -> None:
        self._options = options
        self._channel = options.channel or f"tail{random.randrange(10**6):06d}#ephemeral"
        self._config = config
        self._output = output
        self.status = 0  # the exit status
        self._left: float = options.n or inf
        self._turn = trio.Lock()
        self._writing: trio.CancelScope | None = None
        self._consumers: list[Consumer] = []
        self._opening: set[trio.CancelScope] = set()
        self._is_stopping = False

    async def follow(self, topic: str) -> None:
        """Print the messages of a topic until `stop`. Raise ToolFailed."""
        log.info("Adding consumer for topic: %s", topic)
        try:
            with trio.CancelScope() as opening:
                self._opening.add(opening)
                await self._follow(topic, opening)
        except NSQError as error:
            raise ToolFailed(str(error)) from error

    async def _follow(self, topic: str, opening: trio.CancelScope) -> None:
        options = self._options
        async with open_consumer(
            topic,
            self._channel,
            nsqd=options.nsqd_tcp_address,
            lookupd=options.lookupd_http_address,
            config=self._config,
            startup="require" if options.must_connect else "background",
        ) as consumer:
            self._opening.remove(opening)
            self._consumers.append(consumer)
            if self._is_stopping:
                consumer.stop()
            async for message in consumer:
                async with self._turn:
                    await self._show(topic, message)

    async def _show(self, topic: str, message: Message) -> None:
        if self._is_stopping:
            message.requeue(0, backoff=False)
            return
        options = self._options
        about = _about(message) if options.json else {}
        line = message_line(topic, message.body, about, print_topic=options.print_topic, as_json=options.json)
        if options.print_headers and not options.json:
            line = header_lines(message.headers) + line
        with trio.CancelScope() as self._writing:
            try:
                await self._output.write(line)
            except OSError as error:
                message.requeue(0, backoff=False)
                raise ToolFailed(f"ERROR: failed to write to os.Stdout - {error.strerror}") from error
            except OutputClosed:
                self.status = STATUS_OF_A_CLOSED_PIPE  # also a clean end: nothing is left in flight
                self._left = 0
                message.requeue(0, backoff=False)
            else:
                message.finish()
                self._left -= 1
        if self._writing.cancelled_caught:
            message.requeue(0, backoff=False)
        if self._left <= 0:
            self.stop()

    def stop(self) -> None:
        self._is_stopping = True
        for scope in self._opening:  # connecting to a hung nsqd may take long to fail
            scope.cancel()
        for consumer in self._consumers:
            consumer.stop()
        if self._writing is not None:  # the reader of our output may have stopped reading
            self._writing.cancel()


def _about(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
        "nsqd": message.nsqd,
        **headers_document(message.headers),
        **body_document(message.body),
    }


async def guard(options: Options, topic: str, queries: NodeQueries) -> None:
    """Refuse to create an ephemeral channel that would be the topic's first one. Raise ToolFailed.

    The first channel gets the topic's backlog, which would vanish with an ephemeral channel.
    """
    target = f"/stats?format=json&topic={quote(topic)}&include_clients=false"
    try:
        servers = await servers_of(
            queries,
            topic,
            lookupd=options.lookupd_http_address,
            nsqd_http=options.nsqd_http_address,
            nsqd_tcp=options.nsqd_tcp_address,
        )
    except AskFailed as error:
        if error.status != 404:
            log.warning("WARNING: cannot check whether topic %s already has a channel: %s", topic, error)
        return
    answers, failures = await queries.ask_all(servers, target, partial(_unread, topic=topic))
    for failure in failures:
        log.warning("WARNING: cannot check whether topic %s already has a channel: %s", topic, failure)
    for server, depth in answers.items():
        if depth:
            raise ToolFailed(
                f"topic {topic} on {server} has {depth} messages and no channel: an ephemeral one would "
                "take them away; use --peek to see them, --channel to keep them, or --force"
            )


def _unread(stats: Any, *, topic: str) -> int:
    """Return how many messages wait for the topic's first channel, from an answer of `/stats`."""
    return sum(
        number_in(found, "depth")
        for found in list_in(stats, "topics")
        if found["topic_name"] == topic and not list_in(found, "channels")
    )


async def peek(options: Options, queries: NodeQueries, output: Output) -> None:
    """Print what the logs have kept, in the order of publication. Raise ToolFailed or OutputClosed."""
    try:
        await _peek(options, queries, output)
    except AskFailed as error:
        raise ToolFailed(str(error)) from error


async def _peek(options: Options, queries: NodeQueries, output: Output) -> None:
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


async def _readers(options: Options, topic: str, queries: NodeQueries) -> Sequence[SpanReader]:
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
    for it in (RemoteTopicLog(queries, server, topic) for server in servers):
        bounds = await it.bounds()
        first = await it.sequence_at(position, bounds)
        if options.n and not options.from_:
            first = max(first, bounds.next - options.n)
        readers.append(SpanReader(it, ReadRange(bounds.node, bounds.log_id, first, bounds.next)))
    return readers


def _line(reader: SpanReader, message: StoredMessage, options: Options) -> bytes:
    about = {"nsqd": str(reader.log.server), **message.document()}
    line = message_line(reader.log.topic, message.body, about, print_topic=options.print_topic, as_json=options.json)
    return header_lines(message.headers) + line if options.print_headers and not options.json else line


async def run(options: Options, stop: trio.Event) -> int:
    output = Output()
    queries = NodeQueries()
    if options.peek:
        await run_until(stop, lambda: peek(options, queries, output))
        return 0
    in_flight = options.max_in_flight
    if 0 < options.n < in_flight:
        in_flight = options.n
    tail = TailRun(options, client_config("nsq_tail", options.consumer_opt, max_in_flight=in_flight), output)
    if not options.force and (not options.channel or is_ephemeral(options.channel)):
        for topic in options.topic:
            await guard(options, topic, queries)
    async with trio.open_nursery() as services:
        services.start_soon(_stop_on, stop, tail)
        async with trio.open_nursery() as topics:
            for topic in options.topic:
                topics.start_soon(tail.follow, topic)
        services.cancel_scope.cancel()
    return tail.status


async def _stop_on(stop: trio.Event, tail: TailRun) -> None:
    await stop.wait()
    tail.stop()


def main() -> int:
    return run_tool("nsq_tail", Options, run, about=ABOUT)
