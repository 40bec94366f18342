"""nsq_bench: publish and consume as fast as possible, or at a rate, and report how fast that was.

It measures nsqd together with this client, because a single Python process is rarely faster than an nsqd. With
--deadline several processes, on several machines, start at the same time.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import trio

from nsqclient import Config, Consumer, NSQError, Producer, open_consumer, open_producer
from nsqcommon.cores import usable_cores
from nsqcommon.durations import SECOND, Nanoseconds, seconds
from nsqcommon.options import DURATION, one_of, option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.client_flags import CLIENT_OPTIONS, CONSUMER_OPT, PRODUCER_OPT, client_config
from nsqtools.command import ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.histogram import DurationHistogram
from nsqtools.output import Output
from nsqtools.throttle import Throttle

log = logging.getLogger(__name__)

ABOUT: Final = """\
Publishes to a topic, consumes from it, or both at once, shows the rates every second, and prints a summary. Bodies
begin with the time, so consuming also measures the latency (on one machine, or with synchronized clocks). Messages
that were not consumed stay in the topic: delete it, or use a topic#ephemeral."""

_MARK: Final = b"nsqbench"
_STAMPED: Final = 16  # bytes: the mark and the time
_QUIET: Final = 1.0  # seconds without a message before we stop waiting
_MOST_MESSAGE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    nsqd_tcp_address: tuple[str, ...] = option((), f"{flags.NSQD_TCP_ADDRESS}; by default 127.0.0.1:4150")
    mode: str = option("both", "mode: pub, sub, or both", kind=one_of("pub", "sub", "both"))
    topic: str = option("sub_bench", "topic to publish to and to consume")
    channel: str = option("ch", "channel to consume")
    size: int = option(200, "message size in bytes")
    batch_size: int = option(200, "messages per publish")
    connections: int = option(0, "connections to each nsqd, for publishing and for consuming; 0: one per processor")
    rate: float = option(0.0, "total messages per second to publish; 0: as fast as possible")
    rdy: int = option(2500, "messages in flight for each consumer")
    runfor: Nanoseconds = option(10 * SECOND, "how long to run", kind=DURATION)
    deadline: str = option("", "when to start: 'YYYY-MM-DD HH:MM:SS' in UTC; empty: at once")
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)
    consumer_opt: tuple[str, ...] = option((), CONSUMER_OPT, kind=CLIENT_OPTIONS)
    quiet: bool = option(False, "print only the summary")
    json: bool = option(False, "print the summary as a JSON object")

    def check(self) -> None:
        flags.check_topic(self.topic)
        flags.check_channel(self.channel)
        flags.check_addresses(self.addresses, ())
        for name in ("size", "batch_size", "rdy", "runfor"):
            if getattr(self, name) <= 0:
                raise StartupError(f"--{name.replace('_', '-')} should be positive")
        if self.size > _MOST_MESSAGE:
            raise StartupError(f"--size should be at most {_MOST_MESSAGE}")
        if self.connections < 0 or self.rate < 0:
            raise StartupError("--connections and --rate should not be negative")
        if self.deadline:
            begin_of(self.deadline)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.nsqd_tcp_address or ("127.0.0.1:4150",)

    @property
    def connections_each(self) -> int:
        return self.connections or usable_cores()


def begin_of(deadline: str) -> float:
    """Return a deadline as seconds since 1970. Raise StartupError."""
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", deadline):
            raise ValueError
        return datetime.fromisoformat(deadline).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise StartupError("--deadline should be 'YYYY-MM-DD HH:MM:SS'") from None


def age_of(stamp: bytes) -> float | None:
    """Return the age in seconds of a message that begins with `stamp`; None if it has no time."""
    if len(stamp) < _STAMPED or not stamp.startswith(_MARK):
        return None
    return max(0.0, (time.time_ns() - int.from_bytes(stamp[len(_MARK) :], "big")) / 1e9)


@dataclass(slots=True)
class Side:
    """The result of publishing or consuming."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    times: DurationHistogram = field(default_factory=DurationHistogram)

    def add_times(self, age: float | None, count: int) -> None:
        """Add the same time for `count` messages, unless it's unknown."""
        if age is not None and count:
            self.times.add(age, count)

    def document(self, times: str) -> dict[str, Any]:
        elapsed = max(self.seconds, 1e-9)
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / elapsed, 1),
            "megabytes_per_second": round(self.bytes / elapsed / 1e6, 3),
            times: self.times.milliseconds() if self.times.count else None,
        }


class BenchRun:
    """One run: publishers and consumers, and their results so far."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.published = Side()
        self.consumed = Side()
        self._throttle: Throttle | None = None

    async def run(self, producers: Sequence[Producer], consumers: Sequence[Consumer], stop: trio.Event) -> None:
        """Run all connections until the end. Raise NSQError."""
        options = self.options
        if options.rate:
            self._throttle = Throttle(options.rate, trio.current_time())
        began = trio.current_time()
        end = began + seconds(options.runfor)
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(self._consume, consumer, began)
            async with trio.open_nursery() as publishing:
                for producer in producers:
                    publishing.start_soon(self._publish, producer, end, stop)
                with trio.move_on_at(end):
                    await stop.wait()
            self.published.seconds = trio.current_time() - began
            if producers and consumers and not stop.is_set():
                await self._wait_for_the_rest()
            nursery.cancel_scope.cancel()

    async def _publish(self, producer: Producer, end: float, stop: trio.Event) -> None:
        options, side, topic = self.options, self.published, self.options.topic
        count = options.batch_size
        padding = bytes(max(0, options.size - _STAMPED))
        while (began := trio.current_time()) < end and not stop.is_set():
            body = (_MARK + time.time_ns().to_bytes(8, "big") + padding)[: options.size]
            if count == 1:
                await producer.publish(topic, body)
            else:
                await producer.publish_many(topic, [body] * count)
            now = trio.current_time()
            side.times.add(now - began)
            side.messages += count
            side.bytes += count * options.size
            if self._throttle is not None and (pause := self._throttle.take(count, now)):
                with trio.move_on_at(min(now + pause, end)):
                    await stop.wait()

    async def _consume(self, consumer: Consumer, began: float) -> None:
        side = self.consumed
        # We time messages of one batch once, when the first arrives, because all of this runs for each message.
        stamp, same, age = b"", 0, None
        try:
            async for message in consumer:
                message.finish()
                body = message.body
                side.messages += 1
                side.bytes += len(body)
                if body[:_STAMPED] != stamp:
                    side.add_times(age, same)
                    side.seconds = max(side.seconds, trio.current_time() - began)
                    stamp, same = body[:_STAMPED], 0
                    age = age_of(stamp)
                same += 1
        finally:
            side.add_times(age, same)

    async def _wait_for_the_rest(self) -> None:
        while self.consumed.messages < self.published.messages:
            before = self.consumed.messages
            await trio.sleep(_QUIET)
            if self.consumed.messages == before:
                return

    # Output

    async def show(self) -> None:
        """Show the rates on stderr every second; on a terminal always in the same line."""
        end = "\r" if sys.stderr.isatty() else "\n"
        published = consumed = 0
        while True:
            await trio.sleep(1)
            parts = []
            if self.options.mode != "sub":
                parts.append(f"published {self.published.messages - published:9,d}/s")
            if self.options.mode != "pub":
                parts.append(f"consumed {self.consumed.messages - consumed:9,d}/s")
                parts.append(f"latency p50 {self.consumed.times.percentile(50) * 1000:.2f} ms")
            sys.stderr.write("  ".join(parts) + end)
            sys.stderr.flush()
            published, consumed = self.published.messages, self.consumed.messages

    def summary(self) -> dict[str, Any]:
        options = self.options
        return {
            "topic": options.topic,
            "nsqd": list(options.addresses),
            "size": options.size,
            "batch_size": options.batch_size,
            "connections": options.connections_each * len(options.addresses),
            "publish": self.published.document("round_trip_ms") if options.mode != "sub" else None,
            "consume": self.consumed.document("on_their_way_ms") if options.mode != "pub" else None,
        }


def summary_text(summary: dict[str, Any]) -> str:
    lines = []
    for name, times, words in (
        ("publish", "round_trip_ms", f"until the OK of {summary['batch_size']}"),
        ("consume", "on_their_way_ms", "from publishing to consuming"),
    ):
        side = summary[name]
        if side is not None:
            lines.append(
                f"{name}: {side['messages']:,} messages in {side['seconds']:.1f} s - "
                f"{side['messages_per_second']:,.0f}/s - {side['megabytes_per_second']:.1f} MB/s"
            )
            if side[times]:
                found = "  ".join(f"{key} {value:.2f}" for key, value in side[times].items())
                lines.append(f"  {words}, ms: {found}")
    return "".join(f"{line}\n" for line in lines)


async def open_all(
    options: Options, producer_config: Config, consumer_config: Config, stack: AsyncExitStack
) -> tuple[list[Producer], list[Consumer]]:
    """Open all connections. Raise NSQError."""
    producers, consumers = [], []
    for address in options.addresses:
        for _ in range(options.connections_each):
            if options.mode != "pub":
                opened = open_consumer(
                    options.topic, options.channel, nsqd=address, config=consumer_config, startup="require"
                )
                consumers.append(await stack.enter_async_context(opened))
            if options.mode != "sub":
                made = open_producer(address, config=producer_config, connect="require")
                producers.append(await stack.enter_async_context(made))
    return producers, consumers


async def run(options: Options, stop: trio.Event) -> int:
    output = Output()
    bench = BenchRun(options)
    producer_config = client_config("nsq_bench", options.producer_opt)
    consumer_config = client_config("nsq_bench", options.consumer_opt, max_in_flight=options.rdy, max_attempts=0)
    try:
        async with AsyncExitStack() as stack:
            producers, consumers = await open_all(options, producer_config, consumer_config, stack)
            if options.deadline:
                log.info("beginning at %s UTC", options.deadline)
                await run_until(stop, partial(trio.sleep, max(0.0, begin_of(options.deadline) - time.time())))
            await _run_with_display(bench, partial(bench.run, producers, consumers, stop))
    except NSQError as error:
        raise ToolFailed(str(error)) from error
    summary = bench.summary()
    await output.write((json.dumps(summary) + "\n" if options.json else summary_text(summary)).encode())
    return 0


async def _run_with_display(bench: BenchRun, job: Callable[[], Awaitable[None]]) -> None:
    trouble: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        if not bench.options.quiet:
            nursery.start_soon(bench.show)
        try:
            await job()
        except* NSQError as group:
            trouble += group.exceptions
        nursery.cancel_scope.cancel()
    while trouble:
        error = trouble[0]
        if not isinstance(error, BaseExceptionGroup):
            raise error
        trouble = list(error.exceptions)


def main() -> int:
    return run_tool("nsq_bench", Options, run, about=ABOUT)
