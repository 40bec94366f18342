"""nsq_deferred: list a topic's deferred messages on all nsqd, cancel them, or change their due time.

If a named message could not be cancelled, the exit status is 3.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.durations import MILLISECOND, parse_long_duration
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.wire.extensions import is_valid_key
from nsqtools.command import run_tool
from nsqtools.deferred import REASONS, DeferredMessages, Name
from nsqtools.nodes import AskFailed, NodeQueries, Server
from nsqtools.output import Output
from nsqtools.progress import Progress
from nsqtools.whole_cluster import (
    NOT_ALL,
    Absent,
    ClusterNodes,
    ClusterOptions,
    carry_out,
    find,
    printable,
    run_verb,
    with_verb,
    write_lines,
)

if TYPE_CHECKING:
    import trio


log = logging.getLogger(__name__)

ABOUT: Final = """\
Usage: nsq_deferred list|show|cancel|due --topic=... [flags]

Deferred messages wait for their time in each channel of their topic. `list` counts them by channel and shows when the
next one is due, `show` prints them as JSON, the next one first. `cancel` removes messages before they are delivered,
and `due` makes them due after --defer. Choose deferred messages with --due-before and --due-after, or --all; or name
messages with --key or --id, even if they are not deferred and wait for a consumer. Both verbs first show the plan for
each nsqd, and ask.

Exit status 3: the result is incomplete: an nsqd did not answer, refused, or had the topic and is no longer
registered; a named message was not found, was buried, or a consumer had it; or you stopped cancel or due before the
end."""

VERBS: Final = ("list", "show", "cancel", "due")
TAKING: Final = ("cancel", "due")

# In one of these states, a message won't be delivered at the wrong time.
_AS_WANTED: Final = ("cancelled", "moved", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ClusterOptions):
    do: str = option("list", "command, instead of the first argument: " + ", ".join(VERBS))
    channel: str = option("", "only this channel; empty: all channels")
    key: tuple[str, ...] = option((), "show, cancel, due: the message with this key")
    id: tuple[str, ...] = option((), "show, cancel, due: the message with this id, 16 hex digits")
    due_before: str = option(
        "", "show, cancel, due: only messages due before this time (2026-03-01T12:00:00Z), or 1h (an hour from now)"
    )
    due_after: str = option("", "show, cancel, due: only messages due at this time or later, written like --due-before")
    all: bool = option(False, "cancel, due: all deferred messages")
    limit: int = option(0, "show, cancel, due: maximum number of messages per channel, from all nsqd; 0: all")
    defer: str = option("", "due: new delay from now; 0s: now")
    yes: bool = option(False, "cancel, due: don't ask")
    dry_run: bool = option(False, "cancel, due: only print the plan")

    def check(self) -> None:
        if self.do not in VERBS:
            raise StartupError(f"unknown {self.do!r}: one of {', '.join(VERBS)}")
        if not self.topic:
            raise StartupError("--topic required")
        self.check_cluster()
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
        """True if messages are chosen by due time."""
        return bool(self.due_before or self.due_after)

    def defer_ms(self) -> int:
        """Return the delay of `due`. Raise StartupError."""
        try:
            delay = parse_long_duration(self.defer)
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
            found = now + timedelta(microseconds=parse_long_duration(text) / 1000)
    except (ValueError, OverflowError):
        raise StartupError(f"--{flag} should be a time (2026-03-01T12:00:00Z), or 1h (an hour from now)") from None
    return found.timestamp() * 1e9


class Choice:
    """The selection of deferred messages."""

    def __init__(self, options: Options, now: datetime) -> None:
        self._before = due_time("due-before", options.due_before, now) or inf
        self._after = due_time("due-after", options.due_after, now) or -inf
        self._keys, self._ids = set(options.key), set(options.id)

    def is_behind(self, message: dict[str, Any]) -> bool:
        """Return True if this message and all later ones are due too late."""
        return bool(message["due"] >= self._before)

    def has(self, message: dict[str, Any]) -> bool:
        if (self._keys or self._ids) and message.get("key") not in self._keys and message.get("id") not in self._ids:
            return False
        return bool(self._after <= message["due"] < self._before)


Nodes = ClusterNodes[
    tuple[DeferredMessages, dict[str, int] | None]
]  # with the count of each channel; None: no permission to read


async def find_deferred(options: Options, queries: NodeQueries) -> Nodes:
    """Ask all nsqd of the topic how many messages are deferred. Raise ToolFailed if there is no nsqd."""

    async def ask(server: Server) -> tuple[DeferredMessages, dict[str, int] | None]:
        node = DeferredMessages(queries, server, options.topic)
        try:
            counts = await node.counts()
        except AskFailed as error:
            if error.status == 403 and options.key and not options.id:
                return node, None  # a publisher may cancel messages by key
            raise
        if counts is None:
            raise Absent(f"the topic {options.topic}")
        if options.channel and options.channel not in counts:
            raise Absent(f"the channel {options.channel} of {options.topic}")
        return node, {it: count for it, count in counts.items() if options.channel in ("", it)}

    return await find(options, queries, ask)


# list, show


async def listed(cluster: Nodes) -> list[str]:
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
    options: Options, choice: Choice, cluster: Nodes
) -> AsyncGenerator[tuple[DeferredMessages, str, dict[str, Any]], None]:
    """Yield the selected messages with node and channel. A node that fails is recorded."""
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


async def show(options: Options, cluster: Nodes) -> None:
    output = Output()
    async with aclosing(chosen(options, Choice(options, datetime.now(UTC)), cluster)) as found:
        async for node, channel, message in found:
            line = {"node": str(node.server), "channel": channel, **message}
            await output.write(json.dumps(line).encode() + b"\n")


# cancel, due

Job = list[tuple[DeferredMessages, list[Name]]]


async def planned(options: Options, cluster: Nodes) -> Job:
    """Return the plan for each node."""
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


def plan(options: Options, cluster: Nodes, job: Job) -> list[str]:
    lines = []
    for node, names in job:
        counts = cluster.nodes[node.server][1]
        has = f"{sum(counts.values())} deferred" if counts is not None else "may not be counted"
        what = f"up to {len(names)} named" if options.names else f"{len(names)}"
        lines.append(f"{node.server}  {has}  {options.do} {what}")
    return lines + cluster.silence


@dataclass(slots=True)
class Done:
    """What happened to the messages."""

    channels: Counter[str] = field(default_factory=Counter)  # by state of the message
    found: set[Name] = field(default_factory=set)


async def take_all(options: Options, cluster: Nodes, job: Job, done: Done, progress: Progress) -> None:
    """Execute the plan, one node after another. If a node fails, its remaining messages are skipped."""
    defer_ms = options.defer_ms() if options.do == "due" else 0
    for node, names in job:
        for number, name in enumerate(names):
            try:
                counts = await (node.cancel(name) if options.do == "cancel" else node.due(name, defer_ms))
            except AskFailed as error:
                left = len(names) - number - 1
                cluster.failed(f"{error}{f'; {left} more messages skipped there' if left else ''}")
                progress.done += left + 1
                break
            if counts is not None:
                done.channels.update(counts)
                done.found.add(name)
            progress.done += 1


async def take(options: Options, cluster: Nodes, stop: trio.Event) -> int:
    job, done = await planned(options, cluster), Done()
    progress = Progress(sum(len(names) for _, names in job), quiet=options.quiet)
    question = f"{'cancel' if options.do == 'cancel' else 'move'} these messages?"
    work = partial(take_all, options, cluster, job, done, progress)
    ended = await carry_out(options, stop, work, progress, plan=plan(options, cluster, job), question=question)
    if ended is None:
        return cluster.status
    missing = [name for name in options.names if name not in done.found]
    await write_lines(report(options, cluster, done, missing))
    if not ended:
        log.warning("stopped before the end")
    others = any(count for how, count in done.channels.items() if how not in _AS_WANTED)
    return NOT_ALL if not ended or missing or others else cluster.status


def report(options: Options, cluster: Nodes, done: Done, missing: list[Name]) -> list[str]:
    first = "cancelled" if options.do == "cancel" else "moved"
    others = [f"{count} {how.replace('_', ' ')}" for how, count in done.channels.items() if count and how != first]
    lines = [", ".join([f"{done.channels[first]} {first}", *others]) + cluster.exception]
    return lines + [f"not found: {printable(str(name))}" for name in missing]


async def run(options: Options, stop: trio.Event) -> int:
    queries = options.queries(REASONS)

    async def work() -> int:
        cluster = await find_deferred(options, queries)
        match options.do:
            case "list":
                await write_lines(await listed(cluster))
            case "show":
                await show(options, cluster)
            case _:
                return await take(options, cluster, stop)
        return cluster.status

    return await run_verb(options, stop, work, changing=TAKING)


def main() -> int:
    return run_tool("nsq_deferred", Options, run, argv=with_verb(sys.argv[1:], VERBS), about=ABOUT)
