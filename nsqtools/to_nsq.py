"""to_nsq: publish standard input, record by record, to every given nsqd, or to one that nsqlookupd lists."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import trio

from nsqclient import NSQError, Producer, open_producer
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.client_flags import CLIENT_OPTIONS, PRODUCER_OPT, client_config
from nsqtools.command import LAST_ANSWERS, ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.throttle import Throttle

log = logging.getLogger(__name__)

ABOUT: Final = """\
Publishes each record to every nsqd, one record after another, and skips empty ones. With --lookupd-http-address each
record goes to one of the nsqds that nsqlookupd lists; they may come and go. After the first failed publish it exits
with status 1 and doesn't read the rest of the input; some nsqd may already have that record. If you stop it while a
record waits for its answer, it waits up to five more seconds; without an answer it exits with status 1."""

GROUP: Final = "group of all records (nsq-group); with --lookupd-http-address they go to the nsqd of the group"
_STANDARD_INPUT: Final = 0
_BLOCK: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    topic: str = option("", "topic to publish to")
    delimiter: str = option("\n", "byte that ends a record")
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.DESTINATION_LOOKUPD)
    group: bytes | None = option(None, GROUP, kind=flags.GROUP)
    rate: int = option(0, "maximum records per second; 0 or less: as fast as possible")
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)

    def check(self) -> None:
        if not self.topic:
            raise StartupError("--topic required")
        if len(self.delimiter_byte) != 1:
            raise StartupError("--delimiter must be a single byte")
        flags.check_sources(self.nsqd_tcp_address, self.lookupd_http_address)
        flags.check_topic(self.topic)
        flags.check_addresses(self.nsqd_tcp_address, self.lookupd_http_address)

    @property
    def delimiter_byte(self) -> bytes:
        return os.fsencode(self.delimiter)


class RecordSplitter:
    """Splits at each delimiter. A record may arrive in many pieces. Two adjacent delimiters enclose an empty record."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._begun: list[bytes] = []

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the records that end in this piece, including empty ones, because `--rate` counts them."""
        first, *others = data.split(self._delimiter)
        self._begun.append(first)
        if not others:
            return ()
        records = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return records

    def end(self) -> bytes:
        """Return the bytes after the last delimiter."""
        return b"".join(self._begun)


async def publish_all(options: Options, descriptor: int, stop: trio.Event) -> None:
    """Publish until the input ends or `stop` is set. Raise ToolFailed."""
    try:
        await _publish_all(options, descriptor, stop)
    except NSQError as error:
        raise ToolFailed(str(error)) from error
    except OSError as error:
        raise ToolFailed(f"cannot read standard input: {error.strerror}") from error


async def _publish_all(options: Options, descriptor: int, stop: trio.Event) -> None:
    config = client_config("to_nsq", options.producer_opt)
    throttle = None
    if options.rate > 0:
        log.info("Throttling messages rate to max:%d/second", options.rate)
        throttle = Throttle(options.rate, trio.current_time())
    splitter = RecordSplitter(options.delimiter_byte)
    nsqds = options.nsqd_tcp_address
    strategy: Literal["all", "by_group", "hostpool"] = "by_group" if options.group else "hostpool"
    if len(nsqds) > 1:
        strategy = "all"
    lookupds = options.lookupd_http_address
    async with open_producer(nsqds, lookupd=lookupds, strategy=strategy, config=config, connect="require") as producer:
        publisher = _Publisher(producer, options.topic, options.group)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.hurry, stop)
            data = b"begin"
            while data:
                data = await trio.to_thread.run_sync(os.read, descriptor, _BLOCK, abandon_on_cancel=True)
                for record in splitter.feed(data) if data else (splitter.end(),):
                    if record:
                        await publisher.publish(record)
                    if throttle is not None and (pause := throttle.take(1, trio.current_time())):
                        await trio.sleep(pause)
            nursery.cancel_scope.cancel()


class _Publisher:
    """Publishes one record at a time, and waits for the answer even if it is cancelled."""

    def __init__(self, producer: Producer, topic: str, group: bytes | None) -> None:
        self._producer = producer
        self._topic = topic
        self._group = group
        self._waiting = trio.CancelScope()

    async def publish(self, record: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True) as self._waiting:
            try:
                await self._producer.publish(self._topic, record, group=self._group)
            except (NSQError, ValueError) as error:  # ValueError: nsqd would refuse the record
                raise ToolFailed(str(error)) from error
            return
        raise ToolFailed("stopped while a record waited for its answer: it may or may not be published")

    async def hurry(self, stop: trio.Event) -> None:
        """Limit the wait for the last answer once `stop` is set."""
        await stop.wait()
        self._waiting.deadline = trio.current_time() + LAST_ANSWERS


async def run(options: Options, stop: trio.Event) -> int:
    await run_until(stop, lambda: publish_all(options, _STANDARD_INPUT, stop))
    return 0


def main() -> int:
    return run_tool("to_nsq", Options, run, about=ABOUT)
