"""nsq_dead: list a channel's buried messages on all nsqd, and kick, discard or export them.

Nodes take turns, so that a limit and a rate apply to all of them together. nsqd runs long jobs itself: they go on if
you stop this tool.
"""

from __future__ import annotations

import json
import logging
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

import trio

from nsqclient import NSQError, open_producer
from nsqcommon.disk_sync import sync_all
from nsqcommon.durations import SECOND, Nanoseconds
from nsqcommon.net import join_host_port
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.client_flags import CLIENT_OPTIONS, PRODUCER_OPT, client_config
from nsqtools.command import ToolFailed, run_tool
from nsqtools.dead import NO_CHANNEL, REASONS, BuriedTotals, DeadLetters, JobProgress
from nsqtools.history import parse_position
from nsqtools.nodes import AskFailed, NodeQueries, Server, tcp_port_in
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

log = logging.getLogger(__name__)

ABOUT: Final = """\
Usage: nsq_dead list|show|kick|discard|stop|export --topic=... --channel=... [flags]

Buried messages have failed for good, and stay in their channel. `list` counts them by reason, `show` prints them as
JSON, `kick` gives them back to the channel, `discard` drops them forever, `stop` ends a running kick or discard, and
`export` copies them into a file or a topic and changes nothing. Kick and discard first show the plan for each nsqd, and
ask; nsqd work one after the other. If you stop the tool, the nsqd that is working goes on.

Exit status 3: the result is incomplete: an nsqd did not answer, refused, or had the topic and is no longer
registered; a body could not be read; or you stopped the tool before a job had ended."""

VERBS: Final = ("list", "show", "kick", "discard", "stop", "export")
TAKING: Final = ("kick", "discard")
_PAGE: Final = 100
_ASK_AGAIN: Final = 0.5  # seconds between two queries of a job
_LONGEST_SILENCE: Final = 30.0  # seconds that a working node may be silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ClusterOptions):
    do: str = option("list", "command, instead of the first argument: " + ", ".join(VERBS))
    topic: str = option("", "topic of the channel")
    channel: str = option("", "channel of the buried messages")
    reason: str = option("", "only messages whose reason contains this text")
    before: str = option(
        "", "kick, discard: only messages buried before this time (2026-03-01T12:00:00Z), or 1h (an hour ago)"
    )
    id: tuple[str, ...] = option((), "kick, discard: the message with this id, 16 hex digits")
    rate: float = option(0.0, "kick, discard: maximum messages per second; 0: as fast as nsqd can")
    force: bool = option(False, "kick: even if that exceeds the policy file's limit for the channel")
    yes: bool = option(False, "kick, discard: don't ask")
    dry_run: bool = option(False, "kick, discard: only print the plan")
    output_file: str = option("", "export: file to create, with a JSON object per line")
    destination_topic: str = option("", "export: topic to publish the bodies into")
    destination_nsqd_tcp_address: tuple[str, ...] = option(
        (), "export: TCP address of an nsqd to publish to, host:port"
    )
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)
    http_client_request_timeout: Nanoseconds = option(30 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)

    def check(self) -> None:
        if self.do not in VERBS:
            raise StartupError(f"unknown command {self.do!r}: one of {', '.join(VERBS)}")
        if not self.topic or not self.channel:
            raise StartupError("--topic and --channel required")
        self.check_cluster(*self.destination_nsqd_tcp_address)
        if self.limit < 0 or self.rate < 0:
            raise StartupError("--limit and --rate should not be negative")
        if self.id and (self.limit or self.rate or self.reason or self.before):
            raise StartupError("use --id or a selection not both")
        if self.do not in TAKING and (self.id or self.before or self.rate or self.yes or self.dry_run):
            raise StartupError("--id, --before, --rate, --yes and --dry-run are for kick and discard")
        if self.force and self.do != "kick":
            raise StartupError("--force is for kick")
        if self.do in ("list", "stop") and (self.reason or self.limit):
            raise StartupError(f"--reason and --limit are not for {self.do}")
        if self.before in ("earliest", "latest") or self.before.isdecimal():
            raise StartupError("--before should be a time (2026-03-01T12:00:00Z), or 1h (an hour ago)")
        if self.before:
            parse_position("before", self.before, datetime.now(UTC))
        self._check_export()

    def _check_export(self) -> None:
        if self.do == "export" and bool(self.output_file) == bool(self.destination_topic):
            raise StartupError("export needs --output-file or --destination-topic")
        if self.destination_topic:
            flags.check_topic(self.destination_topic)


Nodes = ClusterNodes[tuple[DeadLetters, BuriedTotals]]


async def find_buried(options: Options, queries: NodeQueries) -> Nodes:
    """Ask all nsqd of the topic for their buried messages. Raise ToolFailed if there is no nsqd."""

    async def ask(server: Server) -> tuple[DeadLetters, BuriedTotals]:
        node = DeadLetters(queries, server, options.topic, options.channel)
        try:
            return node, await node.summary()
        except AskFailed as error:
            if error.code in NO_CHANNEL:
                raise Absent(f"the channel {options.channel} of {options.topic}") from error
            raise

    return await find(options, queries, ask)


# list


def listed(cluster: Nodes) -> list[str]:
    lines = []
    reasons: Counter[str] = Counter()
    for server, (_, it) in cluster.nodes.items():
        job = f"  {it.job.verb} running, {it.job.done} done" if it.job is not None else ""
        lines.append(f"{server}  {it.count} buried{job}{f'  paused: {it.paused_why}' if it.paused_why else ''}")
        for reason, _, count in it.reasons:
            reasons[reason] += count
        if it.others:
            reasons["(other reasons)"] += it.others
    lines.append(f"{sum(it.count for _, it in cluster.nodes.values())} messages{cluster.exception}")
    lines += [f"{count:8}  {printable(reason)}" for reason, count in reasons.most_common()]
    return lines


# show, export


async def messages(options: Options, cluster: Nodes) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the buried messages, node by node. A node that fails is recorded."""
    left = options.limit or inf
    for node, _ in cluster.nodes.values():
        after: int | None = None
        is_over = False
        while not is_over and left > 0:
            size = int(min(_PAGE, left))
            try:
                page = await node.page(after=after, limit=size, reason=options.reason)
            except AskFailed as error:
                cluster.failed(error)
                break
            for message in page:
                after = message["sequence"]
                yield {"node": str(node.server), **message}
            left -= len(page)
            is_over = len(page) < size


def json_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def show(options: Options, cluster: Nodes) -> None:
    output = Output()
    async with aclosing(messages(options, cluster)) as found:
        async for message in found:
            await output.write(json_line(message))


async def export_to_file(options: Options, cluster: Nodes) -> int:
    path, count = Path(options.output_file), 0
    try:
        async with await trio.open_file(path, "xb") as file, aclosing(messages(options, cluster)) as found:
            async for message in found:
                _note_unread(message, cluster)
                await file.write(json_line(message))
                count += 1
            await file.flush()
            await trio.to_thread.run_sync(sync_all, file.fileno())  # the user may discard after the export
    except OSError as error:
        raise ToolFailed(f"cannot write {path}: {error.strerror}") from error
    return count


async def export_to_topic(options: Options, queries: NodeQueries, cluster: Nodes) -> int:
    """Publish the bodies. If the connection breaks, a message may be published twice."""
    count = 0
    try:
        addresses = list(options.destination_nsqd_tcp_address) or [
            join_host_port(server.host, await queries.ask(server, "/info", tcp_port_in)) for server in cluster.nodes
        ]
        config = client_config("nsq_dead", options.producer_opt, drain_timeout=0.0)
        async with (
            open_producer(addresses, config=config, retry="anywhere", connect="require") as producer,
            aclosing(messages(options, cluster)) as found,
        ):
            async for message in found:
                if not _note_unread(message, cluster):
                    await producer.publish(options.destination_topic, body_of(message))
                    count += 1
    except (AskFailed, NSQError) as error:
        raise ToolFailed(str(error)) from error
    return count


def _note_unread(message: dict[str, Any], cluster: Nodes) -> bool:
    if "unread" in message:
        cluster.failed(f"{message['node']}: message {message['sequence']} without its body: {message['unread']}")
    return "unread" in message


def body_of(message: dict[str, Any]) -> bytes:
    return b64decode(message["body_base64"]) if "body_base64" in message else str(message["body"]).encode()


# kick, discard


def plan(options: Options, cluster: Nodes) -> list[str]:
    """Return the plan for each node, in order."""
    lines, left = [], options.limit
    for server, (_, it) in cluster.nodes.items():
        most, is_exact = expected(options, it)
        if options.limit:
            most = min(most, left)
            left -= most
        at_most = "" if is_exact else "at most "
        busy = f" (not now: a {it.job.verb} is running)" if it.job is not None and not options.id else ""
        lines.append(
            f"{server}  {it.count} buried  {options.do} {at_most}{most}{busy}{_lack_of_room(options, it, most)}"
        )
    return lines + cluster.silence


def _lack_of_room(options: Options, summary: BuriedTotals, most: int) -> str:
    if options.do != "kick" or summary.room is None or most <= summary.room:
        return ""
    so = "new messages are dropped until these are consumed" if options.force else "refused without --force"
    return f" (the channel has room for {summary.room}: {so})"


def expected(options: Options, summary: BuriedTotals) -> tuple[int, bool]:
    """Return how many messages of this selection a node has, and whether that is exact."""
    if options.id:
        return min(len(options.id), summary.count), False
    count = summary.most_with(options.reason) if options.reason else summary.count
    return count, not options.before and not (options.reason and summary.others)


async def take_all(options: Options, cluster: Nodes, progress: Progress) -> None:
    """Execute the plan, one node after another."""
    began = datetime.now(UTC)
    for node, _ in cluster.nodes.values():
        if options.limit and progress.done >= options.limit:
            return
        selection = {"reason": options.reason} if options.reason else {}
        if options.before:
            selection["before"] = parse_position("before", options.before, began)
        if options.limit:
            selection["limit"] = str(options.limit - progress.done)
        if options.rate:
            selection["rate"] = f"{options.rate:f}"
        if options.force:
            selection["force"] = "true"
        before = progress.done
        try:
            done, job = await node.take(options.do, selection, options.id)
            progress.done = before + done
            if job is not None:
                await watch(node, job, progress, before)
        except AskFailed as error:
            cluster.failed(error)


async def watch(node: DeadLetters, job: JobProgress, progress: Progress, before: int) -> None:
    """Wait for the node's job to end. Raise AskFailed if the node is silent too long, or has forgotten the job."""
    silent_since = trio.current_time()
    while True:
        await trio.sleep(_ASK_AGAIN)
        try:
            jobs = await node.jobs()
        except AskFailed:
            if trio.current_time() > silent_since + _LONGEST_SILENCE:
                raise
            continue
        silent_since = trio.current_time()
        found = next((it for it in jobs if it.started_at == job.started_at), None)
        if found is None:
            raise AskFailed(f"{node.server}: was restarted; its {job.verb} ended after an unknown number of messages")
        progress.done = before + found.done
        if found.has_ended:
            return


async def take(options: Options, cluster: Nodes, stop: trio.Event) -> int:
    total = sum(expected(options, it)[0] for _, it in cluster.nodes.values())
    progress = Progress(min(total, options.limit) if options.limit else total, quiet=options.quiet)
    question = f"{options.do} these messages{' FOR EVER' if options.do == 'discard' else ''}?"
    work = partial(take_all, options, cluster, progress)
    ended = await carry_out(options, stop, work, progress, plan=plan(options, cluster), question=question)
    if ended is None:
        return cluster.status
    done = {"kick": "kicked", "discard": "discarded"}[options.do]
    await write_lines([f"{progress.done} messages {done}{cluster.exception}"])
    if not ended:
        log.warning("stopped; a running job goes on in its nsqd: nsq_dead stop ends it")
    return cluster.status if ended else NOT_ALL


async def stop_jobs(cluster: Nodes) -> list[str]:
    lines = []
    for server, (node, _) in cluster.nodes.items():
        try:
            job = await node.stop_job()
        except AskFailed as error:
            cluster.failed(error)
        else:
            lines.append(f"{server}  " + (f"{job.verb} stopped, {job.done} done" if job is not None else "no job"))
    return lines


async def run(options: Options, stop: trio.Event) -> int:
    queries = options.queries(REASONS)

    async def work() -> int:
        cluster = await find_buried(options, queries)
        match options.do:
            case "list":
                await write_lines(listed(cluster))
            case "show":
                await show(options, cluster)
            case "stop":
                await write_lines(await stop_jobs(cluster))
            case "export":
                to_file = bool(options.output_file)
                export = export_to_file(options, cluster) if to_file else export_to_topic(options, queries, cluster)
                await write_lines([f"{await export} messages exported{cluster.exception}"])
            case _:
                return await take(options, cluster, stop)
        return cluster.status

    return await run_verb(options, stop, work, changing=TAKING)


def main() -> int:
    return run_tool("nsq_dead", Options, run, argv=with_verb(sys.argv[1:], VERBS), about=ABOUT)
