"""Rebuilds the state of topics and channels from the journal's changes. See change.py for their words.

**How a channel is rebuilt after a crash.** The journal has no entry per message. For each channel, we derive from it

    cursor     all earlier messages were taken from the log
    waiting    messages that were taken and not finished, each with its attempts and due time
    skips      ranges from the cursor on that were taken already, so the cursor must skip them
    held       messages that the cursor has passed, and that were never delivered, because of their groups
    buried     messages that were taken and buried; any later entry about such a message takes it out of here

A `progress` has the new cursor and the ranges that were finished since the last one. If the cursor has passed a message
that isn't finished, the message must have been in flight, so we need no entry for that. For example, a channel at 0 is
sent the messages 0 to 5 and finishes 1, 2 and 4 (a range is written as start and end):

    ("progress", "t", "c", 6, [1, 3, 4, 5])     cursor 6; 0, 3 and 5 were in flight, so they wait with one attempt each
    ("progress", "t", "c", 6, [3, 4])           3 is finished, too; 0 and 5 still wait
    ("defer", "t", 7, 1, due_ms)                7 waits until it is due; it is a skip, so passing it doesn't put it in flight
    ("progress", "t", "c", 9, [6, 7])           cursor 9; 0 and 5 wait as before, 7 until it is due, 8 with one attempt

If a crash loses the last entry, a few finished messages are delivered again.

A `held` names the messages that the next `progress` passes without delivering them. For example, 10 is held:

    ("held", "t", "c", [10, 11])
    ("progress", "t", "c", 12, [9, 10])         cursor 12; 11 was in flight, and 10 was never delivered
    ("try", "t", "c", 1, [10])                  now it was

A `restore` replaces everything that waits before its end; a message there that it leaves out is finished. From its end
on, nothing changes, so the messages there that the cursor had passed become skips. With cursor 9, and 0, 5, 7 and 8
waiting as above:

    ("restore", "t", "c", 2, 6, [3, 4], [1, 2, 0])     cursor 2; 3 and 6 to 8 are skips; 1 waits with two attempts, 7
                                                       and 8 as before, and 2, 4 and 5 are read from the log

An `edit` names the edited copy that the log gets next (edit.py). With 7 buried, and two channels c and d:

    ("edit", "t", "c", 20, 7, 0)                c: 7 is gone, and 20 is a skip and waits; d: 20 is a skip
    ("cut", "t", 20)                            the log hasn't got the copy: in c, 7 is buried as before

**Doubt.** If a frame of the journal is damaged, we can't know its contents. Perhaps it deferred message 820. Or it
recorded that the end of a log was cut off after a failure, so the sequences after the last sync now belong to other
messages. So the store replaces the frame with a `doubt`, which has the sequence up to which the log was synced then.
Each channel with a later cursor goes back to this sequence, because duplicates are better than loss. Waiting messages
keep waiting, and are not read twice.

For example, the log was synced up to 800, and the next entry is ("progress", "t", "c", 950, [900, 950]). Without the
doubt, 800 to 899 would now be in flight. A channel in doubt doesn't assume that: its cursor stays at 800, and only 900
to 949 are skipped as finished. The doubt ends when the channel is emptied or moved, or with the topic's next snapshot.

**Snapshots.** If a topic's snapshot is too long for one frame, it comes in parts, with other changes in between:

    ("begin", "t")                the state at this point follows in parts
    ("part", "t", [...])          changes of the snapshot, to be applied at its end
    ("progress", "t", ...)        happened in between: applied right away, and again after the snapshot
    ("part", "t", [...])
    ("end", "t", 2)               the two parts, followed by the progress, replace the state of t

If a part or the end is missing, we keep the state that we had. It is up to date, because the changes in between were
also applied to it. Only if we had no state of the topic do we use an incomplete snapshot, and only if it has an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, assert_never

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, bitmap_of, bitmap_of_ranges, ranges_in
from nsqd.broker.buried import BuriedMessages, buried_sequences, bury_change
from nsqd.broker.change import is_known
from nsqd.broker.early_deferrals import EarlyDeferrals
from nsqd.broker.edited import EditedMessages

if TYPE_CHECKING:
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.store import Entry


_NO_SEQUENCE: Final = 1 << 64  # beyond all sequences


class ChannelState:
    """A channel's state according to the journal."""

    def __init__(self, cursor: int) -> None:
        self.born = cursor  # its first message: earlier ones were released before the channel existed
        self.cursor = cursor
        self.paused = False
        self.paused_why = ""  # the reason of an automatic pause
        self.in_doubt = False  # some of its changes were lost, see above
        self.skips: deque[tuple[int, int]] = deque()  # ascending; up to one per deferred message
        self.waiting: dict[int, tuple[int, int]] = {}  # sequence -> (attempts, due_ms)
        self.held = BitMap64()
        self.buried = BuriedMessages()
        self.edited = EditedMessages()
        self.job: Sequence[object] = ()  # the job that was running, if any

    def skip(self, start: int, end: int) -> None:
        start = max(start, self.cursor)
        if start >= end:
            return
        if self.skips and self.skips[-1][1] == start:
            self.skips[-1] = (self.skips[-1][0], end)
        elif not self.skips or self.skips[-1][1] < start:
            self.skips.append((start, end))
        else:
            known = [*self.skips]
            self.skips = deque(sorted([*known, *_gaps(start, end, known)]))

    def wait(self, sequence: int, attempts: int, due_ms: int) -> None:
        if self.in_doubt and sequence not in self.waiting:
            self.skip(sequence, sequence + 1)  # we may have lost the entry in which the cursor passed it
        self.waiting[sequence] = (attempts, due_ms)
        if self.held:
            self.held.discard(sequence)
        if self.buried:
            self.buried.remove(sequence)

    def hold(self, ranges: Sequence[int]) -> None:
        held = bitmap_of_ranges(zip(ranges[::2], ranges[1::2], strict=True))
        # In doubt, the cursor stays where it is, and meets these messages itself.
        self.held |= between(held, 0, self.cursor) if self.in_doubt else held

    def bury(self, notes: Sequence[str], entries: Sequence[int]) -> None:
        for sequence in buried_sequences(entries):
            if self.in_doubt and sequence not in self.waiting:
                self.skip(sequence, sequence + 1)
            self.waiting.pop(sequence, None)
            self.held.discard(sequence)
        self.buried.apply(notes, entries)

    def defer(self, start: int, count: int, due_ms: int) -> None:
        if start < self.born:
            return
        self.skip(start, start + count)
        for sequence in range(start, start + count):
            self.waiting[sequence] = (0, due_ms)

    def progress(self, cursor: int, finished: Sequence[int]) -> None:
        done = sorted(zip(finished[::2], finished[1::2], strict=True))
        if self.in_doubt:
            self._progress_in_doubt(done)
            return
        before, passed = self.cursor, self._pass_over(cursor)
        for start, end in _gaps(before, cursor, passed + done):
            self._put_in_flight(start, end)
        self.cursor = max(cursor, before)
        # `done` may also name messages that the cursor has just passed. They aren't waiting, except for deferred ones
        # in the skip ranges.
        for start, end in _overlaps(done, [(0, before), *passed, (self.cursor, _NO_SEQUENCE)]):
            self._finish(start, end)
        for start, end in done if self.held else ():
            self.held.remove_range(start, end)

    def _put_in_flight(self, start: int, end: int) -> None:
        for sequence in bitmap_of(start, end) - self.held if self.held else range(start, end):
            self.waiting[sequence] = (1, 0)

    def _finish(self, start: int, end: int) -> None:
        for sequence in range(start, end):
            self.waiting.pop(sequence, None)
            if self.buried:
                self.buried.remove(sequence)

    def _progress_in_doubt(self, done: list[tuple[int, int]]) -> None:
        """Skip the finished ranges, but leave the cursor. The rest is read again, because some may be deferred."""
        for start, end in done:
            self.skip(start, end)
            self._finish(start, end)
            self.held.remove_range(start, end)

    def _pass_over(self, cursor: int) -> list[tuple[int, int]]:
        """Remove the parts of the skip ranges before the cursor, and return them."""
        passed = []
        skips = self.skips
        while skips and skips[0][0] < cursor:
            start, end = skips.popleft()
            passed.append((start, min(end, cursor)))
            if end > cursor:
                skips.appendleft((cursor, end))
        return passed

    def empty(self, cursor: int) -> None:
        self.seek(max(cursor, self.cursor))

    def seek(self, cursor: int) -> None:
        self.cursor = cursor
        self.in_doubt = False
        self.waiting.clear()
        self.held.clear()
        self.skips = deque(ranges_in(between(self.buried.all() | self.edited.replaced, cursor, _NO_SEQUENCE)))

    def restore(self, cursor: int, end: int, skipped: Sequence[int], waiting: Sequence[int]) -> None:
        """Replace the cursor, skips and waiting messages before `end` with these. Buried messages stay buried.

        Messages from `end` on that the cursor had passed become skips, because the cursor may now be before `end`. Held
        ones don't, so that the cursor meets them again. A channel that is in doubt stays in doubt.
        """
        passed = ranges_in(bitmap_of(end, self.cursor) - self.held)
        later = [*passed, *((max(start, end), stop) for start, stop in self.skips if stop > end)]
        self.cursor = cursor
        self.skips.clear()
        buried = self.buried.ranges(cursor, end)
        for start, stop in [*zip(skipped[::2], skipped[1::2], strict=True), *buried, *later]:
            self.skip(start, stop)
        self.waiting = {sequence: place for sequence, place in self.waiting.items() if sequence >= end}
        self.held.clear()
        for sequence, attempts, due_ms in zip(waiting[::3], waiting[1::3], waiting[2::3], strict=True):
            if sequence not in self.buried:
                self.waiting[sequence] = (attempts, due_ms)
            self.skip(sequence, sequence + 1)

    @property
    def needed(self) -> int:
        """The first sequence from the cursor on that isn't skipped."""
        needed = self.cursor
        for start, end in self.skips:
            if start > needed:
                break
            needed = max(needed, end)
        return needed

    def doubt(self, sequence: int) -> None:
        """Move the cursor back to this sequence. Waiting and buried messages stay as they are, and are skipped."""
        self.in_doubt = True
        waiting = sorted(s for s in self.waiting if s >= sequence)
        buried = self.buried.ranges(sequence, _NO_SEQUENCE)
        self.skips = deque((start, min(end, sequence)) for start, end in self.skips if start < sequence)
        self.cursor, self.born = min(self.cursor, sequence), min(self.born, sequence)
        for place in waiting:
            self.skip(place, place + 1)
        for start, end in chain(buried, ranges_in(between(self.edited.replaced, sequence, _NO_SEQUENCE))):
            self.skip(start, end)
        self.held = between(self.held, 0, sequence)  # the cursor meets the others again

    def edit(self, topic: str, name: str, copy: int, replaced: int, due_ms: int, *, is_released: bool) -> None:
        """Let an edited copy wait instead of the replaced message (-1: of none), and remember how to undo that."""
        edit: Change = ("edit", topic, name, copy, replaced, due_ms)
        former = self._former_place(topic, name, replaced) if replaced >= 0 else None
        self.edited.add(copy, replaced)
        self.edited.unsynced[copy] = [edit] if former is None else [former, edit]
        if replaced >= 0:
            self.skip(replaced, replaced + 1)
            self._finish(replaced, replaced + 1)
            self.held.discard(replaced)
        if is_released:
            self.skip(copy, copy + 1)
        self.waiting[copy] = (0, due_ms)

    def _former_place(self, topic: str, name: str, sequence: int) -> ChannelChange | None:
        """Return the change that puts a message back to where it is. None: it is finished."""
        burial = self.buried.get(sequence)
        if burial is not None:
            return bury_change(topic, name, [burial])
        if sequence in self.waiting:
            return "wait", topic, name, [sequence, *self.waiting[sequence]]
        # An edit replaces no message that is finished, so what the cursor hasn't reached waits for its first delivery.
        is_new = sequence >= self.cursor or sequence in self.held
        return ("wait", topic, name, [sequence, 0, 0]) if is_new else None

    def _undo_edits(self, tail: int) -> bool:
        """Undo edits whose copies the log doesn't have. Return whether there were any."""
        lost = [copy for copy in self.edited.unsynced if copy >= tail]
        for copy in lost:
            *former, edit = self.edited.unsynced.pop(copy)
            assert edit[0] == "edit"
            _, _, _, _, replaced, _ = edit
            if 0 <= replaced < tail:  # otherwise the log hasn't got that message either
                self.edited.replaced.discard(replaced)
                for change in former:
                    assert change[0] in ("wait", "bury")
                    _apply_to_channel(self, change)
        return self.edited.cut(tail) or bool(lost)

    def cut(self, tail: int) -> bool:
        """Drop everything from `tail` on. Return whether anything has changed."""
        undone = self._undo_edits(tail)
        held, self.held = self.held, between(self.held, 0, tail)
        beyond = [s for s in self.waiting if s >= tail]
        for sequence in beyond:
            del self.waiting[sequence]
        skips = deque((start, min(end, tail)) for start, end in self.skips if start < tail)
        changed = self.buried.cut(tail) or bool(beyond) or self.cursor > tail or self.born > tail or skips != self.skips
        changed = changed or undone or held != self.held
        self.skips = skips
        self.cursor, self.born = min(self.cursor, tail), min(self.born, tail)
        return changed


class TopicState:
    """A topic's state according to the journal. `frozen_at` is None while the high watermark follows the tail."""

    def __init__(self, *, paused: bool = False, frozen_at: int = 0) -> None:
        self.paused = paused
        self.learned = False
        self.frozen_at: int | None = frozen_at
        self.parked = EarlyDeferrals()
        self.channels: dict[str, ChannelState] = {}

    @property
    def in_doubt(self) -> bool:
        return any(channel.in_doubt for channel in self.channels.values())

    def start(self, now_ms: int) -> None:
        """Release all early deferrals to the channels. Their delays start at `now_ms`."""
        for start, count, delay_ms in self.parked.in_order():
            for channel in self.channels.values():
                if delay_ms < 0:
                    channel.skip(start, start + count)
                else:
                    channel.defer(start, count, now_ms + delay_ms + 1)  # + 1, because now_ms was rounded down
        self.parked.clear()

    def edit(self, name: str, channel: str, copy: int, replaced: int, due_ms: int) -> None:
        """Let an edited copy wait in one channel, and the others skip it. `name` is the topic's."""
        is_released = self.frozen_at is None or copy < self.frozen_at
        if not is_released:  # the channels skip it when the topic releases it
            self.parked.cancel(BitMap64([copy]))
        for other, state in self.channels.items():
            if other == channel:
                state.edit(name, other, copy, replaced, due_ms, is_released=is_released)
            elif is_released:
                state.skip(copy, copy + 1)

    def cut(self, tail: int) -> bool:
        """Clamp all positions to the recovered tail. Return whether anything has changed.

        The next messages get sequences from the tail on. Without this, they would count as finished.
        """
        changed = self.parked.cut(tail) or (self.frozen_at is not None and self.frozen_at > tail)
        if self.frozen_at is not None:
            self.frozen_at = min(self.frozen_at, tail)
        for channel in self.channels.values():
            changed |= channel.cut(tail)
        return changed


def replay(changes: Iterable[Sequence[object]]) -> dict[str, TopicState]:
    """Apply all changes of a journal. Return the topics' states.

    Changes of unknown topics and channels are ignored, because they are leftovers of deleted ones.
    """
    topics: dict[str, TopicState] = {}
    # Of each snapshot that has begun: its parts, and the changes in between.
    unended: dict[object, tuple[list[Sequence[Any]], list[Change]]] = {}
    for change in changes:
        match change:
            case ["begin", name]:
                unended[name] = [], []
            case ["part", name, part] if isinstance(part, list | tuple):
                if name in unended:  # otherwise the snapshot's beginning is damaged
                    unended[name][0].append(part)
            case ["end", str(name), count]:
                parts, since = unended.pop(name, ([], []))
                if len(parts) == count or name not in topics:  # if a part is damaged, the state that we have is better
                    topics.pop(name, None)
                    for earlier in chain(*parts, since):
                        if is_known(earlier):
                            _apply(topics, earlier)
            case _ if is_known(change):
                _apply(topics, change)
                if unended and change[1] in unended:
                    unended[change[1]][1].append(change)
    return topics


class DeletedNames:
    """The topics and channels that were deleted and not created again, according to the journal."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.channels: set[tuple[str, str]] = set()  # topic, name

    def collect(self, changes: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the changes, and collect deletions along the way, because a second pass over a million is too slow."""
        for change in changes:
            match change:
                case ["drop", str(name)]:
                    self.topics.add(name)
                case ["topic", str(name)]:
                    self.topics.discard(name)
                case ["nochannel", str(topic), str(name)]:
                    self.channels.add((topic, name))
                case ["channel", str(topic), str(name), *_]:
                    self.channels.discard((topic, name))
            yield change


def complete(
    topics: dict[str, TopicState],
    topology: object,
    firsts: Mapping[str, int],
    *,
    journal_is_whole: bool,
    compacted: Callable[[str], Iterable[tuple[int, int, int]]] = lambda topic: (),
    deleted: Collection[tuple[str, str]] = (),
) -> set[str]:
    """Add topics and channels that the journal has lost, from topology.json (`topology`). Return the completed topics.

    `firsts` maps each existing log to its first sequence. An added channel reads from there, because duplicates are
    better than loss. If the journal is whole, we don't change the topics that it knows, because it is newer than
    topology.json. The channels in `deleted`, as (topic, channel), are never added. topology.json doesn't say whether a
    topic has learned its channels from nsqlookupd, so the topic asks again, which takes a moment.

    `compacted` returns the messages before a log's first sequence that compaction has kept, as (sequence, count,
    due_ms); due_ms 0 means now.
    """
    completed = set()
    for name, description in (topology if isinstance(topology, dict) else {}).items():
        if name not in firsts or (name in topics and journal_is_whole):
            continue
        if name not in topics:
            completed.add(name)
        topic = topics.setdefault(name, TopicState(paused=description["paused"], frozen_at=firsts[name]))
        for channel, details in description["channels"].items():
            if channel not in topic.channels and (name, channel) not in deleted:
                completed.add(name)
                state = topic.channels[channel] = ChannelState(firsts[name])
                state.paused = details["paused"]
                for start, count, due_ms in compacted(name):
                    state.waiting.update((sequence, (0, due_ms)) for sequence in range(start, start + count))
        if topic.channels and not topic.paused:
            topic.frozen_at = None
            topic.parked.clear()  # they are released with the rest, so the cursors will reach them
    return completed


def missing_fronts(topics: Mapping[str, TopicState], firsts: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, start, end) for each log that begins too late: a channel still needs [start, end)."""
    for name, first in firsts.items():
        if name in topics and topics[name].channels:
            needed = min(channel.needed for channel in topics[name].channels.values())
            if needed < first:
                yield name, needed, first


def _apply(topics: dict[str, TopicState], change: Change) -> None:
    match change:
        case ("snapshot", name) | ("drop", name):
            topics.pop(name, None)
        case ("topic", name):
            topics.setdefault(name, TopicState())
        case _ if (topic := topics.get(change[1])) is not None:
            _apply_to_topic(topic, change)


def _apply_to_topic(topic: TopicState, change: Change) -> None:
    match change:
        case ("snapshot" | "drop" | "topic", _) | ("keys" | "keyless", _, _):
            pass  # `_apply` has handled the first three, and the log handles the others
        case ("pause", _, paused):
            topic.paused = paused
        case ("learned", _):
            topic.learned = True
        case ("freeze", _, sequence):
            topic.frozen_at = sequence
            topic.parked.pass_over(sequence)
        case ("flow", _):
            topic.frozen_at = None
        case ("park", _, start, count, delay_ms):
            topic.parked.add(start, count, delay_ms)
        case ("cancel", _, sequence):
            topic.parked.cancel(BitMap64([sequence]))
        case ("start", _, now_ms):
            topic.start(now_ms)
        case ("unpark", _):
            topic.parked.clear()
        case ("cut", _, tail):
            topic.cut(tail)
        case ("doubt", _, sequence):
            for channel in topic.channels.values():
                channel.doubt(sequence)
        case ("edit", name, edited, copy, replaced, due_ms):  # not `channel`: for mypyc, that is a ChannelState here
            topic.edit(name, edited, copy, replaced, due_ms)
        case ("channel", _, name, cursor):
            topic.channels.setdefault(name, ChannelState(cursor))
        case ("nochannel", _, name):
            topic.channels.pop(name, None)
        case ("defer", _, start, count, due_ms):
            for channel in topic.channels.values():
                channel.defer(start, count, due_ms)
        case _:
            if (state := topic.channels.get(change[2])) is not None:
                _apply_to_channel(state, change)


def _apply_to_channel(channel: ChannelState, change: ChannelChange) -> None:
    match change:
        case ("progress", _, _, cursor, finished):
            channel.progress(cursor, finished)
        case ("wait", _, _, entries):
            for sequence, attempts, due_ms in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
                channel.wait(sequence, attempts, due_ms)
        case ("try", _, _, attempts, sequences):
            for sequence in sequences:
                channel.wait(sequence, attempts, 0)
        case ("held", _, _, ranges):
            channel.hold(ranges)
        case ("hold", _, _, paused):
            channel.paused, channel.paused_why = bool(paused), paused if isinstance(paused, str) else ""
        case ("bury", _, _, notes, entries):
            channel.bury(notes, entries)
        case ("edited", _, _, copies, replaced):
            channel.edited.fill(copies, replaced)
        case ("job", _, _, job):
            channel.job = job
        case ("empty", _, _, cursor):
            channel.empty(cursor)
        case ("seek", _, _, cursor):
            channel.seek(cursor)
        case ("restore", _, _, cursor, end, skipped, waiting):
            channel.restore(cursor, end, skipped, waiting)
        case ("skip", _, _, start, end):
            channel.skip(start, end)
        case _:
            assert_never(change)


def _overlaps(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the intersection of two lists of ascending, non-overlapping ranges."""
    i = j = 0
    while i < len(some) and j < len(others):
        start, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start < end:
            yield start, end
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1


def _gaps(start: int, end: int, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that no range covers."""
    for low, high in sorted(ranges):
        if low > start:
            yield start, min(low, end)
        start = max(start, high)
        if start >= end:
            return
    if start < end:
        yield start, end
