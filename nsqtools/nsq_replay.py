"""nsq_replay: publish a range of a topic's log again, into a topic on the same or another cluster.

The range is fixed at the start, so a replay into the same topic ends. Messages of several nsqd are replayed in the
order of their publication, by the nodes' clocks. Nothing changes at the source.

A message is published at least once: if the connection breaks, or from a checkpoint, the last batch may be published
twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Final

import trio

from nsqclient import NSQError, Producer, Unsupported, open_producer
from nsqcommon.durations import SECOND, Nanoseconds, seconds
from nsqcommon.net import join_host_port
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.checkpoint import RemainingRange, ReplayCheckpoint
from nsqtools.client_flags import CLIENT_OPTIONS, PRODUCER_OPT, client_config
from nsqtools.command import LAST_ANSWERS, ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.history import Bounds, ReadRange, RemoteTopicLog, SpanReader, next_in_time, parse_position
from nsqtools.nodes import AskFailed, NodeQueries, servers_of, tcp_port_in
from nsqtools.output import Output
from nsqtools.passing_on import with_origin
from nsqtools.progress import Progress, with_progress
from nsqtools.throttle import Throttle

log = logging.getLogger(__name__)

ABOUT: Final = """\
Publishes a range of a topic's log into --destination-topic, in the order of publication, without changing the topic or
its channels. Deferred messages are published at once. Without a destination address, the messages go to the nsqd that
have the topic. With --checkpoint the same command continues an interrupted replay.

Exit status 3: the replay is incomplete, because you stopped it or parts can no longer be read."""

NOT_ALL: Final = 3
_SAVE_EVERY: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    topic: str = option("", "topic to read")
    nsqd_http_address: tuple[str, ...] = option((), flags.NSQD_HTTP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    from_: str = option(
        "earliest",
        "where to start: earliest, a sequence, a time (2026-03-01T12:00:00Z), or 1h (an hour ago)",
        flag="from",
    )
    to: str = option("latest", "where to end (exclusive): latest, a sequence, a time, or 1h (an hour ago)")
    limit: int = option(0, "maximum number of messages to replay; 0: all")
    destination_topic: str = option("", "topic to publish into")
    destination_nsqd_tcp_address: tuple[str, ...] = option((), flags.DESTINATION_NSQD)
    destination_lookupd_http_address: tuple[str, ...] = option((), flags.DESTINATION_LOOKUPD)
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)
    rate: float = option(0.0, "maximum messages per second; 0: as fast as possible")
    batch_size: int = option(200, "maximum number of messages per publish")
    checkpoint: str = option("", "file for the progress; if it exists, the replay continues there")
    dry_run: bool = option(False, "only print the plan")
    quiet: bool = option(False, "show no progress")
    json: bool = option(False, "print the summary as a JSON object")
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, flags.CONNECT_TIMEOUT, kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(5 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)

    def check(self) -> None:
        if not self.topic:
            raise StartupError("--topic required")
        flags.check_topic(self.topic)
        if not self.destination_topic and not self.dry_run:
            raise StartupError("--destination-topic required")
        if self.destination_topic:
            flags.check_topic(self.destination_topic)
        flags.check_sources(self.nsqd_http_address, self.lookupd_http_address, kind="http")
        flags.check_destinations(
            self.destination_nsqd_tcp_address, self.destination_lookupd_http_address, is_needed=False
        )
        flags.check_addresses(
            (*self.nsqd_http_address, *self.destination_nsqd_tcp_address),
            (*self.lookupd_http_address, *self.destination_lookupd_http_address),
        )
        flags.check_timeouts(self.http_client_connect_timeout, self.http_client_request_timeout)
        now = datetime.now(UTC)
        parse_position("from", self.from_, now)
        parse_position("to", self.to, now)
        if self.batch_size <= 0:
            raise StartupError("--batch-size should be positive")
        if self.limit < 0 or self.rate < 0:
            raise StartupError("--limit and --rate should not be negative")


@dataclass(slots=True)
class ReplayRun:
    """The ranges to replay, and the progress."""

    options: Options
    readers: list[SpanReader]
    published_before: int = 0  # in earlier runs, from the checkpoint
    published: int = 0
    began: float = field(default_factory=trio.current_time)
    _saved: float = -inf
    _positions: list[int] = field(init=False)  # per reader: everything before this sequence is published

    def __post_init__(self) -> None:
        self.mark_published()

    @property
    def planned(self) -> int:
        total = sum(reader.span.messages for reader in self.readers)
        return min(total, self._limit) if self.options.limit else total

    @property
    def _limit(self) -> int:
        return max(0, self.options.limit - self.published_before)

    @property
    def unreadable(self) -> int:
        return sum(reader.unreadable for reader in self.readers)

    async def next_batch(self, size: int) -> list[tuple[bytes, Mapping[str, bytes]]]:
        """Return bodies and headers of the next messages to publish, up to `size`. Raise AskFailed."""
        if self.options.limit:
            size = min(size, self._limit - self.published)
        batch: list[tuple[bytes, Mapping[str, bytes]]] = []
        while len(batch) < size and (found := await next_in_time(self.readers)) is not None:
            reader, message = found
            headers = message.headers
            if headers:
                headers = with_origin(headers, f"{reader.log.server}/{self.options.topic}/{message.id:016x}")
            batch.append((message.body, headers))
        return batch

    def mark_published(self) -> None:
        """Record that everything read so far is published, so that a later run can continue here."""
        self._positions = [reader.position for reader in self.readers]

    @property
    def position(self) -> int:
        """The sequence to continue from, if there is only one reader."""
        return self._positions[0]

    def save(self, *, at_once: bool) -> None:
        """Write the checkpoint, at most once per second unless `at_once`. Raise ToolFailed."""
        now = trio.current_time()
        if self.options.checkpoint and (at_once or now >= self._saved + _SAVE_EVERY):
            self._saved = now
            self.checkpoint().save(Path(self.options.checkpoint))

    def checkpoint(self) -> ReplayCheckpoint:
        places = {
            it.span.node: RemainingRange(it.span.log_id, position, it.span.end)
            for it, position in zip(self.readers, self._positions, strict=True)
        }
        return ReplayCheckpoint(
            self.options.topic, self.options.destination_topic, self.published_before + self.published, places
        )

    def summary(self, *, complete: bool) -> dict[str, Any]:
        return {
            "topic": self.options.topic,
            "destination_topic": self.options.destination_topic,
            "planned": self.planned,
            "published": self.published,
            "unreadable": self.unreadable,
            "complete": complete,
            "seconds": round(trio.current_time() - self.began, 3),
            "nodes": [
                {
                    "address": str(it.log.server),
                    "node": it.span.node,
                    "log": it.span.log_id,
                    "from": it.span.first,
                    "next": position,
                    "to": it.span.end,
                }
                for it, position in zip(self.readers, self._positions, strict=True)
            ],
        }


async def prepare(options: Options, queries: NodeQueries) -> ReplayRun:
    """Find the logs and ranges to replay, from the flags or the checkpoint. Raise AskFailed or ToolFailed."""
    servers = await servers_of(
        queries, options.topic, lookupd=options.lookupd_http_address, nsqd_http=options.nsqd_http_address
    )
    logs = [(it, await it.bounds()) for it in (RemoteTopicLog(queries, server, options.topic) for server in servers)]
    before = ReplayCheckpoint.load(Path(options.checkpoint)) if options.checkpoint else None
    if before is not None:
        return _continued(options, before, logs)
    if len(logs) > 1 and (options.from_.isdecimal() or options.to.isdecimal()):
        raise ToolFailed(
            f"a sequence is a position on one nsqd, but {len(logs)} have the topic: use --nsqd-http-address"
        )
    now = datetime.now(UTC)
    readers = []
    for it, bounds in logs:
        first = await it.sequence_at(parse_position("from", options.from_, now), bounds)
        end = await it.sequence_at(parse_position("to", options.to, now), bounds)
        readers.append(SpanReader(it, ReadRange(bounds.node, bounds.log_id, first, max(first, end))))
    return ReplayRun(options, readers)


def _continued(options: Options, before: ReplayCheckpoint, found: Sequence[tuple[RemoteTopicLog, Bounds]]) -> ReplayRun:
    if (before.topic, before.destination_topic) != (options.topic, options.destination_topic):
        raise ToolFailed(
            f"checkpoint {options.checkpoint} belongs to another replay, {before.topic} into {before.destination_topic}"
        )
    logs = {bounds.node: it for it, bounds in found}
    if missing := before.places.keys() - logs.keys():
        raise ToolFailed(f"nodes of checkpoint {options.checkpoint} not found: {', '.join(sorted(missing))}")
    readers = [
        SpanReader(logs[node], ReadRange(node, place.log_id, place.next, place.end))
        for node, place in before.places.items()
    ]
    return ReplayRun(options, readers, published_before=before.published)


async def publish(replay: ReplayRun, producer: Producer, progress: Progress, stop: trio.Event) -> bool:
    """Publish until the end or until `stop` is set. Return True at the end.

    Raises AskFailed, NSQError or ToolFailed.
    """
    options = replay.options
    size = options.batch_size
    throttle = None
    if options.rate:
        throttle = Throttle(options.rate, trio.current_time())
        size = min(size, max(1, int(options.rate / 10)))
    while not stop.is_set():
        batch = await replay.next_batch(size)
        if not batch:
            replay.mark_published()
            return True
        await _publish(options.destination_topic, batch, producer)
        replay.mark_published()
        replay.published += len(batch)
        progress.done = replay.published
        replay.save(at_once=False)
        if throttle is not None and (pause := throttle.take(len(batch), trio.current_time())):
            with trio.move_on_after(pause):
                await stop.wait()
    return False


async def _publish(topic: str, batch: Sequence[tuple[bytes, Mapping[str, bytes]]], producer: Producer) -> None:
    bodies, headers = [body for body, _ in batch], [headers for _, headers in batch]
    if any(headers):
        try:
            await producer.publish_many(topic, bodies, headers=headers)
        except Unsupported:
            log.warning("the destination doesn't support headers, dropped from up to %d messages", len(batch))
        else:
            return
    await producer.publish_many(topic, bodies)


async def destinations(options: Options, queries: NodeQueries, replay: ReplayRun) -> list[str]:
    """Return the TCP addresses of the nsqd to publish to; empty if nsqlookupd lists them. Raise AskFailed."""
    if options.destination_nsqd_tcp_address or options.destination_lookupd_http_address:
        return list(options.destination_nsqd_tcp_address)
    servers = [reader.log.server for reader in replay.readers]
    return [join_host_port(it.host, await queries.ask(it, "/info", tcp_port_in)) for it in servers]


async def run(options: Options, stop: trio.Event) -> int:
    output = Output()
    queries = NodeQueries(
        connect_timeout=seconds(options.http_client_connect_timeout),
        request_timeout=seconds(options.http_client_request_timeout),
    )
    # We wait for each batch, so no answer is pending at the end.
    config = client_config("nsq_replay", options.producer_opt, drain_timeout=0.0)
    try:
        replay = await prepare(options, queries)
        if options.dry_run:
            await output.write(summary_text(replay, options, complete=False))
            return 0
        addresses = await destinations(options, queries, replay)
    except AskFailed as error:
        raise ToolFailed(str(error)) from error
    replay.save(at_once=True)  # if we can't write the file, fail before publishing anything
    progress = Progress(replay.planned, quiet=options.quiet)
    complete, trouble = False, None

    async def publish_all() -> None:
        nonlocal complete
        async with open_producer(
            addresses,
            lookupd=options.destination_lookupd_http_address,
            config=config,
            retry="anywhere",
            connect="require",
        ) as producer:
            complete = await publish(replay, producer, progress, stop)

    try:
        await with_progress(progress, lambda: run_until(stop, publish_all, grace=LAST_ANSWERS))
    except (AskFailed, NSQError) as error:
        trouble = error
    replay.save(at_once=True)
    await output.write(summary_text(replay, options, complete=complete))
    if trouble is not None:
        raise ToolFailed(f"{trouble}; {_advice(replay)}")
    return 0 if complete and not replay.unreadable else NOT_ALL


def _advice(replay: ReplayRun) -> str:
    if replay.options.checkpoint:
        return "run the same command again to continue"
    if len(replay.readers) == 1:
        return f"to continue: --from={replay.position}"
    return "use --checkpoint to be able to continue"


def summary_text(replay: ReplayRun, options: Options, *, complete: bool) -> bytes:
    summary = replay.summary(complete=complete)
    if options.json:
        return json.dumps(summary).encode() + b"\n"
    if options.dry_run:
        lines = [
            f"{node['address']}  sequences {node['from']} to {node['to']}  {node['to'] - node['from']} messages"
            for node in summary["nodes"]
        ]
        lines.append(f"{summary['planned']} messages of {options.topic} would be replayed")
    else:
        lines = [
            f"{summary['published']} of {summary['planned']} messages of {options.topic} replayed into "
            f"{options.destination_topic} in {summary['seconds']:.1f} s"
        ]
        if summary["unreadable"]:
            lines.append(f"{summary['unreadable']} messages can no longer be read")
    return "".join(f"{line}\n" for line in lines).encode()


def main() -> int:
    return run_tool("nsq_replay", Options, run, about=ABOUT)
