"""to_nsq: publishes what comes on standard input, record by record, to every nsqd that is named."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from typing import Final, Literal

import trio

from common.options import option
from common.startup import StartupError
from nsqclient import NSQError, open_producer
from nsqtools import flags
from nsqtools.client_flags import CLIENT_OPTIONS, PRODUCER_OPT, client_config
from nsqtools.command import ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.records import RecordSplitter
from nsqtools.throttle import Throttle

log = logging.getLogger(__name__)

ABOUT: Final = """\
Each record is published to every nsqd, one after the other; empty ones are left out. The first publish that fails ends
it with status 1, and the rest of the input is not read: some nsqd may have that record already."""

_STANDARD_INPUT: Final = 0
_BLOCK: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    topic: str = option("", "topic to publish to")
    delimiter: str = option("\n", "byte that ends a record")
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    rate: int = option(0, "records per second, at most; 0 or less: as fast as it goes")
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)

    def check(self) -> None:
        if not self.topic:
            raise StartupError("--topic required")
        if len(self.delimiter_byte) != 1:
            raise StartupError("--delimiter must be a single byte")
        if not self.nsqd_tcp_address:
            raise StartupError("--nsqd-tcp-address required")
        flags.check_topic(self.topic)
        flags.check_addresses(self.nsqd_tcp_address, ())

    @property
    def delimiter_byte(self) -> bytes:
        return os.fsencode(self.delimiter)


async def publish_all(options: Options, descriptor: int) -> None:
    """Raises ToolFailed."""
    try:
        await _publish_all(options, descriptor)
    except (NSQError, ValueError) as error:  # ValueError: a record that no nsqd takes
        raise ToolFailed(str(error)) from error
    except OSError as error:
        raise ToolFailed(f"cannot read standard input: {error.strerror}") from error


async def _publish_all(options: Options, descriptor: int) -> None:
    config = client_config("to_nsq", options.producer_opt)
    throttle = None
    if options.rate > 0:
        log.info("Throttling messages rate to max:%d/second", options.rate)
        throttle = Throttle(options.rate, trio.current_time())
    splitter = RecordSplitter(options.delimiter_byte)
    nsqds = options.nsqd_tcp_address
    strategy: Literal["all", "hostpool"] = "all" if len(nsqds) > 1 else "hostpool"
    async with open_producer(nsqds, strategy=strategy, config=config, connect="require") as producer:
        data = b"begin"
        while data:
            data = await trio.to_thread.run_sync(os.read, descriptor, _BLOCK, abandon_on_cancel=True)
            for record in splitter.feed(data) if data else (splitter.end(),):
                if record:
                    await producer.publish(options.topic, record)
                if throttle is not None and (pause := throttle.take(1, trio.current_time())):
                    await trio.sleep(pause)


async def run(options: Options, stop: trio.Event) -> int:
    await run_until(stop, lambda: publish_all(options, _STANDARD_INPUT))
    return 0


def main() -> None:
    sys.exit(run_tool("to_nsq", Options, run, about=ABOUT))


if __name__ == "__main__":
    main()
