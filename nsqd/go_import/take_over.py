"""The import, step by step. It blocks on the disk; the data path is locked, and nothing else uses it yet.

    undo            remove the remains of an import that was killed
    survey          count the messages in Go's files, and find repeated ids
    marker: running
    topics          write and sync the logs
    journal         write a new file, which assigns messages to channels; renaming it makes the topics exist
    read back       compare logs and journal with Go's files
    marker: verified
    renames         give Go's files their new names
    marker: done

If it fails before the marker says `verified`, Go's files are untouched, and the next start imports again.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from nsqcommon.nsq_json import JsonError
from nsqcommon.startup import StartupError
from nsqd.broker.journal_replay import TopicState
from nsqd.broker.message_id import IdSource
from nsqd.go_import.go_queue import GoQueue
from nsqd.go_import.layout import LogLayout
from nsqd.go_import.log_writer import LogWriter
from nsqd.go_import.marker import MARKER, ImportStep, Marker, read_marker, write_marker
from nsqd.go_import.metadata import GoTopic, parse_metadata
from nsqd.go_import.queue_files import QueueFiles, find_queues, queue_name
from nsqd.go_import.read_back import ImportMismatch, digests_of, read_journal
from nsqd.go_import.records import SMALLEST, Digest, number_of
from nsqd.go_import.repeats import RepeatFilter, RepeatSurvey
from nsqd.log.data_path import NODE_JSON, FileCondition, Topology, write_log_json
from nsqd.log.files import error_text, remove_file
from nsqd.log.journal import format as journal_format
from nsqd.log.journal.own_changes import LogCheckpoint, checkpoint_change
from nsqd.log.journal.recovery import journal_name, journal_numbers
from nsqd.log.reading.refusals import patiently

if TYPE_CHECKING:
    from nsqd.broker.store import Entry
    from nsqd.log.data_path import DataPath
    from nsqd.log.files import Files

log = logging.getLogger(__name__)

METADATA: Final = "nsqd.dat"
_PROGRESS_EVERY: Final = 5.0  # seconds
_CHANGES_PER_FRAME: Final = 100
_ATTEMPTS_BITS: Final = 16
_MOST_ATTEMPTS: Final = (1 << _ATTEMPTS_BITS) - 1


@dataclass(slots=True)
class _Topic:
    """A topic being imported."""

    go: GoTopic
    queues: dict[str | None, GoQueue]  # by channel, in the order of the channels; None: the topic's own
    surveys: dict[str | None, RepeatSurvey] = field(default_factory=dict)
    counts: dict[str | None, int] = field(default_factory=dict)
    log_id: str = ""
    digests: dict[str | None, tuple[int, str]] = field(default_factory=dict)

    @property
    def layout(self) -> LogLayout:
        backlogs = {channel: number for channel, number in self.counts.items() if channel is not None}
        return LogLayout(self.go, backlogs, self.counts[None])


def take_over(
    data_path: DataPath,
    files: Files,
    *,
    begin: bool,
    node_id: int,
    max_msg_size: int,
    max_bytes_per_file: int,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Import a Go nsqd's files in the data path, if there are any. Raises StartupError.

    Without `begin`, don't start an import. An interrupted one is still finished if it was verified, and undone
    otherwise.
    """

    def run() -> None:
        importer = _Importer(data_path, files, node_id=node_id, max_msg_size=max_msg_size, max_bytes=max_bytes_per_file)
        importer.run(begin=begin)

    try:
        patiently(run, pause)  # each new try first undoes the last one
    except OSError as error:
        text = error_text("use", error.filename or data_path.folder, error)
        raise StartupError(f"failed to import from {METADATA}: {text}") from error


class _Importer:
    def __init__(self, data_path: DataPath, files: Files, *, node_id: int, max_msg_size: int, max_bytes: int) -> None:
        self._data_path = data_path
        self._folder = data_path.folder
        self._files = files
        self._largest = max_msg_size + SMALLEST
        self._max_bytes = max_bytes
        self._node_id = node_id
        self._fresh_ids = 0
        self._lost_attempts = 0
        self._frames: list[bytes] = []  # of the journal to be written
        self._total = 0
        self._done = 0
        self._next_progress = 0.0

    def run(self, *, begin: bool) -> None:
        marker = read_marker(self._files, self._folder)
        if marker is not None and marker.step is ImportStep.RUNNING:
            log.warning("rolling back an interrupted import from %s", METADATA)
            self._undo(marker)
        if marker is not None and marker.step is ImportStep.VERIFIED:
            self._rename(marker)
        if begin and self._files.exists(self._folder / METADATA):
            self._import()

    @cached_property
    def _ids(self) -> IdSource:
        """The source of new ids. It's created on first use, which writes to the disk."""
        data_path = self._data_path
        return IdSource(
            self._node_id, timestamp=time.time_ns(), reserved=data_path.ids_reserved, reserve=data_path.reserve_ids
        )

    def _fresh_id(self) -> int:
        return self._ids.take(1)

    def _undo(self, marker: Marker) -> None:
        """Remove all files of an unfinished import. The journal goes first, since it refers to the topics."""
        for name in (marker.journal, f"{marker.journal}.tmp"):
            remove_file(self._files, self._folder / name)
        self._files.sync_folder(self._folder)
        for topic, log_id in marker.topics.items():
            folder = self._data_path.topic_folder(topic)
            if not self._files.exists(folder):
                continue
            if self._data_path.read_log_id(folder) not in (None, log_id):
                raise StartupError(
                    f"failed to import from {METADATA}: {folder} is not from the interrupted import; move it away"
                )
            self._files.remove_folder(folder)
        self._files.sync_folder(self._data_path.topics)
        remove_file(self._files, self._folder / MARKER)
        self._files.sync_folder(self._folder)

    def _import(self) -> None:
        started = time.monotonic()
        self._next_progress = started + _PROGRESS_EVERY
        self._refuse_if_damaged()
        topics, marker = self._survey()
        write_marker(self._files, self._folder, marker)
        try:
            self._write_all(topics, marker)
        except (OSError, ImportMismatch) as error:
            with suppress(OSError):  # if that fails, the next start undoes it
                self._undo(marker)
            if isinstance(error, ImportMismatch):
                raise StartupError(f"failed to import from {METADATA}: {error}; Go's files are unchanged") from error
            raise
        marker = replace(marker, step=ImportStep.VERIFIED)
        write_marker(self._files, self._folder, marker)
        log.info(
            "import from %s complete and verified topics=%d channels=%d messages=%d new_ids=%d damaged_files=%d seconds=%.1f",
            METADATA,
            len(topics),
            sum(len(topic.go.channels) for topic in topics),
            self._total,
            self._fresh_ids,
            sum(len(queue.damage) for topic in topics for queue in topic.queues.values()),
            time.monotonic() - started,
        )
        if self._lost_attempts:
            log.warning("reset the attempts of messages that no channel had messages=%d", self._lost_attempts)
        self._rename(marker)

    def _write_all(self, topics: list[_Topic], marker: Marker) -> None:
        for topic in topics:
            self._write_topic(topic)
        self._files.sync_folder(self._data_path.topics)
        self._name_channels(topics)
        self._files.replace(self._folder / marker.journal, b"".join(self._frames))
        self._compare(topics, marker)

    # Surveying

    def _survey(self) -> tuple[list[_Topic], Marker]:
        """Read all of Go's files once, without changing anything."""
        names = self._files.names_in(self._folder)
        queues = find_queues(names)
        topics = [self._open(topic, queues) for topic in self._read_metadata()]
        self._refuse_existing_topics(topics)
        used = {queue.name for topic in topics for queue in topic.queues.values()}
        for name in sorted(queues.keys() - used):
            log.warning("ignoring the files of a queue that is not in %s queue=%s", METADATA, name)
        for topic in topics:
            self._survey_topic(topic)
        self._total = sum(sum(topic.counts.values()) for topic in topics)
        log_ids = {topic.go.name: topic.log_id for topic in topics}
        return topics, Marker(ImportStep.RUNNING, self._next_journal(), log_ids, self._new_names(topics, set(names)))

    def _read_metadata(self) -> list[GoTopic]:
        path = self._folder / METADATA
        try:
            metadata = parse_metadata(self._files.read(path))
        except JsonError as error:
            raise StartupError(
                f"failed to load metadata - failed to parse metadata in {path} - {error}; "
                "repair it, or start with --import-go=false"
            ) from error
        for remark in metadata.remarks:
            log.warning("%s: %s", METADATA, remark)
        return list(metadata.topics.values())

    def _refuse_if_damaged(self) -> None:
        """Refuse to import while node.json is bad, because we wouldn't know which new ids are free."""
        if self._data_path.node_condition is not FileCondition.SOUND:
            raise StartupError(
                f"failed to import from {METADATA}: {self._folder / NODE_JSON} is {self._data_path.node_condition}; "
                "start once with --import-go=false, which repairs it"
            )

    def _refuse_existing_topics(self, topics: list[_Topic]) -> None:
        both = sorted({topic.go.name for topic in topics} & set(self._data_path.topic_names()))
        if both:
            raise StartupError(
                f"failed to import from {METADATA}: this data path already has topics of the same name "
                f"({', '.join(both)}); start with --import-go=false, or import into an empty data path"
            )

    def _open(self, topic: GoTopic, queues: dict[str, QueueFiles]) -> _Topic:
        opened = {}
        for channel in (*topic.channels, None):
            name = queue_name(topic.name, channel)
            queue = queues.get(name, QueueFiles())
            opened[channel] = GoQueue(self._files, self._folder, name, queue, largest=self._largest)
        return _Topic(topic, opened, log_id=os.urandom(16).hex())

    def _survey_topic(self, topic: _Topic) -> None:
        highest = -1
        for channel, queue in topic.queues.items():
            # If Go crashed while it moved messages from the topic's queue to the channels' queues, some are in both.
            survey = topic.surveys[channel] = RepeatSurvey(highest if channel is None else -1)
            number = 0
            for messages in queue.chunks():
                number += len(messages)
                for _, _, message_id, _ in messages:
                    if (found := number_of(message_id)) is not None:
                        survey.note(found)
                self._log_progress("reading", queue, number)
            topic.counts[channel] = number
            highest = max(highest, survey.highest)
            for remark in (*queue.remarks, queue.depth_remark(number)):
                if remark is not None:
                    log.warning("%s queue=%s", remark, queue.name)
            for name, text in queue.damage.items():
                log.warning("%s queue=%s file=%s", text, queue.name, name)

    def _next_journal(self) -> str:
        numbers = journal_numbers(self._files, self._folder)
        return journal_name(max(numbers, default=0) + 1)

    def _new_names(self, topics: Iterable[_Topic], taken: set[str]) -> dict[str, str]:
        """Return the new names of Go's files.

        A damaged file gets `.bad` appended, as in NSQ. `nsqd.dat` triggers an import, so it is renamed last.
        """
        renames = {}
        for topic in topics:
            for queue in topic.queues.values():
                for name in queue.names:
                    renames[name] = _free_name(name + (".bad" if name in queue.damage else ".imported"), taken)
        return renames | {METADATA: _free_name(METADATA + ".imported", taken)}

    # Writing

    def _write_topic(self, topic: _Topic) -> None:
        started = time.monotonic()
        name, layout = topic.go.name, topic.layout
        folder = self._data_path.topic_folder(name)
        # The checkpoint comes first. Otherwise older changes in the journal, about a deleted topic of this name, would
        # apply to the new log.
        self._add_to_journal([checkpoint_change(name, LogCheckpoint(topic.log_id, 0, 0, 0))])
        self._add_to_journal(layout.changes())
        write_log_json(self._files, folder, name, topic.log_id, durable=True)
        writer = LogWriter(self._files, folder, max_bytes=self._max_bytes)
        seen_by_topic = RepeatFilter(topic.surveys[None])
        try:
            for channel, queue in topic.queues.items():
                delivered = self._write_queue(topic, channel, queue, writer, seen_by_topic)
                if channel is not None:
                    self._add_to_journal(layout.waiting_changes(channel, delivered))
            writer.end_segment()
        finally:
            writer.close()
        self._files.sync_folder(folder)
        checkpoint = LogCheckpoint(topic.log_id, *writer.last_segment, writer.tail)  # everything is synced
        self._add_to_journal([checkpoint_change(name, checkpoint)])
        log.info(
            "imported topic=%s messages=%d channels=%d bytes=%d seconds=%.1f",
            name,
            writer.tail,
            len(topic.go.channels),
            writer.bytes,
            time.monotonic() - started,
        )

    def _write_queue(
        self,
        topic: _Topic,
        channel: str | None,
        queue: GoQueue,
        writer: LogWriter,
        seen_by_topic: RepeatFilter,
    ) -> Iterator[tuple[int, int]]:
        """Write one queue. Returns (sequence, attempts) of each message that was delivered before.

        Messages in the topic's own queue go to the channels as new ones, so their attempts are dropped.
        """
        delivered = array("Q")
        seen = seen_by_topic if channel is None else RepeatFilter(topic.surveys[channel])
        digest = Digest()
        for messages in queue.chunks():
            sequence = writer.tail
            found = []
            for timestamp, attempts, message_id, body in messages:
                number = number_of(message_id)
                if number is not None and channel is not None:
                    seen_by_topic.is_repeated(number)
                if number is None or seen.is_repeated(number):
                    number = self._fresh_id()
                    self._fresh_ids += 1
                if attempts and channel is None:
                    self._lost_attempts += 1
                    attempts = 0
                elif attempts:
                    delivered.append(sequence << _ATTEMPTS_BITS | attempts)
                sequence += 1
                digest.add(number, timestamp, attempts, body)
                found.append((number, timestamp, body))
            writer.write(found)
            self._done += len(found)
            self._log_progress("writing", queue, self._done)
        topic.digests[channel] = digest.result()
        if digest.count != topic.counts[channel]:
            raise ImportMismatch(f"{queue.name} had {topic.counts[channel]} messages, but now has {digest.count}")
        return ((packed >> _ATTEMPTS_BITS, packed & _MOST_ATTEMPTS) for packed in delivered)

    def _add_to_journal(self, changes: Iterable[Entry]) -> None:
        for piece in _pieces(changes):
            self._frames.append(journal_format.encode(piece))

    def _name_channels(self, topics: Iterable[_Topic]) -> None:
        """Add the channels to topology.json, the second copy of the names. Extra names do no harm if we fail later."""
        found = self._data_path.read_topology().content.get("topology")
        named = dict(found) if isinstance(found, dict) else {}
        for topic in topics:
            channels = {channel: {"paused": paused} for channel, paused in topic.go.channels.items()}
            named[topic.go.name] = {"paused": topic.go.paused, "channels": channels}
        self._data_path.write_topology(Topology(named).json())

    # Comparing and renaming

    def _compare(self, topics: Iterable[_Topic], marker: Marker) -> None:
        states = read_journal(self._files, self._folder / marker.journal)
        for topic in topics:
            name, layout = topic.go.name, topic.layout
            state = states.get(name, TopicState())
            for difference in layout.differences(state):
                raise ImportMismatch(f"topic {name} differs from Go's files: {difference}")
            folder = self._data_path.topic_folder(name)
            for queue, digest in digests_of(self._files, folder, layout, state):
                if digest != topic.digests[queue]:
                    raise ImportMismatch(f"{queue_name(name, queue)} differs from Go's files")

    def _rename(self, marker: Marker) -> None:
        for old, new in marker.renames.items():
            with suppress(FileNotFoundError):  # already renamed, before a kill
                self._files.rename(self._folder / old, self._folder / new)
        self._files.sync_folder(self._folder)
        write_marker(self._files, self._folder, replace(marker, step=ImportStep.DONE, renames={}))
        log.info("renamed the files of Go's nsqd files=%d", len(marker.renames))

    def _log_progress(self, doing: str, queue: GoQueue, number: int) -> None:
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + _PROGRESS_EVERY
            of = f" of {self._total}" if self._total else ""
            log.info("import from %s: %s queue=%s messages=%d%s", METADATA, doing, queue.name, number, of)


def _free_name(name: str, taken: set[str]) -> str:
    """Return the name or, if it's taken, the first free numbered variant."""
    free = next(it for it in chain([name], (f"{name}.{number}" for number in count(2))) if it not in taken)
    taken.add(free)
    return free


def _pieces(changes: Iterable[Entry]) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    for change in changes:
        piece.append(change)
        if len(piece) >= _CHANGES_PER_FRAME:
            yield piece
            piece = []
    if piece:
        yield piece
