"""Examines a stopped data path from end to end, trusting nothing. Examining changes nothing.

It begins with the small files and the journal; then it checks each topic's log against what the journal says of it. A
finding that is safe to mend carries a function that mends it, so the same walk examines and repairs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcommon.startup import StartupError
from nsqd.broker.replay import TopicState, replay
from nsqd.fsck.finding import Damage, DamageSeverity
from nsqd.fsck.leftovers import TMP, cut_off, is_kept_aside, leftover
from nsqd.fsck.log_examination import LogExamination
from nsqd.fsck.refused import opened_to_salvage, readable, refused
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
    """One examination of a data path. `progress` is called with the number of bytes read since its last call."""

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
        """Return roughly how many bytes there are to read."""
        folders = [self._folder, *map(self._data_path.topic_folder, self._data_path.topic_names())]
        files = [folder / name for folder in folders for name in self._files.names_in(folder)]
        return sum(self._files.size_of(path) for path in files if path.suffix == ".log" or is_journal(path.name))

    def run(self) -> Iterator[Damage]:
        """Yield what is found. Raises DataPathError or OSError when the data path cannot be examined."""
        names = self._files.names_in(self._folder)
        if not (NODE_JSON in names or TOPICS in names or any(map(is_journal, names))):
            raise DataPathError(f"{self._folder} holds no data of nsqd")
        node = yield from readable(lambda: read_node(self._files, self._folder), file=NODE_JSON)
        if isinstance(node, NodeFile):
            self.node, self._journal_end = node.node, node.journal
        changes = PackedChanges()
        yield from self._examine_journal(changes)
        told = split_changes(changes)
        del changes
        if node is not None:
            yield from self._compare_node(node, told)
        states = replay(told.changes)
        yield from self._examine_topology(states)
        moved = {log_id for path in self._data_path.dropped_folders() if (log_id := self._data_path.read_log_id(path))}
        unfinished = yield from self._examine_import(names)
        for topic in self._data_path.topic_names():
            if topic in unfinished:
                continue
            self.topics += 1
            examination = LogExamination(
                self._files, self._data_path, topic, told, new_id=self._new_id, progress=self._progress
            )
            yield from examination.run(moved)
            if examination.is_known and topic in states:
                yield from _compare_positions(states[topic], topic, examination)
        yield from self._lost_folders(told, moved)
        yield from self._leftovers(names)

    def _examine_import(self, names: list[str]) -> Generator[Damage, None, Collection[str]]:
        """Yield what is found of an import from Go.

        Returns the topics that the next start removes and imports again.
        """
        if MARKER not in names:
            return ()
        try:
            marker = read_marker(self._files, self._folder)
        except StartupError:
            text = "what is known of the import from nsqd.dat is damaged: nsqd does not start without it"
            yield Damage(DamageSeverity.DAMAGE, text, file=MARKER)
            return ()
        if marker is None or marker.step is ImportStep.DONE:
            return ()
        if marker.step is ImportStep.VERIFIED:
            text = "the import from nsqd.dat is complete, but not all of Go's files have their new names"
            yield Damage(DamageSeverity.NOTE, text, file=MARKER)
            return ()
        yield Damage(
            DamageSeverity.NOTE, "an import from nsqd.dat was interrupted: the next start begins anew", file=MARKER
        )
        return marker.topics

    # The journal

    def _examine_journal(self, changes: PackedChanges) -> Iterator[Damage]:
        numbers = journal_numbers(self._files, self._folder)
        end = JournalEnd()
        for number in numbers:
            path = journal_path(self._folder, number)
            size = self._files.size_of(path)
            sound = yield from self._examine_journal_file(path, size, changes, is_last=number == numbers[-1])
            self._progress(size)
            end = JournalEnd(number, sound)
            if number == numbers[0] and self._journal_is_whole and (topics := missing_snapshots(changes)):
                yield self._journal_lacks(number - 1, f"it told of {', '.join(sorted(topics))}")
        if not numbers and any(map(self._data_path.has_segments, self._data_path.topic_names())):
            yield self._journal_lacks(max(self._journal_end.number, 1), "there is none")
        elif self._journal_is_whole and end < self._journal_end:
            yield self._journal_lacks(self._journal_end.number, f"{self._journal_end.size} bytes were on disk")

    def _journal_lacks(self, number: int, why: str) -> Damage:
        self._journal_is_whole = False
        text = f"the journal, or a part of it, is missing or older than it was: {why}"
        return Damage(DamageSeverity.DAMAGE, text, file=journal_name(number))

    def _examine_journal_file(
        self, path: Path, size: int, changes: PackedChanges, *, is_last: bool
    ) -> Generator[Damage, None, int]:
        """Collect the changes in one file and yield what is wrong with it. Returns the end of its sound part."""
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
                yield refused(path.name, piece.position)
            else:
                yield self._bad_journal(path, piece, is_last=is_last)
        return sound

    def _bad_journal(self, path: Path, bad: BadBytes, *, is_last: bool) -> Damage:
        self._journal_is_whole = False
        length = bad.end - bad.position
        was_synced = (int(path.suffix[1:]), bad.position) < self._journal_end
        if not bad.is_tail or was_synced:
            return Damage(
                DamageSeverity.DAMAGE, f"{length} bytes of the journal are damaged", file=path.name, offset=bad.position
            )

        def cut() -> str:
            return cut_off(self._files, path, bad.position, bad.end)

        text = f"torn tail of {length} bytes of the journal"
        return Damage(DamageSeverity.WARNING, text, file=path.name, offset=bad.position, mend=cut if is_last else None)

    # Small files

    def _compare_node(self, found: NodeFile | FileCondition, told: RecoveredChanges) -> Iterator[Damage]:
        if not isinstance(found, NodeFile):

            def write() -> str:
                if not told.node:
                    return ""
                kept = keep_small_file_aside(self._files, self._folder / NODE_JSON)
                # The journal may lack the very last reservation.
                node = NodeFile(told.node, told.ids_reserved + RESERVED_AHEAD, JournalEnd())
                write_node(self._files, self._folder, node)
                return "written anew from the journal" + (f"; the old one is {kept.name}" if kept else "")

            mend = write if told.node else None
            yield Damage(DamageSeverity.DAMAGE, f"{NODE_JSON} is {found}", file=NODE_JSON, mend=mend)
        elif told.node not in ("", found.node):
            text = f"the node is {found.node}, but the journal tells of {told.node}"
            yield Damage(DamageSeverity.DAMAGE, text, file=NODE_JSON)
        elif told.ids_reserved > found.ids_reserved:
            yield Damage(DamageSeverity.DAMAGE, f"{NODE_JSON} is older than the journal", file=NODE_JSON)

    def _examine_topology(self, states: Mapping[str, TopicState]) -> Iterator[Damage]:
        found = yield from readable(self._data_path.read_topology, file=TOPOLOGY_JSON)
        if found is None:
            return
        known = topology_of(states)

        def write() -> str:
            kept = keep_small_file_aside(self._files, self._folder / TOPOLOGY_JSON) if is_bad else None
            self._data_path.write_topology(Topology(known).json())
            return "written anew from the journal" + (f"; the old one is {kept.name}" if kept else "")

        is_bad = found.condition is not FileCondition.SOUND
        if is_bad:
            yield Damage(DamageSeverity.DAMAGE, f"{TOPOLOGY_JSON} is {found.condition}", file=TOPOLOGY_JSON, mend=write)
        elif self._journal_is_whole and found.content.get("topology") != known:
            text = f"{TOPOLOGY_JSON} is not of the same moment as the journal, which is believed"
            yield Damage(DamageSeverity.NOTE, text, file=TOPOLOGY_JSON, mend=write)

    # Other files

    def _lost_folders(self, told: RecoveredChanges, moved: set[str]) -> Iterator[Damage]:
        names = self._data_path.topic_names()
        for topic, known in told.checkpoints.items():
            if topic not in names and known.sequence and known.log_id not in moved:
                yield Damage(DamageSeverity.DAMAGE, "the log is missing", topic=topic, end=known.sequence)

    def _leftovers(self, names: list[str]) -> Iterator[Damage]:
        for name in names:
            if name.endswith(TMP):
                yield leftover(self._files, self._folder / name)
            elif is_kept_aside(name):
                yield Damage(DamageSeverity.NOTE, "bytes that were kept aside", file=name)
        for folder in self._data_path.dropped_folders():

            def remove(folder: Path = folder) -> str:
                self._files.remove_folder(folder)
                return "removed"

            text = "a deleted topic's folder on its way out"
            yield Damage(DamageSeverity.NOTE, text, file=f"{TOPICS}/{folder.name}", mend=remove)


def topology_of(states: Mapping[str, TopicState]) -> dict[str, object]:
    """Return what the broker would write into topology.json."""
    return {
        name: {
            "paused": state.paused,
            "channels": {channel: {"paused": known.paused} for channel, known in state.channels.items()},
        }
        for name, state in states.items()
    }


def _compare_positions(state: TopicState, topic: str, found: LogExamination) -> Iterator[Damage]:
    """Check that every message still owed by a channel exists."""
    for name, channel in state.channels.items():
        if channel.needed < found.first:
            text = f"channel {name} needs messages before the first segment"
            yield Damage(DamageSeverity.DAMAGE, text, topic=topic, first=channel.needed, end=found.first)
        buried = chain.from_iterable(channel.buried.sequences())
        for what, sequences in (("wait", channel.waiting), ("are buried", buried)):
            lost = sorted(sequence for sequence in sequences if not found.has(sequence))
            if lost:
                text = f"{len(lost)} messages that {what} in channel {name} are in no segment and in no side file"
                yield Damage(DamageSeverity.DAMAGE, text, topic=topic, first=lost[0], end=lost[-1] + 1)
    if state.cut(found.tail):
        text = f"positions beyond the log's end at {found.tail}: the next start takes them back"
        yield Damage(DamageSeverity.NOTE, text, topic=topic)
