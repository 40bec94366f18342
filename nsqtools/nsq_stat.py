"""nsq_stat: a channel's rates and depths, summed over all nsqd, in every interval."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import time_ns
from typing import Final, Protocol
from urllib.parse import quote

import trio

from nsqcommon.durations import SECOND, Nanoseconds, seconds
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.command import ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.nodes import NodeQueries, Server, parse_server
from nsqtools.output import Output
from nsqtools.rates import HEADER, ROWS_PER_HEADER, Poll, counters_in, row_between

log = logging.getLogger(__name__)

ABOUT: Final = """\
Prints a line for each interval: messages per second in and out of a channel, its depth, and counters since nsqd
started, summed over all nsqd that have the topic. If some of them do not answer, the line names them. If the channel has
max_in_flight (a policy file of nsqd), the line shows it, and how long it has been reached. If
messages are held because of their groups, the line says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    topic: str = option("", "topic to watch")
    channel: str = option("", "channel to watch")
    interval: Nanoseconds = option(2 * SECOND, "time between lines", kind=DURATION)
    count: int | None = option(None, "number of lines; default: no limit", kind=flags.COUNT)
    json: bool = option(False, "print each line as a JSON object")
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, flags.CONNECT_TIMEOUT, kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(5 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)
    nsqd_http_address: tuple[str, ...] = option((), flags.NSQD_HTTP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), "HTTP address of an nsqlookupd, host:port")

    def check(self) -> None:
        if not self.topic or not self.channel:
            raise StartupError("--topic and --channel are required")
        if self.interval <= 0:
            raise StartupError("--interval should be positive")
        flags.check_timeouts(self.http_client_connect_timeout, self.http_client_request_timeout)
        if self.count is not None and self.count <= 0:
            raise StartupError("--count should be positive")
        flags.check_sources(self.nsqd_http_address, self.lookupd_http_address, kind="http")
        _check_addresses("nsqd", self.nsqd_http_address)
        _check_addresses("lookupd", self.lookupd_http_address)
        flags.check_topic(self.topic)
        flags.check_channel(self.channel)


def _check_addresses(program: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        if "://" in address:
            raise StartupError(f"--{program}-http-address error - address should not contain scheme")
        flags.check_server(address)


class WatchedChannel:
    """The watched channel on all of its nsqd."""

    def __init__(self, options: Options) -> None:
        self._topic = options.topic
        self._channel = options.channel
        self._given = [parse_server(address) for address in options.nsqd_http_address]
        self._lookupds = [parse_server(address) for address in options.lookupd_http_address]
        self._queries = NodeQueries(
            connect_timeout=seconds(options.http_client_connect_timeout),
            request_timeout=seconds(options.http_client_request_timeout),
        )
        self._known: list[Server] = []  # the nsqd in nsqlookupd's last answer about the topic

    async def poll(self) -> tuple[Poll, list[str]]:
        """Return the counters of all nsqd, and lines about failures."""
        servers, troubles = await self._nodes()
        topic, channel = quote(self._topic), quote(self._channel)
        target = f"/stats?format=json&topic={topic}&channel={channel}&include_clients=false"
        read = partial(counters_in, topic=self._topic, channel=self._channel)
        answers, failures = await self._queries.ask_all(servers, target, read)
        nodes = {str(server): found for server, found in answers.items() if found is not None}
        troubles += (f"ERROR: failed to get nsqd stats - {failure}" for failure in failures)
        if answers and not nodes:
            troubles.append(
                f"ERROR: failed to find channel({self._channel}) in stats metadata for topic({self._topic})"
            )
        missing = tuple(str(it) for it in servers if it not in answers)
        return Poll(trio.current_time(), nodes, missing, time_ns()), troubles

    async def _nodes(self) -> tuple[list[Server], list[str]]:
        if self._given:
            return self._given, []
        producers, failures = await self._queries.producers(self._lookupds, self._topic)
        troubles = [f"ERROR: failed to get topic producers - {failure}" for failure in failures]
        if len(failures) < len(self._lookupds):
            self._known = [producer.server for producer in producers]
        if not self._known and not troubles:
            troubles.append(f"ERROR: failed to get topic producers - no nsqd has topic({self._topic})")
        return self._known, troubles


class Watched(Protocol):
    """A source of polls."""

    async def poll(self) -> tuple[Poll, list[str]]: ...


async def watch(channel: Watched, options: Options, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Print the rows. Raise ToolFailed if the first poll finds nothing."""
    before, troubles = await channel.poll()
    if not before.nodes:
        raise ToolFailed("; ".join(troubles))
    _report(troubles)
    if not options.json:
        await write(HEADER.encode())
    last = options.count
    for number in count(1):
        await trio.sleep_until(before.time + seconds(options.interval))
        now, troubles = await channel.poll()
        _report(troubles)
        row = row_between(before, now)
        if options.json:
            await write(json.dumps(row.document()).encode() + b"\n")
        else:
            header = HEADER if number % ROWS_PER_HEADER == 0 else ""
            await write((header + row.line()).encode())
        if number == last:
            return
        before = now


def _report(troubles: Sequence[str]) -> None:
    for line in troubles:
        log.error("%s", line)


async def run(options: Options, stop: trio.Event) -> int:
    output = Output()
    await run_until(stop, lambda: watch(WatchedChannel(options), options, output.write))
    return 0


def main() -> int:
    stopped_by = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return run_tool("nsq_stat", Options, run, about=ABOUT, stopped_by=stopped_by)
