"""nsq_deferred: list the deferred messages of a topic on all nsqd, take them back, or change when they are due.

Before anything changes, a plan says what each nsqd would do. A node that does not answer is named, is never taken for
one that has nothing, and makes the exit status 3. So does a named message that was not taken back.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final

import trio

from nsqcommon.durations import MILLISECOND, SECOND, Nanoseconds, parse_duration, seconds
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqcommon.wire.extensions import is_valid_key
from nsqtools import flags
from nsqtools.command import ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.deferred import Deferred, Name
from nsqtools.nodes import AskFailed, Queries, Server
from nsqtools.output import Output
from nsqtools.progress import Progress, with_progress
from nsqtools.whole_cluster import NOT_ALL, is_confirmed, printable, servers_with, token_in

log = logging.getLogger(__name__)

ABOUT: Final = """\
Usage: nsq_deferred list|show|cancel|due --topic=... [flags]

Deferred messages wait for their time in each channel of their topic. `list` counts them by channel and tells when the
next one is due, `show` prints them as JSON, the next one first. `cancel` takes messages back, so that they are never
delivered, and `due` makes them due after --defer. Choose deferred messages by --due-before and --due-after, or --all; or
name messages by --key or --id, also ones that are not deferred and wait for a consumer. Both verbs first show what each
nsqd would do, and ask.

Exit status 3: not everything was done or seen: an nsqd did not answer, refused, or had the topic and is not registered
now; a named message was not found, was buried, or a consumer had it; or cancel or due was stopped before the end."""

VERBS: Final = ("list", "show", "cancel", "due")
TAKING: Final = ("cancel", "due")

_is_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch
# A message in one of these states will not be delivered at the wrong time.
_AS_WANTED: Final = ("cancelled", "moved", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    do: str = option("list", "what to do, as does the first argument: " + ", ".join(VERBS))
    topic: str = option("", "topic of the messages")
    channel: str = option("", "only this channel; empty: all channels")
    nsqd_http_address: tuple[str, ...] = option((), flags.NSQD_HTTP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    http_token_file: str = option("", "file with the token that nsqd's file of rights knows")
    key: tuple[str, ...] = option((), "show, cancel, due: the message that was published with this key")
    id: tuple[str, ...] = option((), "show, cancel, due: this message, 16 hex digits")
    due_before: str = option(
        "", "show, cancel, due: only those due before this time (2026-03-01T12:00:00Z), or 1h (an hour from now)"
    )
    due_after: str = option("", "show, cancel, due: only those due at this time or later, written as --due-before")
    all: bool = option(False, "cancel, due: all deferred messages")
    limit: int = option(0, "show, cancel, due: most messages, counted in each channel, of all nsqd together; 0: all")
    defer: str = option("", "due: how long from now the messages are due; 0s: now")
    yes: bool = option(False, "cancel, due: do not ask")
    dry_run: bool = option(False, "cancel, due: only print the plan")
    quiet: bool = option(False, "show no progress")
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, flags.CONNECT_TIMEOUT, kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(5 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)

    def check(self) -> None:
        if self.do not in VERBS:
            raise StartupError(f"unknown {self.do!r}: one of {', '.join(VERBS)}")
        if not self.topic:
            raise StartupError("--topic required")
        flags.check_topic(self.topic)
        if self.channel:
            flags.check_channel(self.channel)
        flags.check_sources(self.nsqd_http_address, self.lookupd_http_address, kind="http")
        for address in (*self.nsqd_http_address, *self.lookupd_http_address):
            flags.check_server(address)
        flags.check_timeouts(self.http_client_connect_timeout, self.http_client_request_timeout)
        if not all(map(_is_id, self.id)):
            raise StartupError("--id should have 16 hex digits")
        if not all(is_valid_key(key.encode()) for key in self.key):
            raise StartupError("--key should have 1 to 64 printable characters of ASCII without space")
        now = datetime.now(UTC)
        due_time("due-before", self.due_before, now)
        due_time("due-after", self.due_after, now)
        if self.limit < 0:
            raise StartupError("--limit should not be negative")
        if self.do == "list" and (self.names or self.is_chosen or self.limit):
            raise StartupError("--key, --id, --due-before, --due-after and --limit are not for list")
        self._check_taking()

    def _check_taking(self) -> None:
        if self.do not in TAKING:
            if self.yes or self.dry_run or self.all or self.defer:
                raise StartupError("--all, --defer, --yes and --dry-run are for cancel and due")
            return
        if bool(self.names) + self.is_chosen + self.all != 1:
            raise StartupError(f"{self.do} needs --key or --id, or --due-before or --due-after, or --all")
        if self.names and self.limit:
            raise StartupError("use --limit or names of messages not both")
        if (self.do == "due") != bool(self.defer):
            raise StartupError("due needs --defer" if self.do == "due" else "--defer is for due")
        if self.defer:
            self.defer_ms()

    @property
    def names(self) -> list[Name]:
        return [
            *(Name("key", it, self.channel) for it in dict.fromkeys(self.key)),
            *(Name("id", it, self.channel) for it in dict.fromkeys(self.id)),
        ]

    @property
    def is_chosen(self) -> bool:
        """Whether messages are chosen by the time when they are due."""
        return bool(self.due_before or self.due_after)

    def defer_ms(self) -> int:
        """Return the delay of `due`. Raise StartupError."""
        try:
            delay = parse_duration(self.defer)
        except ValueError as error:
            raise StartupError(f"--defer: {error}") from error
        if delay < 0:
            raise StartupError("--defer should not be negative")
        return -(-delay // MILLISECOND)


def due_time(flag: str, text: str, now: datetime) -> float | None:
    """Return nanoseconds since 1970, or None without a text. Raise StartupError."""
    if not text:
        return None
    try:
        if "-" in text[1:]:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                raise ValueError
        else:
            found = now + timedelta(microseconds=parse_duration(text) / 1000)
    except (ValueError, OverflowError):
        raise StartupError(f"--{flag} should be a time (2026-03-01T12:00:00Z), or 1h (an hour from now)") from None
    return found.timestamp() * 1e9


class Choice:
    """Which of the deferred messages are meant."""

    def __init__(self, options: Options, now: datetime) -> None:
        self._before = due_time("due-before", options.due_before, now) or inf
        self._after = due_time("due-after", options.due_after, now) or -inf
        self._keys, self._ids = set(options.key), set(options.id)

    def is_behind(self, message: dict[str, Any]) -> bool:
        """Return whether this message and all later ones are due too late."""
        return bool(message["due"] >= self._before)

    def has(self, message: dict[str, Any]) -> bool:
        if (self._keys or self._ids) and message.get("key") not in self._keys and message.get("id") not in self._ids:
            return False
        return bool(self._after <= message["due"] < self._before)


@dataclass(slots=True)
class Cluster:
    """The nsqd that have the topic, what they said at the start, and what went wrong."""

    nodes: dict[Server, tuple[Deferred, dict[str, int] | None]] = field(default_factory=dict)  # None: may not be read
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


async def find(options: Options, queries: Queries) -> Cluster:
    """Ask all nsqd of the topic how many messages are deferred. Raise ToolFailed if there is nobody to ask."""
    servers, failures = await servers_with(
        queries, options.topic, nsqd=options.nsqd_http_address, lookupd=options.lookupd_http_address
    )
    cluster = Cluster()
    for failure in failures:
        cluster.failed(failure)
    found: dict[Server, tuple[Deferred, dict[str, int] | None]] = {}
    absent: list[str] = []

    async def ask(node: Deferred) -> None:
        try:
            counts = await node.counts()
        except AskFailed as error:
            if (
                error.status == 403 and options.key and not options.id
            ):  # a publisher may take back what it has the key of
                found[node.server] = node, None
            else:
                cluster.failed(error)
            return
        if counts is None:
            absent.append(f"the topic {options.topic}")
        elif options.channel and options.channel not in counts:
            absent.append(f"the channel {options.channel} of {options.topic}")
        else:
            found[node.server] = node, {it: n for it, n in counts.items() if options.channel in ("", it)}

    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(ask, Deferred(queries, server, options.topic))
    if len(absent) == len(servers):
        raise ToolFailed(f"no nsqd has {absent[0]}")
    cluster.nodes = {server: found[server] for server in servers if server in found}
    return cluster


# list, show


async def listed(cluster: Cluster) -> list[str]:
    lines, total = [], 0
    for server, (node, counts) in cluster.nodes.items():
        for channel, count in (counts or {}).items():
            total += count
            try:
                page = await node.page(channel, limit=1) if count else []
            except AskFailed as error:
                cluster.failed(error)
                page = []
            due = f"  next due {_time(page[0]['due'])}" if page else ""
            lines.append(f"{server}  {channel}  {count} deferred{due}")
        if not counts:
            lines.append(f"{server}  no channel")
    return [*lines, f"{total} deferred{cluster.exception}"]


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).isoformat().replace("+00:00", "Z")


async def chosen(
    options: Options, choice: Choice, cluster: Cluster
) -> AsyncGenerator[tuple[Deferred, str, dict[str, Any]], None]:
    """Yield the deferred messages that are meant, with node and channel. A node that fails meanwhile is noted."""
    left = options.limit or inf
    for node, counts in cluster.nodes.values():
        try:
            for channel in counts or {}:
                async with aclosing(node.messages(channel)) as messages:
                    async for message in messages:
                        if left <= 0 or choice.is_behind(message):
                            break
                        if choice.has(message):
                            left -= 1
                            yield node, channel, message
        except AskFailed as error:
            cluster.failed(error)


async def show(options: Options, cluster: Cluster) -> None:
    output = Output()
    async with aclosing(chosen(options, Choice(options, datetime.now(UTC)), cluster)) as found:
        async for node, channel, message in found:
            line = {"node": str(node.server), "channel": channel, **message}
            await output.write(json.dumps(line).encode() + b"\n")


# cancel, due

Job = list[tuple[Deferred, list[Name]]]


async def planned(options: Options, cluster: Cluster) -> Job:
    """Return what each node would be asked to take."""
    if options.names:
        return [(node, options.names) for node, _ in cluster.nodes.values()]
    names: dict[Server, list[Name]] = {server: [] for server in cluster.nodes}
    async with aclosing(chosen(options, Choice(options, datetime.now(UTC)), cluster)) as found:
        async for node, channel, message in found:
            if "id" in message:
                names[node.server].append(Name("id", message["id"], channel))
            else:
                cluster.failed(f"{node.server}: message {message.get('sequence')} of {channel} cannot be read")
    return [(node, names[server]) for server, (node, _) in cluster.nodes.items()]


def plan(options: Options, cluster: Cluster, job: Job) -> list[str]:
    lines = []
    for node, names in job:
        counts = cluster.nodes[node.server][1]
        has = f"{sum(counts.values())} deferred" if counts is not None else "may not be counted"
        what = f"up to {len(names)} named" if options.names else f"{len(names)}"
        lines.append(f"{node.server}  {has}  {options.do} {what}")
    return lines + [f"no answer: {failure}" for failure in cluster.failures]


@dataclass(slots=True)
class Done:
    """What happened to the messages."""

    channels: Counter[str] = field(default_factory=Counter)  # by how a message was found there
    found: set[Name] = field(default_factory=set)


async def take_all(options: Options, cluster: Cluster, job: Job, done: Done, progress: Progress) -> None:
    """Have one node after the other do it. A node that fails is not asked for the rest."""
    defer_ms = options.defer_ms() if options.do == "due" else 0
    for node, names in job:
        for number, name in enumerate(names):
            try:
                counts = await (node.cancel(name) if options.do == "cancel" else node.due(name, defer_ms))
            except AskFailed as error:
                left = len(names) - number - 1
                cluster.failed(f"{error}{f'; {left} more messages were not asked for there' if left else ''}")
                progress.done += left + 1
                break
            if counts is not None:
                done.channels.update(counts)
                done.found.add(name)
            progress.done += 1


async def take(options: Options, cluster: Cluster, stop: trio.Event) -> int:
    job = await planned(options, cluster)
    output = Output()
    await output.write("".join(f"{line}\n" for line in plan(options, cluster, job)).encode())
    if options.dry_run:
        return cluster.status
    verb = {"cancel": "take back", "due": "move"}[options.do]
    if not await is_confirmed(f"{verb} these messages?", verb=options.do, yes=options.yes):
        raise ToolFailed("nothing was done")
    done = Done()
    progress = Progress(sum(len(names) for _, names in job), quiet=options.quiet)
    ended = await with_progress(
        progress, lambda: run_until(stop, lambda: take_all(options, cluster, job, done, progress))
    )
    missing = [name for name in options.names if name not in done.found]
    await output.write("".join(f"{line}\n" for line in report(options, cluster, done, missing)).encode())
    if not ended:
        log.warning("stopped before the end")
    others = any(count for how, count in done.channels.items() if how not in _AS_WANTED)
    return NOT_ALL if not ended or missing or others else cluster.status


def report(options: Options, cluster: Cluster, done: Done, missing: list[Name]) -> list[str]:
    first = "cancelled" if options.do == "cancel" else "moved"
    others = [f"{count} {how.replace('_', ' ')}" for how, count in done.channels.items() if count and how != first]
    lines = [", ".join([f"{done.channels[first]} {first}", *others]) + cluster.exception]
    return lines + [f"not found: {printable(str(name))}" for name in missing]


async def run(options: Options, stop: trio.Event) -> int:
    queries = Queries(
        connect_timeout=seconds(options.http_client_connect_timeout),
        request_timeout=seconds(options.http_client_request_timeout),
        token=token_in(options.http_token_file),
    )
    status = 0

    async def work() -> None:
        nonlocal status
        cluster = await find(options, queries)
        match options.do:
            case "list":
                lines = await listed(cluster)
                await Output().write("".join(f"{line}\n" for line in lines).encode())
            case "show":
                await show(options, cluster)
            case _:
                status = await take(options, cluster, stop)
                return
        status = cluster.status

    ended = await run_until(stop, work, grace=1.0 if options.do in TAKING else 0.0)
    return status if ended or options.do not in TAKING else NOT_ALL


def main() -> int:
    argv = sys.argv[1:]
    if argv and argv[0] in VERBS:
        argv[0] = f"--do={argv[0]}"
    return run_tool("nsq_deferred", Options, run, argv=argv, about=ABOUT)
