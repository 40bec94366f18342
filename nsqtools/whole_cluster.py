"""Shared by nsq_dead and nsq_deferred: list messages on all nsqd of a topic, and change them according to a plan.

Before anything changes, the plan shows what each nsqd would do. A node that doesn't answer is named, never counts as
empty, and makes the exit status 3.
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
    "UNAUTHORIZED": "unknown token; see --http-token-file",
    "FORBIDDEN": "the token has no permission for this",
}

_is_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(ToolOptions):
    """The flags of both tools. Each tool overrides some help texts."""

    do: str = option("list", "command")
    topic: str = option("", "topic of the messages")
    channel: str = option("", "channel of the messages")
    nsqd_http_address: tuple[str, ...] = option((), flags.NSQD_HTTP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    http_token_file: str = option("", "file with a token from nsqd's file of rights")
    id: tuple[str, ...] = option((), "the message with this id, 16 hex digits")
    limit: int = option(0, "maximum number of messages from all nsqd together; 0: all")
    yes: bool = option(False, "don't ask")
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
    """An nsqd doesn't have the requested messages. The text says what is missing."""


@dataclass(slots=True)
class ClusterNodes(Generic[T]):
    """The nsqd that have the messages, their first answers, and the failures."""

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
        """The remark after a sum, if it is incomplete."""
        return f", incomplete (failures: {len(self.failures)})" if self.failures else ""

    @property
    def silence(self) -> list[str]:
        """The lines of a plan about nodes without an answer."""
        return [f"no answer: {failure}" for failure in self.failures]


async def find(options: ClusterOptions, queries: NodeQueries, ask: Callable[[Server], Awaitable[T]]) -> ClusterNodes[T]:
    """Ask all nsqd of the topic. `ask` raises AskFailed or Absent. Raise ToolFailed if there is no nsqd."""
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
    """Show the plan, ask, and execute it. Return True if it was completed; None after a dry run."""
    await write_lines(plan)
    if options.dry_run:
        return None
    if not await is_confirmed(question, verb=options.do, yes=options.yes):
        raise ToolFailed("nothing was done")
    return await with_progress(progress, lambda: run_until(stop, work))


async def run_verb(
    options: ClusterOptions, stop: trio.Event, work: Callable[[], Awaitable[int]], *, changing: Sequence[str]
) -> int:
    """Run the command until it ends or is stopped. Return the exit status."""
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
    """Turn a leading verb in the arguments into the value of --do."""
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
    """Return the given nsqd, or the nsqd that nsqlookupds list for the topic, and the failures.

    Failures are nsqlookupds without an answer, and nsqd that had the topic and are no longer registered. Raises
    ToolFailed if there is no nsqd to ask.
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
        AskFailed(f"{it}: had the topic {topic} and is no longer registered") for it in missing if it not in known
    ]
    if not producers:
        why = "".join(f"; {failure}" for failure in failures)
        raise ToolFailed(f"no nsqd has the topic {topic}{why}")
    return [producer.server for producer in producers], failures


async def is_confirmed(question: str, *, verb: str, yes: bool) -> bool:
    """Ask the user. Raise ToolFailed without a terminal, or if the answer isn't yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ToolFailed(f"nothing was done: use --yes to {verb} without a question")
    sys.stderr.write(f"{question} Type yes: ")
    sys.stderr.flush()
    line: str = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.strip() == "yes"


def printable(text: str) -> str:
    """Escape what could move a terminal's cursor: clients choose keys and reasons."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
