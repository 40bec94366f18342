"""The changes that the journal keeps, and how they add up to a state again.

`change.py` lists the words.

**How a channel comes back after a crash.** The journal has no entry for each message. It tells of a channel

    cursor     everything before it has been taken from the log
    waiting    messages that were taken and are not finished, each with its attempts and when it is due
    skips      ranges at or after the cursor that were taken already, so that the cursor passes over them
    buried     messages that were taken and failed for good; what names one of them anew takes it out of here

A `progress` names the new cursor, and what was finished since the last one. Messages that the cursor has passed and
that are not finished must have been in flight, so no entry has to say so. For example, a channel at 0 is sent the
messages 0 to 5 and finishes 1, 2 and 4; ranges are written as start and end:

    ("progress", "t", "c", 6, [1, 3, 4, 5])     cursor 6; 0, 3 and 5 were in flight, and wait with one attempt each
    ("progress", "t", "c", 6, [3, 4])           3 is finished as well; 0 and 5 wait
    ("defer", "t", 7, 1, due_ms)                7 waits until it is due, and is a skip: it is not in flight when passed
    ("progress", "t", "c", 9, [6, 7])           cursor 9; 0 and 5 wait as before, 7 until it is due, 8 with one attempt

A crash between two entries loses only the later one: then a few messages that were finished are delivered again.

A `restore` tells anew what waits before its end, and what it does not name is finished there. What lies behind the end
stays, so what the cursor had passed there becomes a skip. With the cursor at 9, and 0, 5, 7 and 8 waiting as above:

    ("restore", "t", "c", 2, 6, [3, 4], [1, 2, 0])     cursor 2; 3 and 6 to 8 are skips; 1 waits with two attempts, 7
                                                       and 8 as before, and 2, 4 and 5 are read from the log

**Doubt.** Where a frame of the journal is damaged, nobody knows what it told. It may have told that the end of a log
was cut off after a failure, so that the sequences behind the last synced place are other messages now; or that 820 was
deferred. So the store puts a `doubt` in the place of the frame, with the sequence up to which the log was synced then.
Each channel of the topic whose cursor is further on reads again from there: duplicates are better than loss. Waiting
messages keep their place. Say the log was synced up to 800, and the next entry is ("progress", "t", "c", 950, [900,
950]). Normally 800 to 899 would now count as in flight. A channel in doubt does not believe that: its cursor stays at
800, and only 900 to 949 are skipped as finished. The doubt ends when the channel is emptied or moved, or when a
snapshot tells its state anew.

A snapshot of a topic that is too long for one frame comes in parts, with other changes of the topic in between:

    ("begin", "t")                the parts that follow tell the state as of here
    ("part", "t", [...])          some changes of the snapshot, to be applied at its end
    ("progress", "t", ...)        happened meanwhile: applied at once, and again after the snapshot
    ("part", "t", [...])
    ("end", "t", 2)               the two parts, and then the progress, replace what was known of t

If a part or the end is missing, what was known stays, and it is up to date: all changes in between were applied to it.
Only a topic of which nothing was known takes the parts that are there, and only at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, assert_never

from pyroaring import BitMap64

from nsqd.broker.buried import BuriedMessages, buried_sequences
from nsqd.broker.change import is_known
from nsqd.broker.early_deferrals import EarlyDeferrals

if TYPE_CHECKING:
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.store import Entry


_NO_SEQUENCE: Final = 1 << 64  # beyond all sequences


class ChannelState:
    """A channel as the journal tells it."""

    def __init__(self, cursor: int) -> None:
        self.born = cursor  # where it began: earlier messages were handed over before it existed
        self.cursor = cursor
        self.paused = False
        self.paused_why = ""  # if it was not a person who has paused it
        self.in_doubt = False  # changes that were told about it are lost
        self.skips: deque[tuple[int, int]] = deque()  # ascending; there may be one for each deferred message
        self.waiting: dict[int, tuple[int, int]] = {}  # sequence -> (attempts, due_ms)
        self.buried = BuriedMessages()
        self.job: Sequence[object] = ()  # the job that was under way, if any

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
            self.skip(sequence, sequence + 1)  # the entry with which the cursor passed it may be lost
        self.waiting[sequence] = (attempts, due_ms)
        if self.buried:
            self.buried.remove(sequence)

    def bury(self, notes: Sequence[str], entries: Sequence[int]) -> None:
        for sequence in buried_sequences(entries):
            if self.in_doubt and sequence not in self.waiting:
                self.skip(sequence, sequence + 1)
            self.waiting.pop(sequence, None)
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
            for sequence in range(start, end):  # in flight when this was written
                self.waiting[sequence] = (1, 0)
        self.cursor = max(cursor, before)
        # What the cursor has just passed was not waiting, except for deferred messages in the skip ranges.
        for start, end in _overlaps(done, [(0, before), *passed, (self.cursor, _NO_SEQUENCE)]):
            self._finish(start, end)

    def _finish(self, start: int, end: int) -> None:
        for sequence in range(start, end):
            self.waiting.pop(sequence, None)
            if self.buried:
                self.buried.remove(sequence)

    def _progress_in_doubt(self, done: list[tuple[int, int]]) -> None:
        """Skip what is finished, without moving the cursor: what lies between may be deferred, and is read again."""
        for start, end in done:
            self.skip(start, end)
            self._finish(start, end)

    def _pass_over(self, cursor: int) -> list[tuple[int, int]]:
        """Take off, and return, the part of the skip ranges that lies before the cursor."""
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
        self.skips = deque(self.buried.ranges(cursor, _NO_SEQUENCE))

    def restore(self, cursor: int, end: int, skipped: Sequence[int], waiting: Sequence[int]) -> None:
        """Replace what waits before `end`, except for what is buried.

        What the cursor has passed behind `end` is skipped from now on, as the cursor may come back from before it. A
        doubt about what lies there stays.
        """
        passed = [(end, self.cursor)] if end < self.cursor else []
        later = [*passed, *((max(start, end), stop) for start, stop in self.skips if stop > end)]
        self.cursor = cursor
        self.skips.clear()
        buried = self.buried.ranges(cursor, end)
        for start, stop in [*zip(skipped[::2], skipped[1::2], strict=True), *buried, *later]:
            self.skip(start, stop)
        self.waiting = {sequence: place for sequence, place in self.waiting.items() if sequence >= end}
        for sequence, attempts, due_ms in zip(waiting[::3], waiting[1::3], waiting[2::3], strict=True):
            if sequence not in self.buried:
                self.waiting[sequence] = (attempts, due_ms)
            self.skip(sequence, sequence + 1)

    @property
    def needed(self) -> int:
        """The first sequence that is neither passed nor skipped."""
        needed = self.cursor
        for start, end in self.skips:
            if start > needed:
                break
            needed = max(needed, end)
        return needed

    def doubt(self, sequence: int) -> None:
        """Read again from this sequence on. Messages that wait keep their place, and are not read twice."""
        self.in_doubt = True
        waiting = sorted(s for s in self.waiting if s >= sequence)
        buried = self.buried.ranges(sequence, _NO_SEQUENCE)
        self.skips = deque((start, min(end, sequence)) for start, end in self.skips if start < sequence)
        self.cursor, self.born = min(self.cursor, sequence), min(self.born, sequence)
        for place in waiting:
            self.skip(place, place + 1)
        for start, end in buried:
            self.skip(start, end)

    def cut(self, tail: int) -> bool:
        """Drop everything at or after the tail. Return whether there was anything."""
        beyond = [s for s in self.waiting if s >= tail]
        for sequence in beyond:
            del self.waiting[sequence]
        skips = deque((start, min(end, tail)) for start, end in self.skips if start < tail)
        changed = self.buried.cut(tail) or bool(beyond) or self.cursor > tail or self.born > tail or skips != self.skips
        self.skips = skips
        self.cursor, self.born = min(self.cursor, tail), min(self.born, tail)
        return changed


class TopicState:
    """A topic as the journal tells it. `frozen_at` is None while H follows the tail."""

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
        """Hand over to all channels what is parked: delays begin at this time."""
        for start, count, delay_ms in self.parked.in_order():
            for channel in self.channels.values():
                if delay_ms < 0:
                    channel.skip(start, start + count)
                else:
                    channel.defer(start, count, now_ms + delay_ms + 1)
        self.parked.clear()

    def cut(self, tail: int) -> bool:
        """Clamp every position to the recovered tail; otherwise new messages would count as finished.

        Return whether anything has changed.
        """
        changed = self.parked.cut(tail) or (self.frozen_at is not None and self.frozen_at > tail)
        if self.frozen_at is not None:
            self.frozen_at = min(self.frozen_at, tail)
        for channel in self.channels.values():
            changed |= channel.cut(tail)
        return changed


def replay(changes: Iterable[Sequence[object]]) -> dict[str, TopicState]:
    """Return the state that a journal adds up to. Changes of unknown topics and channels are ignored leftovers."""
    topics: dict[str, TopicState] = {}
    # Parts of a snapshot, and changes since it began.
    unended: dict[object, tuple[list[Sequence[Any]], list[Change]]] = {}
    for change in changes:
        match change:
            case ["begin", name]:
                unended[name] = [], []
            case ["part", name, part] if isinstance(part, list | tuple):
                if name in unended:  # otherwise the beginning of the snapshot is damaged
                    unended[name][0].append(part)
            case ["end", str(name), count]:
                parts, since = unended.pop(name, ([], []))
                if len(parts) == count or name not in topics:  # if a part is damaged, what was known before is better
                    topics.pop(name, None)
                    for told in chain(*parts, since):
                        if is_known(told):
                            _apply(topics, told)
            case _ if is_known(change):
                _apply(topics, change)
                if unended and change[1] in unended:
                    unended[change[1]][1].append(change)
    return topics


class DeletedNames:
    """Topics and channels that the journal knows to be deleted and not made again."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.channels: set[tuple[str, str]] = set()  # topic, name

    def collect(self, changes: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the changes unchanged, and note deletions: a second pass over a million would take too long."""
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
    named: object,
    firsts: Mapping[str, int],
    *,
    journal_is_whole: bool,
    compacted: Callable[[str], Iterable[tuple[int, int, int]]] = lambda topic: (),
    deleted: Collection[tuple[str, str]] = (),
) -> set[str]:
    """Add what the journal has lost and the second place, `named`, still knows. Return the topics that were completed.

    `firsts` maps each existing log to its first sequence. A channel that is added reads from there again, because
    duplicates are better than loss. If the journal is whole, it is believed about every topic that it knows, because it
    is newer. The channels in `deleted`, as (topic, channel), are never added. The second place does not tell what a
    topic had learned, so the topic asks again, which costs a moment.

    `compacted` returns what a log has from before its beginning, as (sequence, count, due_ms); due_ms is 0 for at once.
    """
    mended = set()
    for name, description in (named if isinstance(named, dict) else {}).items():
        if name not in firsts or (name in topics and journal_is_whole):
            continue
        if name not in topics:
            mended.add(name)
        topic = topics.setdefault(name, TopicState(paused=description["paused"], frozen_at=firsts[name]))
        for channel, details in description["channels"].items():
            if channel not in topic.channels and (name, channel) not in deleted:
                mended.add(name)
                state = topic.channels[channel] = ChannelState(firsts[name])
                state.paused = details["paused"]
                for start, count, due_ms in compacted(name):
                    state.waiting.update((sequence, (0, due_ms)) for sequence in range(start, start + count))
        if topic.channels and not topic.paused:
            topic.frozen_at = None
            topic.parked.clear()  # handed over with the rest, so cursors will meet these messages
    return mended


def missing_fronts(topics: Mapping[str, TopicState], firsts: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, start, end) where a channel still needs [start, end) and the log does not have it."""
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
            pass  # of all topics, see above; and the log's own affair
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
        case ("hold", _, _, paused):
            channel.paused, channel.paused_why = bool(paused), paused if isinstance(paused, str) else ""
        case ("bury", _, _, notes, entries):
            channel.bury(notes, entries)
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
    """Yield what lies in both of two ascending lists of ranges that do not overlap among themselves."""
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
