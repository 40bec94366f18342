"""nsq_to_file: write every message of some topics to files, and finish it once it is on the disk.

This module has the settings, finds the topics, and starts a consumer and a writer (topic_archive.py) for each.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import trio

from nsqclient import Config, NSQError, open_consumer
from nsqcommon.durations import MINUTE, SECOND, Nanoseconds, seconds
from nsqcommon.entry import release_signals
from nsqcommon.logs import LogLevel, NsqFormatter
from nsqcommon.options import DURATION, one_of, option
from nsqcommon.startup import StartupError
from nsqcommon.wire.names import is_valid_name
from nsqtools import flags
from nsqtools.archive_file import ArchiveFailed, Layout, check_folders
from nsqtools.client_flags import CLIENT_OPTIONS, CONSUMER_OPT, client_config
from nsqtools.command import ToolFailed, ToolOptions, log_to_stderr, run_tool, run_until
from nsqtools.json_fields import list_in
from nsqtools.nodes import NodeQueries, parse_server
from nsqtools.rotation import FileNames, Rotation, file_names
from nsqtools.topic_archive import TopicArchive

log = logging.getLogger(__name__)

ABOUT: Final = """\
A message is finished once it is on the disk, so nsqd's message timeout has to be longer than --sync-interval. It may be
in the files twice, for example after a crash, and is retried forever, unless --consumer-opt sets max_attempts. SIGHUP
closes all files; the next message opens a new one. File names may contain <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV>.
If several processes write to the same folder, use different names (<PID> or --host-identifier)."""

_MOST_THREADS: Final = 16  # writing at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    log_level: str = option("info", "minimum level to log: debug, info, warn, error, or fatal")
    log_prefix: str = option("[nsq_to_file] ", "prefix of each log line")
    channel: str = option("nsq_to_file", "channel to consume")
    max_in_flight: int = option(200, "maximum number of messages in flight, that is, not yet on the disk")
    output_dir: str = option("/tmp", "folder for the files")
    work_dir: str = option("", "folder for files that are still being written; empty: --output-dir")
    datetime_format: str = option("%Y-%m-%d_%H", "replacement for <DATETIME>, with strftime codes")
    filename_format: str = option("<TOPIC>.<HOST><REV>.<DATETIME>.log", "file names")
    host_identifier: str = option("", "replacement for <HOST>; may contain <SHORT_HOST> and <HOSTNAME>")
    gzip: bool = option(False, "compress files")
    gzip_level: int = option(6, "compression level, 1 to 9")
    skip_empty_files: bool = option(False, "don't create files without messages")
    topic: tuple[str, ...] = option((), "topic to consume")
    topic_pattern: str = option("", "regular expression (Python's) that must match a part of the topic's name")
    topic_refresh: Nanoseconds = option(
        MINUTE, "how often to ask nsqlookupd for topics; 0 or less: only once", kind=DURATION
    )
    rotate_size: int = option(0, "start a new file above this many bytes; 0 or less: never")
    rotate_interval: Nanoseconds = option(0, "start a new file after this time; 0 or less: never", kind=DURATION)
    sync_interval: Nanoseconds = option(30 * SECOND, "maximum time until messages are on the disk", kind=DURATION)
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, flags.CONNECT_TIMEOUT, kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(5 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    consumer_opt: tuple[str, ...] = option((), CONSUMER_OPT, kind=CLIENT_OPTIONS)
    startup: str = option(
        "require", "if an nsqd can't be reached at the start: require exits, background waits for it",
        kind=one_of("require", "background"),
    )  # fmt: skip

    def check_first(self) -> None:
        try:
            LogLevel.parse(self.log_level)
        except ValueError as error:
            raise StartupError("--log-level is invalid") from error

    def check(self) -> None:
        if not self.channel:
            raise StartupError("--channel is required")
        flags.check_timeouts(self.http_client_connect_timeout, self.http_client_request_timeout)
        flags.check_sources(self.nsqd_tcp_address, self.lookupd_http_address, full_stop=".")
        if not 1 <= self.gzip_level <= 9:
            raise StartupError(f"invalid --gzip-level value ({self.gzip_level}), should be 1-9")
        if not self.topic and not self.topic_pattern:
            raise StartupError("--topic or --topic-pattern required")
        if not self.topic and not self.lookupd_http_address:
            raise StartupError("--lookupd-http-address must be specified when no --topic specified")
        if self.sync_interval <= 0:
            raise StartupError("--sync-interval should be positive")
        flags.check_channel(self.channel)
        for topic in self.topic:
            flags.check_topic(topic)
        flags.check_addresses(self.nsqd_tcp_address, self.lookupd_http_address)
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise StartupError(f"--topic-pattern is not a regular expression: {error}") from error
        try:
            self.names("topic")
        except ValueError as error:
            raise StartupError(str(error)) from error

    @property
    def must_connect(self) -> bool:
        return bool(self.nsqd_tcp_address) and self.startup == "require"

    @property
    def layout(self) -> Layout:
        return Layout(
            output_dir=self.output_dir,
            work_dir=self.work_dir or self.output_dir,
            gzip=self.gzip,
            gzip_level=self.gzip_level,
            exclusive=self.gzip or self.rotate_interval > 0,
            rotate_size=self.rotate_size,
        )

    def names(self, topic: str) -> FileNames:
        """Return the names of a topic's files. Raise ValueError."""
        layout = self.layout
        return file_names(
            self.filename_format,
            self.datetime_format,
            topic=topic,
            host=platform.node(),
            host_identifier=self.host_identifier,
            pid=os.getpid(),
            gzip=self.gzip,
            has_revisions=layout.exclusive or layout.moves or self.rotate_size > 0,
        )


class TopicLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the topic and the channel to each line of the log."""

    def process(self, msg: object, kwargs: Any) -> tuple[str, Any]:
        assert self.extra is not None
        return f"[{self.extra['place']}] {msg}", kwargs


def local_time() -> datetime:
    return datetime.now().astimezone()


class Archive:
    """All topics being written."""

    def __init__(self, options: Options, config: Config, wall: Callable[[], datetime]) -> None:
        self._options = options
        self._config = config
        self._wall = wall
        self._layout = options.layout
        self._threads = trio.CapacityLimiter(_MOST_THREADS)
        self._topics: dict[str, TopicArchive | None] = {}  # None: not open yet
        self._not_matching: set[str] = set()
        self._is_stopping = False

    def claim(self, topic: str) -> bool:
        """Return True to start writing this topic, and mark it as started."""
        if topic in self._topics or topic in self._not_matching or self._is_stopping:
            return False
        pattern = self._options.topic_pattern
        if pattern and not re.search(pattern, topic):
            self._not_matching.add(topic)
            log.warning("skipping topic %s (doesn't match pattern %s)", topic, pattern)
            return False
        self._topics[topic] = None
        return True

    async def write(self, topic: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write a topic until `stop`. Raise ToolFailed."""
        options = self._options
        try:
            async with open_consumer(
                topic,
                options.channel,
                nsqd=options.nsqd_tcp_address,
                lookupd=options.lookupd_http_address,
                config=self._config,
                startup="require" if options.must_connect else "background",
            ) as consumer:
                self._topics[topic] = archive = TopicArchive(
                    consumer,
                    names=options.names(topic),
                    layout=self._layout,
                    rotation=Rotation(size=options.rotate_size, interval=seconds(options.rotate_interval)),
                    capacity=options.max_in_flight,
                    sync_interval=seconds(options.sync_interval),
                    skip_empty_files=options.skip_empty_files,
                    wall=self._wall,
                    threads=self._threads,
                    log=TopicLogger(log, {"place": f"{topic}/{options.channel}"}),
                )
                task_status.started()
                if self._is_stopping:
                    archive.stop()
                await archive.run()
        except NSQError as error:
            raise ToolFailed(str(error)) from error

    def stop(self) -> None:
        self._is_stopping = True
        for archive in self._topics.values():
            if archive is not None:
                archive.stop()

    async def hang_up_on_signal(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close all files at each SIGHUP."""
        with trio.open_signal_receiver(signal.SIGHUP) as arrivals:
            release_signals([signal.SIGHUP])
            task_status.started()
            async for _ in arrivals:
                for archive in self._topics.values():
                    if archive is not None:
                        archive.hang_up()


async def find_topics(options: Options, archive: Archive, nursery: trio.Nursery) -> None:
    """Start writing each topic as it appears in an nsqlookupd."""
    queries = NodeQueries(
        connect_timeout=seconds(options.http_client_connect_timeout),
        request_timeout=seconds(options.http_client_request_timeout),
    )
    lookupds = [parse_server(address) for address in options.lookupd_http_address]
    while True:
        answers, failures = await queries.ask_all(lookupds, "/topics", _topics)
        for failure in failures:
            log.error("could not retrieve topic list: %s", failure)
        for topic in sorted({topic for topics in answers.values() for topic in topics}):
            if archive.claim(topic):
                nursery.start_soon(archive.write, topic)
        if options.topic_refresh <= 0:
            return
        await trio.sleep(seconds(options.topic_refresh))


def _topics(answer: Any) -> list[str]:
    topics = list_in(answer, "topics")
    for topic in topics:
        if not isinstance(topic, str) or not is_valid_name(topic):
            raise ValueError(f"{topic!r} is not a topic")
    return topics


async def start_given_topics(options: Options, archive: Archive, nursery: trio.Nursery) -> None:
    """Start writing the topics of `--topic`."""
    for topic in options.topic:
        if archive.claim(topic):
            await nursery.start(archive.write, topic)


async def run(options: Options, stop: trio.Event, *, wall: Callable[[], datetime] = local_time) -> int:
    try:
        check_folders(options.layout)
    except ArchiveFailed as error:
        raise ToolFailed(str(error)) from error
    config = client_config(
        "nsq_to_file",
        options.consumer_opt,
        max_in_flight=options.max_in_flight,
        max_attempts=0,  # a message that has survived five crashes must still be archived
    )
    archive = Archive(options, config, wall)
    async with trio.open_nursery() as services:
        await services.start(archive.hang_up_on_signal)
        async with trio.open_nursery() as topics:
            await run_until(stop, partial(start_given_topics, options, archive, topics))
            if not options.topic:
                services.start_soon(find_topics, options, archive, topics)
            await stop.wait()
            archive.stop()
        services.cancel_scope.cancel()
    return 0


def configure_logging(options: Options) -> None:
    level = {
        LogLevel.DEBUG: logging.DEBUG,
        LogLevel.INFO: logging.INFO,
        LogLevel.WARN: logging.WARNING,
        LogLevel.ERROR: logging.ERROR,
        LogLevel.FATAL: logging.CRITICAL,
    }[LogLevel.parse(options.log_level)]
    log_to_stderr(NsqFormatter(options.log_prefix), level=level)


def main() -> int:
    return run_tool(
        "nsq_to_file", Options, run, about=ABOUT, left_held=[signal.SIGHUP], configure_logging=configure_logging
    )
