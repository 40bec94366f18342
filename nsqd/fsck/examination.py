"""Checks a stopped data path from end to end, without trusting or changing anything.

We check the small files and the journal, then each topic's log, and compare it with the journal. A finding that can be
repaired safely has a `repair` function, so repairs don't need a second walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcommon.startup import StartupError
from nsqd.broker.journal_replay import TopicState, replay
from nsqd.fsck.failing_disk import opened_to_salvage, read_or_report, unreadable
from nsqd.fsck.finding import FsckFinding, FsckSeverity
from nsqd.fsck.leftovers import TMP, cut_off, is_kept_aside, leftover
from nsqd.fsck.log_examination import LogExamination
from nsqd.go_import.marker import MARKER, ImportStep, read_marker
from nsqd.log.data_path import (
    NODE_JSON,
    TOPICS,
    TOPOLOGY_JSON,
    DataPath,
    DataPathError,
    FileCondition,
    JournalEnd,
    NodeFile,
    Topology,
    is_journal,
    keep_small_file_aside,
    read_node,
    write_node,
)
from nsqd.log.journal.format import JournalFrame
from nsqd.log.journal.own_changes import RESERVED_AHEAD, RecoveredChanges, split_changes
from nsqd.log.journal.packed_changes import PackedChanges
from nsqd.log.journal.reader import LOST, BadBytes, walk_frames
from nsqd.log.journal.recovery import journal_name, journal_numbers, journal_path
from nsqd.log.journal.rotation import missing_snapshots

if TYPE_CHECKING:
    from nsqd.log.files import Files


class Examination:
    """A check of one data path. `progress` is called with the number of bytes read since the last call."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        new_id: Callable[[], str],
        progress: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.node = ""
        self.topics = 0
        self._files = files
        self._folder = folder
        self._data_path = DataPath(folder, files, new_id=new_id)
        self._new_id = new_id
        self._progress = progress
        self._journal_end = JournalEnd()
        self._journal_is_whole = True

    def total_bytes(self) -> int:
        """Return roughly how many bytes `run` will read."""
        folders = [self._folder, *map(self._data_path.topic_folder, self._data_path.topic_names())]
        files = [folder / name for folder in folders for name in self._files.names_in(folder)]
        return sum(self._files.size_of(path) for path in files if path.suffix == ".log" or is_journal(path.name))

    def run(self) -> Iterator[FsckFinding]:
        """Yield the findings. Raises DataPathError or OSError if the data path can't be checked at all."""
        names = self._files.names_in(self._folder)
        if not (NODE_JSON in names or TOPICS in names or any(map(is_journal, names))):
            raise DataPathError(f"{self._folder} is not a data path of nsqd")
        node = yield from read_or_report(lambda: read_node(self._files, self._folder), file=NODE_JSON)
        if isinstance(node, NodeFile):
            self.node, self._journal_end = node.node, node.journal
        changes = PackedChanges()
        yield from self._examine_journal(changes)
        recovered = split_changes(changes)
        del changes
        if node is not None:
            yield from self._compare_node(node, recovered)
        states = replay(recovered.changes)
        yield from self._examine_topology(states)
        moved = {log_id for path in self._data_path.dropped_folders() if (log_id := self._data_path.read_log_id(path))}
        unfinished = yield from self._examine_import(names)
        for topic in self._data_path.topic_names():
            if topic in unfinished:
                continue
            self.topics += 1
            examination = LogExamination(
                self._files, self._data_path, topic, recovered, new_id=self._new_id, progress=self._progress
            )
            yield from examination.run(moved)
            if examination.is_known and topic in states:
                yield from _compare_positions(states[topic], topic, examination)
        yield from self._missing_logs(recovered, moved)
        yield from self._leftovers(names)

    def _examine_import(self, names: list[str]) -> Generator[FsckFinding, None, Collection[str]]:
        """Check an import from a Go nsqd.

        Returns the topics of an unfinished import, which the next start will remove and import again.
        """
        if MARKER not in names:
            return ()
        try:
            marker = read_marker(self._files, self._folder)
        except StartupError:
            text = "the progress file of the import from nsqd.dat is damaged; nsqd will not start"
            yield FsckFinding(FsckSeverity.DAMAGE, text, file=MARKER)
            return ()
        if marker is None or marker.step is ImportStep.DONE:
            return ()
        if marker.step is ImportStep.VERIFIED:
            text = "the import from nsqd.dat is complete, but some of Go's files are not renamed yet"
            yield FsckFinding(FsckSeverity.NOTE, text, file=MARKER)
            return ()
        yield FsckFinding(
            FsckSeverity.NOTE, "an import from nsqd.dat was interrupted; the next start will repeat it", file=MARKER
        )
        return marker.topics

    # The journal

    def _examine_journal(self, changes: PackedChanges) -> Iterator[FsckFinding]:
        numbers = journal_numbers(self._files, self._folder)
        end = JournalEnd()
        for number in numbers:
            path = journal_path(self._folder, number)
            size = self._files.size_of(path)
            sound = yield from self._examine_journal_file(path, size, changes, is_last=number == numbers[-1])
            self._progress(size)
            end = JournalEnd(number, sound)
            if number == numbers[0] and self._journal_is_whole and (topics := missing_snapshots(changes)):
                yield self._journal_lacks(number - 1, f"no snapshot of {', '.join(sorted(topics))}")
        if not numbers and any(map(self._data_path.has_segments, self._data_path.topic_names())):
            yield self._journal_lacks(max(self._journal_end.number, 1), "no journal file")
        elif self._journal_is_whole and end < self._journal_end:
            yield self._journal_lacks(self._journal_end.number, f"{self._journal_end.size} bytes were synced")

    def _journal_lacks(self, number: int, why: str) -> FsckFinding:
        self._journal_is_whole = False
        text = f"the journal is incomplete or an older copy: {why}"
        return FsckFinding(FsckSeverity.DAMAGE, text, file=journal_name(number))

    def _examine_journal_file(
        self, path: Path, size: int, changes: PackedChanges, *, is_last: bool
    ) -> Generator[FsckFinding, None, int]:
        """Collect the changes in one file and yield its findings. Returns the offset where its sound part ends."""
        sound = size
        bad: list[BadBytes] = []
        with opened_to_salvage(self._files, path) as read:
            for found in walk_frames(read, size):
                if isinstance(found, JournalFrame):
                    changes.extend(found.changes)
                    continue
                bad.append(found)
                if found.is_tail:
                    sound = found.position
                else:
                    changes.append((LOST, ""))
        for piece in bad:
            if read.refused_in(piece.position, piece.end):
                self._journal_is_whole = False
                yield unreadable(path.name, piece.position)
            else:
                yield self._bad_journal(path, piece, is_last=is_last)
        return sound

    def _bad_journal(self, path: Path, bad: BadBytes, *, is_last: bool) -> FsckFinding:
        self._journal_is_whole = False
        length = bad.end - bad.position
        was_synced = (int(path.suffix[1:]), bad.position) < self._journal_end
        if not bad.is_tail or was_synced:
            return FsckFinding(
                FsckSeverity.DAMAGE, f"{length} bytes of the journal are damaged", file=path.name, offset=bad.position
            )

        def cut() -> str:
            return cut_off(self._files, path, bad.position, bad.end)

        text = f"torn tail of {length} bytes of the journal"
        return FsckFinding(
            FsckSeverity.WARNING, text, file=path.name, offset=bad.position, repair=cut if is_last else None
        )

    # Small files

    def _compare_node(self, found: NodeFile | FileCondition, recovered: RecoveredChanges) -> Iterator[FsckFinding]:
        if not isinstance(found, NodeFile):

            def write() -> str:
                if not recovered.node:
                    return ""
                kept = keep_small_file_aside(self._files, self._folder / NODE_JSON)
                # The journal may lack the very last reservation, so reserve more.
                node = NodeFile(recovered.node, recovered.ids_reserved + RESERVED_AHEAD, JournalEnd())
                write_node(self._files, self._folder, node)
                return "rewritten from the journal" + (f"; the old file is {kept.name}" if kept else "")

            repair = write if recovered.node else None
            yield FsckFinding(FsckSeverity.DAMAGE, f"{NODE_JSON} is {found}", file=NODE_JSON, repair=repair)
        elif recovered.node not in ("", found.node):
            text = f"{NODE_JSON} has node id {found.node}, the journal {recovered.node}"
            yield FsckFinding(FsckSeverity.DAMAGE, text, file=NODE_JSON)
        elif recovered.ids_reserved > found.ids_reserved:
            yield FsckFinding(FsckSeverity.DAMAGE, f"{NODE_JSON} is older than the journal", file=NODE_JSON)

    def _examine_topology(self, states: Mapping[str, TopicState]) -> Iterator[FsckFinding]:
        found = yield from read_or_report(self._data_path.read_topology, file=TOPOLOGY_JSON)
        if found is None:
            return
        known = topology_of(states)

        def write() -> str:
            kept = keep_small_file_aside(self._files, self._folder / TOPOLOGY_JSON) if is_bad else None
            self._data_path.write_topology(Topology(known).json())
            return "rewritten from the journal" + (f"; the old file is {kept.name}" if kept else "")

        is_bad = found.condition is not FileCondition.SOUND
        if is_bad:
            yield FsckFinding(
                FsckSeverity.DAMAGE, f"{TOPOLOGY_JSON} is {found.condition}", file=TOPOLOGY_JSON, repair=write
            )
        elif self._journal_is_whole and found.content.get("topology") != known:
            text = f"{TOPOLOGY_JSON} differs from the journal, which takes precedence"
            yield FsckFinding(FsckSeverity.NOTE, text, file=TOPOLOGY_JSON, repair=write)

    # Other files

    def _missing_logs(self, recovered: RecoveredChanges, moved: set[str]) -> Iterator[FsckFinding]:
        names = self._data_path.topic_names()
        for topic, known in recovered.checkpoints.items():
            if topic not in names and known.sequence and known.log_id not in moved:
                yield FsckFinding(FsckSeverity.DAMAGE, "the log is missing", topic=topic, end=known.sequence)

    def _leftovers(self, names: list[str]) -> Iterator[FsckFinding]:
        for name in names:
            if name.endswith(TMP):
                yield leftover(self._files, self._folder / name)
            elif is_kept_aside(name):
                yield FsckFinding(FsckSeverity.NOTE, "bytes kept aside", file=name)
        for folder in self._data_path.dropped_folders():

            def remove(folder: Path = folder) -> str:
                self._files.remove_folder(folder)
                return "removed"

            text = "folder of a deleted topic, not removed yet"
            yield FsckFinding(FsckSeverity.NOTE, text, file=f"{TOPICS}/{folder.name}", repair=remove)


def topology_of(states: Mapping[str, TopicState]) -> dict[str, object]:
    """Return the topology that the broker would write."""
    return {
        name: {
            "paused": state.paused,
            "channels": {channel: {"paused": known.paused} for channel, known in state.channels.items()},
        }
        for name, state in states.items()
    }


def _compare_positions(state: TopicState, topic: str, found: LogExamination) -> Iterator[FsckFinding]:
    """Check that all messages that channels still need exist."""
    for name, channel in state.channels.items():
        if channel.needed < found.first:
            text = f"channel {name} needs messages before the first segment"
            yield FsckFinding(FsckSeverity.DAMAGE, text, topic=topic, first=channel.needed, end=found.first)
        buried = chain.from_iterable(channel.buried.sequences())
        for kind, sequences in (("waiting", channel.waiting), ("held", channel.held), ("buried", buried)):
            lost = sorted(sequence for sequence in sequences if not found.has(sequence))
            if lost:
                text = f"{len(lost)} messages {kind} in channel {name} are in no segment or compacted file"
                yield FsckFinding(FsckSeverity.DAMAGE, text, topic=topic, first=lost[0], end=lost[-1] + 1)
    if state.cut(found.tail):
        text = f"channels are past the log's end at {found.tail}; the next start will move them back"
        yield FsckFinding(FsckSeverity.NOTE, text, topic=topic)
