"""Which message comes next when it matters to which group a message belongs: limits, order and fair shares.

A message's group is its header `nsq-group`. The policy has three rules about groups, in any combination:

    max_in_flight_per_group = 2     at most two messages of each group are in flight
    order = "group"                 one at a time, in the order of the log; a failed message holds up the later ones
    share = "group"                 groups take turns; one with a weight gets more messages in its turn

Messages without a group have neither order nor limit. For `share`, they are one group together.

**Where a message of a group waits.** One group must not make the others wait. So the cursor passes over a message that
can't go now, and the message is *held* (held.py):

                     it may go
    at the cursor ────────────────────────────► in flight ──── FIN ──► gone
          │                                      ▲     │
          │ it may not                           │     │ requeued, timed out
          ▼                                      │     ▼
    held, in its group's queue ──── ring ────────┴── again, or later (deferred)

The *ring* has the groups that have something waiting and a free place. They take turns, in rounds: a message costs its
group one round divided by its weight, and the group that has used the least comes first. So a group with weight 3 gets
three messages while each other group gets one, even if it often has to wait for a free place: until then, it keeps up to
one round of what it hasn't used. Without `share`, the cursor and the ring take turns like new messages and retries
elsewhere, so most messages of a channel whose consumers keep up are never held. With `share`, we first *sort* all messages
up to the high watermark into the groups' queues, some thousands in each turn: otherwise the million messages of one
customer would hide the next customer's.

For example, with `order`, 1 and 2 are of group a, and 3 is of group b. Two consumers get 1 and 3, and 2 is held. When 1 is
finished, a goes onto the ring, and 2 is delivered. If 1 is requeued instead, 1 comes again before 2; if it is requeued
with a delay, 2 waits until then. If 1 is buried, it holds up nothing, and when it is kicked, it comes before all that
waits in its group.

**Nobody tells this class what has become of a message**, except consumers' answers. The ledger knows each message's place,
and `follow` asks for what has changed since the last delivery (`NotedMembers`). So a new way to cancel or move messages
can't forget a group. Everything here can be rebuilt from the ledger and the log, and is, when nsqd starts or the rules
change (`Channel.renew_groups`):

- Held messages are *unsorted* at first. We read them from the log, lowest first, before the cursor moves on.
- With `order`, a message that was delivered before holds up its group wherever it waits, so we have to *learn* the groups
  of all of them before the first delivery. With a limit, the same goes for the messages in flight. Both are done in
  slices.

So the journal has the numbers of the held messages (`held`), and no names of groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import TYPE_CHECKING, Any, Final, final

from pyroaring import BitMap64

from nsqd.broker.held import HeldQueue
from nsqd.broker.queue_members import SEQUENCE_BITS, SEQUENCE_MASK
from nsqd.broker.reclaimer import MANY

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.ledger import Ledger
    from nsqd.broker.reclaimer import Reclaimer
    from nsqd.broker.rules import ChannelRules
    from nsqd.broker.turn_context import TurnContext

    AnyTurn = TurnContext[Any, Any]

MOST_HELD: Final = 20_000_000  # messages, unless the policy says otherwise: at most 100 MB
# A group costs as much memory as a hundred held messages. So there are fewer groups than that allows, too, in case every
# message has a group of its own. But a small `max_held` is only about messages.
_HELD_FOR_A_GROUP: Final = 100
_FEW_GROUPS: Final = 1_000
# In a turn, over all channels. But each channel does some of it, so that all of them get ahead.
_SORTED_IN_TURN: Final = 2_000  # messages that are held or learned; a few milliseconds
_SORTED_AT_LEAST: Final = 100
_PASSED_IN_TURN: Final = 5_000  # stale entries
_READ_AT_LEAST: Final = 2
_READ_IN_TURN: Final = 50  # batches that aren't in our memory; the system has most of them in its own, 100 us each
_PUT_OFF_AT_ONCE: Final = 1_000  # groups that are tried again
_NAMED_AT_ONCE: Final = 500  # messages of a batch
_LISTED_AT_ONCE: Final = 5_000  # groups
_PASSED_FOR_A_ROW: Final = 20  # stale entries; a list has up to 1,000 rows
_NO_LIMIT: Final = 1 << 60
_ROUND: Final = 1 << 20  # what a message costs a group with weight 1
_NOBODY: Final = b""  # stands for the group of messages without one


@final
class Group:
    """A group with something in flight or waiting. Others are forgotten."""

    __slots__ = (
        "again",
        "in_flight",
        "is_ready",
        "known",
        "later",
        "limit",
        "name",
        "queue",
        "retry_is_next",
        "used",
    )

    def __init__(self, name: bytes, limit: int, used: int) -> None:
        self.name = name
        self.limit = limit  # messages in flight
        self.in_flight = 0
        # None instead of empty ones, because most groups have neither, and a message may have a group of its own
        self.queue: HeldQueue | None = None  # held messages
        self.again: list[int] | None = None  # a heap of retries: with `order` by sequence, else as they arrived
        self.later: list[int] | None = None  # a heap of deferred messages that hold up the others
        self.known = 0  # messages that wait again or later, and that we know to be of this group
        self.used = used  # on the ring, the group with the least comes first
        self.is_ready = False  # on the ring, or set aside
        self.retry_is_next = True  # alternates, so that neither retries nor held messages starve


# In the heap of the ring: what the group has used, its first message, and when it has entered. So within a round, we read
# forward through a backlog on disk, which is faster than reading here and there.
_Entry = tuple[int, int, int, Group]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    name: bytes
    held: int  # messages, including some that were cancelled and not passed yet
    retries: int  # messages that wait again, or are deferred after a delivery
    in_flight: int
    oldest: int  # sequence of the first held message; -1: none
    weight: int = 1


@final
class Groups:
    """The groups of a channel whose policy has rules about them."""

    __slots__ = (
        "_arrivals",
        "_aside",
        "_bad",
        "_beyond",
        "_entered",
        "_flying",
        "_going",
        "_going_from",
        "_groups",
        "_holding",
        "_is_full",
        "_is_ordered",
        "_known",
        "_large",
        "_later_seen",
        "_ledger",
        "_left",
        "_limit",
        "_most_groups",
        "_most_held",
        "_named_from",
        "_names",
        "_passed",
        "_put_off",
        "_read",
        "_retries_seen",
        "_ring",
        "_sorted",
        "_to_learn",
        "_turn",
        "_turn_of",
        "_unknown",
        "_used",
        "_weights",
        "full_since",
        "gave_up_places",
        "ignored",
        "shares",
        "sorts",
        "unsorted",
    )

    def __init__(self, ledger: Ledger, rules: ChannelRules, turn: AnyTurn) -> None:
        self._ledger = ledger
        self._turn = turn
        self._is_ordered = rules.order is not None
        self._limit = 1 if self._is_ordered else rules.max_in_flight_per_group or _NO_LIMIT
        self.shares = rules.share is not None
        self.sorts = False  # whether new messages are held even if they could go; see `choose_way`
        self._is_full = False  # whether the cursor has met `max_held` in this delivery
        self.full_since: int | None = None  # wall clock, nanoseconds: since when the cursor waits because of `max_held`
        self.ignored = 0  # messages whose `nsq-group` is no valid name, since the channel last took the number
        self.gave_up_places = False  # whether places were given up in this delivery, because consumers sample
        self.follow_rules(rules)
        self._groups: dict[bytes, Group] = {}
        self._ring: list[_Entry] = []
        self._entered = 0  # groups that have entered it so far
        self._holding = 0  # groups that have held messages in their queues
        self._large: list[list[int]] = []  # heaps that the reclaimer has to free, because that takes long
        self._used = 0  # what the group that was served last had used by then
        self._aside: list[_Entry] = []  # their next message has to be read from disk
        self._put_off: deque[tuple[float, _Entry]] = deque()  # the disk refuses to read their next message
        self._beyond: list[Group] = []  # the cursor hasn't passed their next message yet
        self._names: list[bytes] = []  # the groups of messages from `_named_from` on
        self._named_from = 0
        self._bad: list[int] = []  # messages among them whose name is no valid one
        # In flight: the wire id of each message, because FINs have only that.
        self._flying: dict[bytes, Group] = {}
        self._going: list[Group] = []  # of the messages that are just being delivered, from `_going_from` on
        self._going_from = 0
        self._left: list[int] = []  # not in flight any more since the last `follow`, and not finished
        # Waiting again, or deferred after a delivery, by sequence
        self._known: dict[int, Group] = {}
        self._arrivals = 0
        ledger.retries.note_changes(wanted=True)
        ledger.deferred.note_changes(wanted=True)
        self._retries_seen = ledger.retries.members.sequences.copy()  # the retries as of the last `follow`
        self._later_seen = BitMap64()  # known messages that were deferred then
        self._unknown = self._retries_seen.copy()  # retries whose group we don't know yet
        # What an earlier process, or this channel without these rules, has left
        self.unsorted = ledger.held.all()
        self._to_learn = BitMap64()  # their groups must be known before the first delivery
        if self._limit < _NO_LIMIT:
            self._to_learn |= ledger.in_flight.all()
        if self._is_ordered:
            self._to_learn |= ledger.retries.members.sequences | ledger.deferred_after_delivery()
        # In this turn
        self._turn_of = -1.0
        self._sorted = 0
        self._passed = 0
        self._read = 0

    def follow_rules(self, rules: ChannelRules) -> None:
        """Use these weights and this `max_held` from now on. Any other change needs a new object."""
        self._weights = {name.encode(): weight for name, weight in rules.weights}
        self._most_held = rules.max_held or MOST_HELD
        self._most_groups = max(_FEW_GROUPS, self._most_held // _HELD_FOR_A_GROUP)

    def clear(self, reclaimer: Reclaimer) -> None:
        """Forget everything, because the channel begins anew."""
        reclaimer.add(self._groups, self._flying, self._known)
        reclaimer.add(*self._large)  # these are freed first, and then their groups take no time
        self._ring.clear()

    # Before a delivery

    def begin(self, now: float) -> None:
        """Take note of this turn, and of what has become of the messages since the last delivery."""
        if now != self._turn_of:
            self.begin_turn(now)
        self._is_full = False
        for entry in self._aside:
            heappush(self._ring, entry)
        self._aside.clear()
        for _ in range(_PUT_OFF_AT_ONCE):
            if self.put_off_until > now:
                break
            _, entry = self._put_off.popleft()
            heappush(self._ring, entry)
        self.follow()
        if self._ring and not (self._ledger.held.total or self._ledger.retries.members.count):
            self.look_beyond()
            self.next()  # forgets the groups: all of their messages have expired or were cancelled

    def begin_turn(self, now: float) -> None:
        self._turn_of, self._sorted, self._passed, self._read = now, 0, 0, 0

    def follow(self) -> None:
        """Compare the ledger with what we know of it, so that each waiting message is where its group looks for it."""
        ledger = self._ledger
        if self.unsorted:
            self.unsorted = ledger.held.among(self.unsorted)
        changed = ledger.retries.changes() | ledger.deferred.changes()
        if self._left:
            changed |= BitMap64(self._left)
            self._left.clear()
        retries = ledger.retries.members.sequences
        if changed:
            here, seen = retries & changed, self._retries_seen & changed
            gone, fresh = seen - here, here - seen
            self._retries_seen -= gone
            self._retries_seen |= fresh
            self._unknown -= gone
            self._take_retries(fresh)
            self._take_deferred(ledger.deferred.among(changed), changed)
        if self._to_learn:
            wanted = self._to_learn
            self._to_learn = ledger.in_flight.among(wanted) | retries & wanted | ledger.deferred.among(wanted)

    def _take_retries(self, fresh: BitMap64) -> None:
        known = BitMap64([it for it in fresh if it in self._known]) if self._known else BitMap64()
        for sequence in known:
            self._wait_again(sequence, self._known[sequence])
        self._unknown |= fresh - known

    def _take_deferred(self, deferred: BitMap64, changed: BitMap64) -> None:
        """Note which of the messages that came or left are deferred, and forget the ones that are gone."""
        elsewhere = changed - deferred
        for sequence in elsewhere:
            group = self._known.get(sequence)
            if group is None:
                continue
            if sequence not in self._retries_seen:
                self._forget(sequence, group)
            self._look_at(group)  # it may have been held up by this message
        fresh = deferred - self._later_seen
        self._later_seen -= elsewhere
        for sequence in fresh:
            if (group := self._known.get(sequence)) is not None:
                self._wait_later(sequence, group)

    def _wait_again(self, sequence: int, group: Group) -> None:
        """Note that a message of the group is among the retries."""
        self._arrivals += 1
        place = sequence if self._is_ordered else self._arrivals << SEQUENCE_BITS | sequence
        if group.again is None:
            group.again = []
        self._push(group.again, place)
        self._look_at(group)

    def _wait_later(self, sequence: int, group: Group) -> None:
        """Note that a message of the group is deferred. It holds up the group only if there is an order to keep."""
        self._later_seen.add(sequence)
        if self._is_ordered:
            if group.later is None:
                group.later = []
            self._push(group.later, sequence)
        self._look_at(group)

    def _push(self, heap: list[int], entry: int) -> None:
        heappush(heap, entry)
        if len(heap) == MANY + 1:
            self._large = [it for it in self._large if it and it is not heap]
            self._large.append(heap)

    def _know(self, sequence: int, group: Group) -> None:
        self._known[sequence] = group
        group.known += 1

    def _forget(self, sequence: int, group: Group) -> None:
        del self._known[sequence]
        group.known -= 1

    def _look_at(self, group: Group) -> None:
        """Put a group onto the ring if it has something waiting and a free place. Forget it if it has nothing at all."""
        if group.is_ready:
            return
        if group.queue is not None or group.again is not None:
            if group.in_flight < group.limit:
                group.is_ready = True
                group.used = max(group.used, self._used - _ROUND)  # so that it can't make others wait for long
                self._entered += 1
                heappush(self._ring, (group.used, _first_of(group), self._entered, group))
        elif not (group.in_flight or group.known):
            self._groups.pop(group.name, None)

    @property
    def may_sort(self) -> bool:
        """Whether more messages may be sorted or learned in this turn."""
        return self._sorting_left > 0

    @property
    def _sorting_left(self) -> int:
        return max(_SORTED_IN_TURN - self._turn.spending.sorted, _SORTED_AT_LEAST - self._sorted, 0)

    def _note_sorted(self, count: int) -> None:
        self._sorted += count
        self._turn.spending.sorted += count

    @property
    def may_read(self) -> bool:
        """Whether more batches may be read from the page cache in this turn."""
        return self._turn.spending.cold_reads < _READ_IN_TURN or self._read < _READ_AT_LEAST

    def note_read(self) -> None:
        self._read += 1
        self._turn.spending.cold_reads += 1

    def must_learn_first(self, *, is_getting_ahead: bool) -> bool:
        """Return whether nothing may be delivered before we know more groups.

        That is so until we know the groups of all messages that an earlier process, or this channel with other rules, has
        delivered. Later, messages may come back whose groups we don't know, for example a kicked one. With `order`, the
        later ones of its group have to wait for it, as long as we are getting ahead: we don't wait for the disk.
        """
        return bool(self._to_learn) or (self._is_ordered and bool(self._unknown) and is_getting_ahead)

    def has_more_to_learn(self, count: int) -> bool:
        """Return whether there are more than so many messages whose groups we have to read from the log."""
        return len(self._to_learn) + len(self._unknown) > count

    def unlearned(self, cached_from: int) -> list[int]:
        """Return messages whose groups we have to read from the log, as many as this turn may learn.

        The ones from `cached_from` on come first, because they are in memory.
        """
        found = _cached_first(self._to_learn, self._sorting_left, cached_from)
        return found + _cached_first(self._unknown, self._sorting_left - len(found), cached_from)

    def learn(self, sequence: int, batch: Batch | None) -> None:
        """Learn the group of one of the `unlearned` messages. None: it can't be read, so it counts as without a group."""
        self._note_sorted(1)
        ledger = self._ledger
        self._to_learn.discard(sequence)
        self._unknown.discard(sequence)
        if sequence in self._known:
            return
        message_id = b"%016x" % (batch.base_id + sequence - batch.base_sequence) if batch is not None else b""
        if ledger.in_flight.owner(message_id) is not None:
            if message_id not in self._flying:
                group = self._group(self._name(batch, sequence))
                self._flying[message_id] = group
                group.in_flight += 1
        elif sequence in ledger.retries:
            group = self._group(self._name(batch, sequence))
            self._know(sequence, group)
            if sequence in self._retries_seen:
                self._wait_again(sequence, group)
        elif sequence in ledger.deferred:
            group = self._group(self._name(batch, sequence))
            self._know(sequence, group)
            self._wait_later(sequence, group)

    def choose_way(self, room: int) -> None:
        """Choose whether new messages are sorted first, for consumers with this much room.

        If nothing waits in the groups, and there is room for all new messages, the order of arrival is fair, and faster.
        """
        ledger = self._ledger
        self.sorts = self.shares and (ledger.held.total > 0 or bool(self._ring) or room < ledger.ahead)

    @property
    def has_sorted_all(self) -> bool:
        """Whether all messages that may be held are in the queues of their groups."""
        ledger = self._ledger
        return not (self.unsorted or (ledger.ahead > ledger.held.total and self.room))

    @property
    def may_deliver(self) -> bool:
        """Whether a message may come before a consumer answers: one that may go, or that the log is reading."""
        return bool(self._ring or self._aside or self._to_learn or self._unknown) or not self.has_sorted_all

    @property
    def available(self) -> int:
        """About how many messages can be delivered now: ahead of the cursor, unsorted, or of groups on the ring."""
        ledger = self._ledger
        waiting = ledger.held.total + ledger.retries.members.count
        ready = len(self._ring) * min(self._limit, waiting)
        if (nobody := self._groups.get(_NOBODY)) is not None:
            ready += nobody.known + _held_by(nobody)
        return ledger.ahead - ledger.held.total + min(len(self.unsorted) + ready, waiting)

    # New messages

    def first_unsorted(self) -> int | None:
        """Return the oldest held message that is in no group's queue yet, or None."""
        unsorted = self.unsorted
        while unsorted:
            if (sequence := unsorted.min()) in self._ledger.held:
                return sequence
            unsorted.discard(sequence)  # it has expired or the like since `follow`
        return None

    def admit(self, batch: Batch, first: int, stop: int) -> int:
        """Take places for the run of messages from `first` up to `stop` that may go now. Return its end.

        Deliver them right after this.
        """
        going: list[Group] = []
        self._going, self._going_from = going, first
        if self.sorts:
            return first
        groups = self._groups
        for name in self._names_of(batch, first, stop):
            group = groups.get(name)
            if group is None:
                group = self._new_group(name)
            elif not self._may_go(group):
                break
            group.in_flight += 1
            going.append(group)
        end = first + len(going)
        self._note_passed(first, end)
        return end

    def sort(self, batch: Batch, first: int, stop: int) -> int:
        """Put the run of messages from `first` up to `stop` that may not go now into their groups' queues.

        Return its end, which comes early if this turn has sorted enough. The ledger has to hold these messages.
        """
        groups, end = self._groups, first
        for name in self._names_of(batch, first, min(stop, first + self._sorting_left)):
            group = groups.get(name)
            if group is None:
                if not self.sorts:
                    break
                group = self._new_group(name)
            elif self._may_go(group):
                break
            if group.queue is None:
                group.queue = HeldQueue()
                self._holding += 1
            group.queue.append(end)
            end += 1
            if not group.is_ready:
                self._look_at(group)
        self._note_sorted(end - first)
        self._note_passed(first, end)
        return end

    def _note_passed(self, first: int, end: int) -> None:
        """Note that each of these messages is in flight now, or in the queue of its group."""
        if self.unsorted:
            self.unsorted.remove_range(first, end)
        if self._bad and first == self._ledger.cursor:  # the others were counted when the cursor passed them
            self.ignored += sum([first <= it < end for it in self._bad])

    def _may_go(self, group: Group) -> bool:
        if self.sorts:
            return False
        if not group.name and not self.shares:
            return True
        if group.queue is not None or group.again is not None or group.later is not None:
            return False
        return group.in_flight < group.limit

    def _names_of(self, batch: Batch, first: int, stop: int) -> list[bytes]:
        """Return the groups of the messages from `first` up to `stop`, or of fewer of them."""
        place = first - self._named_from
        if not 0 <= place < len(self._names):
            found = batch.groups(first, min(batch.end_sequence, first + _NAMED_AT_ONCE))
            self._names, self._named_from = [name or _NOBODY for name in found], first
            self._bad = [at for at, name in enumerate(found, first) if name is None] if None in found else []
            place = 0
        return self._names[place : place + stop - first]

    @staticmethod
    def _name(batch: Batch | None, sequence: int) -> bytes:
        return (batch.group_of(sequence) or _NOBODY) if batch is not None else _NOBODY

    @property
    def most_held(self) -> int:
        return self._most_held

    @property
    def room(self) -> int:
        """How many more messages may be held."""
        return max(0, self._most_held - self._ledger.held.total) if self._holding < self._most_groups else 0

    def _group(self, name: bytes) -> Group:
        return self._groups.get(name) or self._new_group(name)

    def _new_group(self, name: bytes) -> Group:
        # It begins behind the others: otherwise a group that comes and goes would be served each time before they are.
        group = self._groups[name] = Group(name, self._limit if name else _NO_LIMIT, self._used + _ROUND)
        return group

    def note_full(self) -> None:
        """Note that the cursor waits, because no more messages may be held."""
        self._is_full = True
        if self.full_since is None:
            self.full_since = self._turn.timestamp

    def note_whether_full(self) -> None:
        """Note after a delivery whether the cursor doesn't wait any more."""
        if not self._is_full and (self.room or self._ledger.ahead == self._ledger.held.total):
            self.full_since = None

    # Waiting messages, from the ring

    @property
    def is_behind(self) -> bool:
        """Whether this turn has passed too many stale entries, so that a later turn has to go on."""
        return self._passed >= _PASSED_IN_TURN

    def look_beyond(self) -> None:
        """Have groups take part again if the cursor has passed their next message. Call this before `next`."""
        if self._beyond:
            groups, self._beyond = self._beyond, []
            for group in groups:
                self._look_at(group)

    def next(self) -> int:
        """Return the next message of the ring, held or among the retries. -1: none, or `is_behind`."""
        ring = self._ring
        while ring and not self.is_behind:
            group = ring[0][3]
            # A group may be at its limit here, if its messages in flight were learned after one that waits
            sequence = self._next_of(group) if group.in_flight < group.limit else -1
            if sequence >= 0:
                return sequence
            if not self.is_behind:
                self._leave_ring()
        return -1

    def _leave_ring(self) -> None:
        _, _, _, group = heappop(self._ring)
        group.is_ready = False
        if group.queue is None and group.again is None:
            self._look_at(group)

    def _next_of(self, group: Group) -> int:
        """Return the group's next message, or -1. Drops stale entries before it."""
        again = self._first_again(group) if group.again is not None else -1
        held = self._first_held(group) if group.queue is not None else -1
        if self.is_behind:
            return -1
        if self._is_ordered and group.name:
            found = held
            if again >= 0 and (again < held or held < 0):
                found = again
            if again == found and found >= self._first_unseen():
                self._beyond.append(group)  # it was published with a delay, say, and earlier messages of its group
                return -1  # may still come
            later = self._first_later(group) if group.later is not None else -1
            if self.is_behind:
                return -1
            return found if later < 0 or found < later else -1
        if again >= 0 and (group.retry_is_next or held < 0):
            return again
        return held

    def _first_unseen(self) -> int:
        """Return the sequence before which we know the groups of all messages that were never delivered."""
        unsorted = self.first_unsorted()
        return self._ledger.advance() if unsorted is None else unsorted

    def _first_held(self, group: Group) -> int:
        queue, held = group.queue, self._ledger.held
        while queue is not None and not self.is_behind:
            if queue.first in held:
                return queue.first
            self._passed += 1
            queue = self._pop_held(group, queue)
        return -1

    def _pop_held(self, group: Group, queue: HeldQueue) -> HeldQueue | None:
        """Drop the first entry of the group's queue. Return the queue, if it has more."""
        queue.pop()
        if not queue.count:
            group.queue = None
            self._holding -= 1
        return group.queue

    def _first_again(self, group: Group) -> int:
        heap = group.again
        while heap:
            if self.is_behind:
                return -1
            sequence = heap[0] & SEQUENCE_MASK
            if sequence in self._retries_seen and self._known.get(sequence) is group:
                return sequence
            heappop(heap)
            self._passed += 1
        group.again = None
        return -1

    def _first_later(self, group: Group) -> int:
        heap = group.later
        while heap:
            if self.is_behind:
                return -1
            if heap[0] in self._later_seen and self._known.get(heap[0]) is group:
                return heap[0]
            heappop(heap)
            self._passed += 1
        group.later = None
        return -1

    def take_held(self, batch: Batch, most: int) -> list[int]:
        """Take places for the held message from `next` and the ones after it, as long as they are of this batch.

        Takes up to `most`. Deliver them right after this. For example, if three groups take turns, and a batch has
        thirty messages of each, this is one delivery instead of ninety.
        """
        ring, weights, held = self._ring, self._weights, self._ledger.held
        start, end, cost = batch.base_sequence, batch.end_sequence, _ROUND
        found: list[int] = []
        going: list[Group] = []
        group = ring[0][3]
        if group.queue is not None and (group.again is not None or group.later is not None):
            found.append(group.queue.first)
            self.take(found[0], is_retry=False)
            return found
        while ring and len(found) < most:
            group = ring[0][3]
            queue = group.queue
            if queue is None or group.again is not None or group.later is not None:
                break  # `next` has more to look at
            sequence = queue.first
            if not start <= sequence < end or sequence not in held or group.in_flight >= group.limit:
                break
            found.append(sequence)
            going.append(group)
            group.in_flight += 1
            group.retry_is_next = True
            self._used = max(self._used, group.used)
            if weights:
                cost = self._cost_of(group)
            group.used += cost
            rest = self._pop_held(group, queue)
            if rest is not None and group.in_flight < group.limit:
                self._entered += 1
                heapreplace(ring, (group.used, rest.first, self._entered, group))
            else:
                heappop(ring)
                group.is_ready = False
        self._going, self._going_from = going, found[0]
        return found

    def take(self, sequence: int, *, is_retry: bool) -> None:
        """Take a place for the message from `next`, which is about to be delivered."""
        group = self._drop(sequence, is_retry=is_retry)
        group.in_flight += 1
        group.retry_is_next = not is_retry
        self._going, self._going_from = [group], sequence
        self._used = max(self._used, group.used)
        group.used += self._cost_of(group)
        heappop(self._ring)
        group.is_ready = False
        self._look_at(group)

    def _cost_of(self, group: Group) -> int:
        return -(-_ROUND // self._weights.get(group.name, 1))  # rounded up

    def drop(self, sequence: int, *, is_retry: bool) -> None:
        """Forget the message from `next`, which isn't delivered but buried or finished."""
        self._drop(sequence, is_retry=is_retry)

    def _drop(self, sequence: int, *, is_retry: bool) -> Group:
        group = self._ring[0][3]
        if is_retry:
            assert group.again is not None
            heappop(group.again)
            if not group.again:
                group.again = None
            self._retries_seen.discard(sequence)
            self._forget(sequence, group)
        else:
            assert group.queue is not None
            self._pop_held(group, group.queue)
        return group

    def keeps_order_of_next(self) -> bool:
        """Return whether the later messages of the group of `next` have to wait for that one."""
        return self._is_ordered and bool(self._ring[0][3].name)

    def set_aside(self) -> None:
        """Leave out the group of `next` until the next `begin`, because its message has to be read from disk."""
        self._aside.append(heappop(self._ring))

    def put_off(self, until: float) -> None:
        """Leave out the group of `next` until then, because the disk refuses to read its message."""
        self._put_off.append((until, heappop(self._ring)))

    @property
    def put_off_until(self) -> float:
        """When the first of the groups that were put off is to be tried again."""
        return self._put_off[0][0] if self._put_off else inf

    # In flight

    def deliver(self, first: int, ids: Sequence[bytes]) -> None:
        """Note the wire ids of messages for which `admit` or `take` have taken places."""
        start = first - self._going_from
        self._flying.update(zip(ids, self._going[start : start + len(ids)], strict=True))

    def deliver_scattered(self, ids: Sequence[bytes]) -> None:
        """Note the wire ids of the messages from `take_held`."""
        self._flying.update(zip(ids, self._going, strict=True))

    def give_up_place(self, sequence: int) -> None:
        """Free the place of a message that is finished without a delivery, because its consumer samples."""
        group = self._going[sequence - self._going_from]
        group.in_flight -= 1
        self.gave_up_places = True
        self._look_at(group)

    def finish(self, ids: Sequence[bytes]) -> None:
        """Free the places of finished messages."""
        flying = self._flying
        for message_id in ids:
            group = flying.pop(message_id, None)
            if group is not None:
                group.in_flight -= 1
                self._look_at(group)

    def leave(self, message_id: bytes, sequence: int) -> None:
        """Free the place of a message that isn't in flight any more, but not finished."""
        group = self._flying.pop(message_id, None)
        if group is None:
            return
        group.in_flight -= 1
        if sequence not in self._known:
            self._know(sequence, group)
        self._left.append(sequence)

    # For actions of operators on one group (group_actions.py)

    def queue_of(self, name: bytes) -> HeldQueue | None:
        """Return the held messages of a group, some of which may be stale. None: it has none."""
        group = self._groups.get(name)
        return group.queue if group is not None else None

    def pop_held_of(self, name: bytes) -> HeldQueue | None:
        """Drop the first entry of the group's queue, and return the queue, if it has more. Call `look_at` after the last."""
        group = self._groups[name]
        assert group.queue is not None
        return self._pop_held(group, group.queue)

    def look_at(self, name: bytes) -> None:
        """Forget a group if it has nothing any more."""
        self.look_beyond()  # so that nobody refers to a group that is forgotten
        if (group := self._groups.get(name)) is not None:
            self._look_at(group)

    def name_of(self, sequence: int) -> bytes | None:
        """Return the group of a retry or deferred message, or None if we have to read it from the log."""
        group = self._known.get(sequence)
        return group.name if group is not None else None

    def in_flight_of(self, name: bytes) -> int:
        group = self._groups.get(name)
        return group.in_flight if group is not None else 0

    # Figures

    def __len__(self) -> int:
        return len(self._groups)

    def largest(self, count: int, part: bytes = b"") -> Iterator[tuple[GroupSnapshot, ...] | None]:
        """Yield the groups with the most messages, up to `count` of them, the largest first, as the last item.

        Before that, yields None now and then, so that other work can run. Leaves out groups without `part` in their
        names. If the whole name of a group is `part`, it comes first, however small it is.
        """
        found: list[tuple[bool, int, int, Group]] = []
        for number, group in enumerate(list(self._groups.values())):
            is_meant = bool(part) and group.name == part
            entry = is_meant, _held_by(group) + group.known + group.in_flight, -number, group
            if part and part not in group.name:
                pass
            elif len(found) < count:
                heappush(found, entry)
            elif found and entry[:3] > found[0][:3]:
                heapreplace(found, entry)
            if number % _LISTED_AT_ONCE == _LISTED_AT_ONCE - 1:
                yield None
        found.sort(reverse=True)
        yield tuple([self._snapshot(group) for _, _, _, group in found])

    def _snapshot(self, group: Group) -> GroupSnapshot:
        queue, held, passed = group.queue, self._ledger.held, 0
        while queue is not None and queue.first not in held and passed < _PASSED_FOR_A_ROW:
            queue = self._pop_held(group, queue)
            passed += 1
        if self._groups.get(group.name) is group:  # it may be forgotten by now, and there may be a new one of its name
            self._look_at(group)
        oldest, weight = queue.first if queue is not None else -1, self._weights.get(group.name, 1)
        return GroupSnapshot(group.name, _held_by(group), group.known, group.in_flight, oldest, weight)


def _cached_first(sequences: BitMap64, most: int, cached_from: int) -> list[int]:
    """Return up to `most` of these sequences, beginning with the ones from `cached_from` on."""
    before = sequences.rank(cached_from - 1) if cached_from > 0 else 0
    found = list(sequences[before : before + most])
    return found + list(sequences[: min(before, most - len(found))])


def _first_of(group: Group) -> int:
    """Return the sequence of the group's first message, roughly: it may be stale."""
    if group.queue is not None:
        return group.queue.first
    return group.again[0] & SEQUENCE_MASK if group.again else -1


def _held_by(group: Group) -> int:
    """Return how many messages the group's queue has."""
    return group.queue.count if group.queue is not None else 0
