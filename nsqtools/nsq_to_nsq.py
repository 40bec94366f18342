"""nsq_to_nsq: publish the messages of some topics to other nsqd."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import trio

from nsqclient import Message, NSQError, Producer, Requeue, Strategy, open_producer
from nsqclient.core.hostpool import pool_of
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.wire.names import is_valid_name
from nsqtools import flags
from nsqtools.bridge import MODES, STATUS_EVERY, STRATEGIES, Targets, consume
from nsqtools.client_flags import CLIENT_OPTIONS, CONSUMER_OPT, MAX_IN_FLIGHT, PRODUCER_OPT, client_config
from nsqtools.command import ToolOptions, run_tool
from nsqtools.json_filter import Dropped, JsonFilter
from nsqtools.passing_on import NsqdDestination, place_of

log = logging.getLogger(__name__)

ABOUT: Final = """\
A message is finished once the destination has it, with its headers and its origin (nsq-origin). Failed messages are
requeued with a delay, and the tool slows down.

A redelivered message is not published twice while the destination remembers its key (--idempotence-window, 10 minutes
by default), so a crash of this tool duplicates nothing. That also applies to messages that you redeliver with a seek;
to forward those, use nsq_replay.

Several destinations get equal shares, and a message always goes to the same one if you give the same addresses, in any
order. All messages of a group (nsq-group) go to one destination, too, so a large group makes the shares unequal. A
failed destination is left out for 30 s, or longer if it fails again; meanwhile its messages go to the others.
So a message can end up at two destinations: if this tool dies before it has finished the message and then chooses
another destination, because one has failed or is back, or because you have added or removed one; or if a destination
hangs for more than a minute after storing the message. With --mode=epsilon-greedy each try can go elsewhere, so each
crash can duplicate the messages in flight.

After max_attempts failures (5, see --consumer-opt) a message is buried in its channel.
ATTENTION: an nsqd that cannot bury, such as NSQ's own, drops it, and so does every nsqd in an ephemeral channel."""


MODE: Final = (
    "choice of the destination: hostpool and round-robin (the same here: a message always goes to the same one, unless"
    " that fails), or epsilon-greedy (prefers fast ones)"
)
# Taking turns would repeat a message elsewhere after a crash. The choice by group, or without one by key, also gives
# equal shares.
_BY_GROUP: Final[dict[str, Strategy]] = dict.fromkeys(("hostpool", "round-robin"), "by_group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    topic: tuple[str, ...] = option((), "topic to consume")
    channel: str = option("nsq_to_nsq", "channel to consume")
    destination_topic: str = option("", "topic to publish to; empty: the same topic")
    destination_nsqd_tcp_address: tuple[str, ...] = option((), flags.DESTINATION_NSQD)
    destination_lookupd_http_address: tuple[str, ...] = option((), flags.DESTINATION_LOOKUPD)
    max_in_flight: int = option(200, f"{MAX_IN_FLIGHT}, for each topic")
    mode: str = option("hostpool", MODE, kind=MODES)
    status_every: int = option(250, STATUS_EVERY)
    require_json_field: str = option("", "forward only JSON objects with this field")
    require_json_value: str = option("", "required value of that field")
    whitelist_json_field: tuple[str, ...] = option((), "field to forward; default: the whole message")
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    consumer_opt: tuple[str, ...] = option((), CONSUMER_OPT, kind=CLIENT_OPTIONS)
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)

    def check(self) -> None:
        if not self.topic or not self.channel:
            raise StartupError("--topic and --channel are required")
        if not all(map(is_valid_name, self.topic)):
            raise StartupError("--topic is invalid")
        if self.destination_topic and not is_valid_name(self.destination_topic):
            raise StartupError("--destination-topic is invalid")
        if not is_valid_name(self.channel):
            raise StartupError("--channel is invalid")
        flags.check_sources(self.nsqd_tcp_address, self.lookupd_http_address)
        flags.check_destinations(self.destination_nsqd_tcp_address, self.destination_lookupd_http_address)
        flags.check_addresses(
            (*self.nsqd_tcp_address, *self.destination_nsqd_tcp_address),
            (*self.lookupd_http_address, *self.destination_lookupd_http_address),
        )

    @property
    def must_connect(self) -> bool:
        return bool(self.nsqd_tcp_address)

    @property
    def destinations(self) -> tuple[str, ...]:
        """The names of the destinations: an nsqd each, or one for all that nsqlookupd lists. Each has a producer."""
        return self.destination_nsqd_tcp_address or (",".join(self.destination_lookupd_http_address),)

    @property
    def strategy(self) -> Strategy:
        return _BY_GROUP.get(self.mode) or STRATEGIES[self.mode]

    @property
    def filter(self) -> JsonFilter:
        return JsonFilter(self.require_json_field, self.require_json_value, self.whitelist_json_field)


class Forwarder:
    """Forwards each message to one of the destinations."""

    def __init__(self, options: Options, producers: list[Producer]) -> None:
        self._destinations = list(map(NsqdDestination, options.destinations, producers))
        self._destination = options.destination_topic
        self._filter = options.filter
        names = options.destinations
        pool = pool_of(options.strategy, len(names), Random(), name=lambda number: names[number])
        self._targets = Targets(names, pool, options.status_every)
        self.dropped = 0

    def handler(self, topic: str) -> Callable[[Message], Awaitable[None]]:
        """Return the handler of a topic's messages."""
        destination = self._destination or topic

        async def handle(message: Message) -> None:
            body = self._filter.apply(message.body)
            if isinstance(body, Dropped):
                self._drop(message, body)
                return
            try:
                await self._targets.send(
                    lambda number: self._destinations[number].pass_on(message, destination, body), place_of(message)
                )
            except NSQError as error:
                log.error("ERROR: message %s - %s", message.id, error)
                raise Requeue from error

        return handle

    def _drop(self, message: Message, reason: Dropped) -> None:
        self.dropped += 1
        if reason is Dropped.NOT_JSON:
            log.error("ERROR: %s: %s", reason, message.body.decode("utf-8", "backslashreplace"))
        elif reason is Dropped.NO_FIELD:
            log.error("ERROR: %s: message %s is dropped", reason, message.id)


async def run(options: Options, stop: trio.Event) -> int:
    consumer_config = client_config("nsq_to_nsq", options.consumer_opt, max_in_flight=options.max_in_flight)
    # Handlers wait for the answers to their publishes, so no answer is pending at the end.
    producer_config = client_config("nsq_to_nsq", options.producer_opt, drain_timeout=0.0)
    async with AsyncExitStack() as stack:
        opened = [open_producer(address, config=producer_config) for address in options.destination_nsqd_tcp_address]
        if options.destination_lookupd_http_address:
            opened.append(
                open_producer(
                    lookupd=options.destination_lookupd_http_address,
                    strategy=options.strategy,
                    config=producer_config,
                )
            )
        producers = [await stack.enter_async_context(producer) for producer in opened]
        forwarder = Forwarder(options, producers)
        async with trio.open_nursery() as nursery:
            for topic in dict.fromkeys(options.topic):
                forward = partial(
                    consume,
                    topic,
                    options.channel,
                    forwarder.handler(topic),
                    nsqd=options.nsqd_tcp_address,
                    lookupd=options.lookupd_http_address,
                    config=consumer_config,
                    concurrency=max(options.max_in_flight, 1),  # one publish can wait for its OK while others go on
                    stop=stop,
                )
                nursery.start_soon(forward)
    if forwarder.dropped:
        log.info("%d messages were dropped by the filter", forwarder.dropped)
    return 0


def main() -> int:
    return run_tool("nsq_to_nsq", Options, run, about=ABOUT)
