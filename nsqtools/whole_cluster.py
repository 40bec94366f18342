"""What nsq_dead and nsq_deferred share: they look at messages on all nsqd of a topic, and change them after a plan.

Before anything changes, the plan says what each nsqd would do. A node that does not answer is named, is never taken for
one that has nothing, and makes the exit status 3.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

import trio

from nsqcommon.durations import SECOND, Nanoseconds, seconds
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.command import ToolFailed, ToolOptions, run_until
from nsqtools.nodes import AskFailed, NodeQueries, Server, parse_server
from nsqtools.output import Output
from nsqtools.progress import Progress, with_progress

log = logging.getLogger(__name__)

NOT_ALL: Final = 3  # exit status
LOOKING: Final = ("list", "show")
_NO_RIGHT: Final[Mapping[str, str]] = {
    "UNAUTHORIZED": "the token is not known there; see --http-token-file",
    "FORBIDDEN": "the token gives no right to do this",
}

_is_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(ToolOptions):
    """The flags of both tools. Each says in its own words what some of them are about."""

    do: str = option("list", "what to do")
    topic: str = option("", "topic of the messages")
    channel: str = option("", "channel of the messages")
    nsqd_http_address: tuple[str, ...] = option((), flags.NSQD_HTTP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    http_token_file: str = option("", "file with the token that nsqd's file of rights knows")
    id: tuple[str, ...] = option((), "this message, 16 hex digits")
    limit: int = option(0, "most messages, of all nsqd together; 0: all")
    yes: bool = option(False, "do not ask")
    dry_run: bool = option(False, "only print the plan")
    quiet: bool = option(False, "show no progress")
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, flags.CONNECT_TIMEOUT, kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(5 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)

    def check_cluster(self, *more_addresses: str) -> None:
        """Check the flags of both tools. Raise StartupError."""
        flags.check_topic(self.topic)
        if self.channel:
            flags.check_channel(self.channel)
        flags.check_sources(self.nsqd_http_address, self.lookupd_http_address, kind="http")
        for address in (*self.nsqd_http_address, *self.lookupd_http_address, *more_addresses):
            flags.check_server(address)
        flags.check_timeouts(self.http_client_connect_timeout, self.http_client_request_timeout)
        if not all(map(_is_id, self.id)):
            raise StartupError("--id should have 16 hex digits")

    def queries(self, reasons: Mapping[str, str]) -> NodeQueries:
        return NodeQueries(
            connect_timeout=seconds(self.http_client_connect_timeout),
            request_timeout=seconds(self.http_client_request_timeout),
            token=token_in(self.http_token_file),
            reasons={**_NO_RIGHT, **reasons},
        )


class Absent(Exception):
    """An nsqd does not have the messages that are asked for; the message says what it lacks."""


@dataclass(slots=True)
class ClusterNodes(Generic[T]):
    """The nsqd that have the messages, what they said at the start, and what went wrong."""

    nodes: dict[Server, T] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def failed(self, error: object) -> None:
        self.failures.append(str(error))
        log.error("%s", error)

    @property
    def status(self) -> int:
        return NOT_ALL if self.failures else 0

    @property
    def exception(self) -> str:
        """What a sum has to say beside the figure."""
        return f", without what could not be asked ({len(self.failures)})" if self.failures else ""

    @property
    def silence(self) -> list[str]:
        """The lines of a plan about nodes that could not be asked."""
        return [f"no answer: {failure}" for failure in self.failures]


async def find(options: ClusterOptions, queries: NodeQueries, ask: Callable[[Server], Awaitable[T]]) -> ClusterNodes[T]:
    """Ask all nsqd of the topic. `ask` raises AskFailed, or Absent. Raise ToolFailed if there is nobody to ask."""
    servers, failures = await servers_with(
        queries, options.topic, nsqd=options.nsqd_http_address, lookupd=options.lookupd_http_address
    )
    cluster: ClusterNodes[T] = ClusterNodes()
    for failure in failures:
        cluster.failed(failure)
    found: dict[Server, T] = {}
    absent: list[str] = []

    async def ask_one(server: Server) -> None:
        try:
            found[server] = await ask(server)
        except Absent as error:
            absent.append(str(error))
        except AskFailed as error:
            cluster.failed(error)

    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(ask_one, server)
    if len(absent) == len(servers):
        raise ToolFailed(f"no nsqd has {absent[0]}")
    cluster.nodes = {server: found[server] for server in servers if server in found}
    return cluster


async def write_lines(lines: Iterable[str]) -> None:
    await Output().write("".join(f"{line}\n" for line in lines).encode())


async def carry_out(
    options: ClusterOptions,
    stop: trio.Event,
    work: Callable[[], Awaitable[None]],
    progress: Progress,
    *,
    plan: Sequence[str],
    question: str,
) -> bool | None:
    """Show the plan, ask, and do it. Return whether it came to its end; None: that was a dry run."""
    await write_lines(plan)
    if options.dry_run:
        return None
    if not await is_confirmed(question, verb=options.do, yes=options.yes):
        raise ToolFailed("nothing was done")
    return await with_progress(progress, lambda: run_until(stop, work))


async def run_verb(
    options: ClusterOptions, stop: trio.Event, work: Callable[[], Awaitable[int]], *, changing: Sequence[str]
) -> int:
    """Do it until it ends or is stopped. Return the exit status."""
    status = 0

    async def run() -> None:
        nonlocal status
        status = await work()

    try:
        ended = await run_until(stop, run, grace=1.0 if options.do in changing else 0.0)
    except AskFailed as error:
        raise ToolFailed(str(error)) from error
    return status if ended or options.do in LOOKING else NOT_ALL


def with_verb(arguments: Sequence[str], verbs: Sequence[str]) -> list[str]:
    """Return the arguments with a verb that comes first as the value of --do."""
    first = [f"--do={it}" if it in verbs else it for it in arguments[:1]]
    return [*first, *arguments[1:]]


def token_in(path: str) -> str:
    """Return the token in a file; "" without a path. Raise ToolFailed."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ToolFailed(f"cannot read {path}: {error}") from error


async def servers_with(
    queries: NodeQueries, topic: str, *, nsqd: Sequence[str], lookupd: Sequence[str]
) -> tuple[list[Server], list[AskFailed]]:
    """Return the given nsqd, or those that nsqlookupds list for the topic, and who could not be asked.

    These are nsqlookupds that gave no answer, and nsqd that had the topic and are not registered now. Raises ToolFailed
    if there is no nsqd to ask.
    """
    if not lookupd:
        return [parse_server(address) for address in nsqd], []
    # A token is for nsqd only.
    lookup = NodeQueries(connect_timeout=queries.connect_timeout, request_timeout=queries.request_timeout)
    lookupds = [parse_server(address) for address in lookupd]
    producers, failures = await lookup.producers(lookupds, topic)
    known = {producer.server for producer in producers}
    missing, silent = await lookup.missing(lookupds, topic)
    failures = failures or silent
    failures += [
        AskFailed(f"{it}: had the topic {topic} and is not registered now") for it in missing if it not in known
    ]
    if not producers:
        why = "".join(f"; {failure}" for failure in failures)
        raise ToolFailed(f"no nsqd has the topic {topic}{why}")
    return [producer.server for producer in producers], failures


async def is_confirmed(question: str, *, verb: str, yes: bool) -> bool:
    """Ask a person. Without a terminal, nobody is asked. Raise ToolFailed."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ToolFailed(f"nothing was done: use --yes to {verb} without being asked")
    sys.stderr.write(f"{question} Type yes: ")
    sys.stderr.flush()
    line: str = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.strip() == "yes"


def printable(text: str) -> str:
    """Escape what could move a terminal's cursor: clients choose keys and reasons."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
