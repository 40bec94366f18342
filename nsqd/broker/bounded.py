"""A topic and its bounds: how much it and its channels hold, who is refused, and what is dropped.

A topic is built in four layers, each a class of its own that inherits from the one above it:

    Feed        what channels see
    Bounded     the rules of the policy
    Published   what is published in a turn, until the log has it
    Topic       handing over, channels, the journal

They are one object, because a step from one to another would cost each publish.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from math import inf
from typing import TYPE_CHECKING, Final

from nsqd.broker.feed import TopicFeed
from nsqd.broker.limits import MOST_LOOKS, Headroom, Usage, count_cause, drops, excess, excess_with, refuses

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.rules import ChannelRules, TopicRules
    from nsqd.broker.store import TopicLog

_MOST_WAIT: Final = 10.0  # seconds that publishes wait for files to be removed; after that, an answer matters more


class PublishRefused(Exception):
    """The topic takes no messages; `cause` is the error for the client."""

    def __init__(self, cause: str, *, is_full: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_full = is_full  # a bound of the policy is reached, so trying again later may help


class Bounded(metaclass=ABCMeta):
    def __init__(self, name: str, log: TopicLog, rules: TopicRules, *, now: float, ephemeral: bool) -> None:
        self.name = name
        self.log = log
        self.ephemeral = ephemeral
        self.feed = TopicFeed(name, log, ephemeral=ephemeral)
        self.channels: dict[str, Channel] = {}
        self.closing = False
        self.policy_counts: dict[str, int] = {}  # by cause: what rules have done, or would have done
        self.rules, self.dry_run = rules.in_force(), rules.dry_run()
        self.idle_since = now  # when the last look has found new messages
        self._seen_tail = log.tail  # by that look
        self._written_tail = log.tail
        # One look for each publish tells that neither a deletion nor a bound is in its way.
        self._is_guarded = refuses(self.rules) or refuses(self.dry_run)
        self._drops = drops(self.rules) or drops(self.dry_run)
        self._oldest_file = 0  # as of the last publish under a bound that drops: the first sequence of the oldest file
        self._waits_since = inf  # since when publishes wait for files to be removed
        self._room: Headroom | None = None  # for this turn's publishes
        self._dry_run_beyond = 0  # how many messages a bound that is tried would have dropped last time
        self._dry_run_room: Headroom | None = None  # the same if rules that are only tried were in force

    @property
    def high_watermark(self) -> int:
        """H: what lies before belongs to the channels."""
        return self.feed.high_watermark

    @abstractmethod
    def let_go(self) -> None:
        """Tell the log what no channel needs any more."""

    @abstractmethod
    def _has_drafts(self) -> bool:
        """Return whether something was published in this turn."""

    @abstractmethod
    def _drafted(self) -> Usage:
        """Return what was published in this turn, which has no place in the log yet."""

    @abstractmethod
    def _pass_over(self, end: int) -> None:
        """Give what lies before `end`, and was not handed over, to nobody. The topic does not flow."""

    def take_rules(self, rules: TopicRules) -> None:
        """Follow these rules from now on; `bounds_changed` has to be called when the channels have theirs, too."""
        self.rules, self.dry_run = rules.in_force(), rules.dry_run()

    def limits_changed(self) -> None:
        """Note that bounds of the topic or of a channel came or went."""
        rules: list[ChannelRules | TopicRules] = [self.rules, self.dry_run]
        for channel in self.channels.values():
            rules += (channel.policy.rules, channel.dry_run.rules)
            channel.records_deliveries = drops(self.rules) or channel.policy.drops
            if channel.records_deliveries:
                # What was delivered before is not to be dropped after a crash, either.
                channel.ledger.record_progress(urgent=True)
        self._is_guarded = self.closing or any(map(refuses, rules))
        self._drops = any(map(drops, rules))
        self._room = self._dry_run_room = None
        if self._drops:
            self.drop_beyond_limits()

    def _admit(self, count: int, size: int) -> None:
        """Let messages of the topic or of one of its channels be published, unless that is full. Raises PublishRefused."""
        if self.closing:
            raise PublishRefused("exiting")
        if not self._is_guarded:
            return
        if self._room is None:
            self._room, self._dry_run_room = self._measure()
        if (full := self._room.take(count, size)) is not None:
            if not self._has_drafts():
                self._room = None  # this turn may end without a look at the topic
            self._count(f"{full.rule}, rejected", count)
            raise PublishRefused(full.words, is_full=True)
        if self._dry_run_room is not None and (full := self._dry_run_room.take(count, size)) is not None:
            self._count(f"{full.rule}, dry run", count)

    def _measure(self) -> tuple[Headroom, Headroom]:
        room, tried = Headroom(), Headroom()
        drafted = self._drafted()
        held = self._usage().plus(drafted)
        room.narrow(f"topic {self.name}", self.rules, held)
        tried.narrow(f"topic {self.name}", self.dry_run, held)
        for channel in self.channels.values():
            if refuses(channel.policy.rules) or refuses(channel.dry_run.rules):
                held, name = channel.usage().plus(drafted), f"channel {self.name}:{channel.name}"
                room.narrow(name, channel.policy.rules, held)
                tried.narrow(name, channel.dry_run.rules, held)
        return room, tried

    def _usage(self) -> Usage:
        passed = self.passed()
        return Usage(self.log.tail - passed, self.log.bytes_from(passed))

    def drop_beyond_limits(self, arrived: int | None = None) -> None:
        for channel in self.channels.values():
            channel.apply_limits(arrived)
        if drops(self.dry_run):
            beyond = excess(self.dry_run, self._usage())
            self._count("overflow, dry run", beyond - self._dry_run_beyond)
            self._dry_run_beyond = beyond
        if not drops(self.rules) or not (beyond := excess(self.rules, self._usage())):
            return
        self._drop_before(min(self.passed() + beyond, self._written_tail))

    def _drop_before(self, end: int) -> bool:
        """Drop what lies before this sequence. Return False if a later turn has to drop more of it."""
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                channel.drop_before(end)
        if any(channel.is_behind for channel in self.channels.values()):
            return False  # what nobody got yet is newer than what these still have
        if (before := self.high_watermark) < end:  # nobody got these yet
            self._count("overflow, dropped", end - before)
            self._pass_over(end)
            for channel in self.channels.values():
                channel.ledger.pass_over(before, end)
        return True

    def must_block(self, coming: Usage, now: float) -> bool:
        """Make room for what is about to be published. Return whether it has to wait until files are removed.

        This is how a bound of bytes holds by construction. Say it is 16 MiB, and files have 4 MiB. What waits is never
        more than the bound, because the oldest messages are dropped *before* others are written. The file of the oldest
        one may have up to 4 MiB that nobody needs. When all of that file is dropped, it is removed at once, and until it
        is gone nothing more is written than those 4 MiB allow. So the files never have more than 20 MiB, unless what is
        published at once is more than 16 MiB by itself. Dropping may take several turns, for which publishes wait as well.
        """
        has_room = self._make_room(coming)
        passed = self.passed()
        if (base := self.log.file_of(passed)) != self._oldest_file:
            self._oldest_file = base
            self.let_go()
        if has_room and not self.log.waits_for_removal(passed):
            self._waits_since = inf
            return False
        self._waits_since = min(self._waits_since, now)
        self._room = self._dry_run_room = None  # it is measured anew in each turn
        return now - self._waits_since < _MOST_WAIT

    def _make_room(self, coming: Usage) -> bool:
        """Drop what has to go for what is about to be published. Return False if a later turn has to drop more."""
        has_room = True
        for channel in self.channels.values():
            has_room = channel.make_room(coming) and has_room
        if not drops(self.rules):
            return has_room
        for _ in range(MOST_LOOKS):
            if not (beyond := excess_with(self.rules, self._usage(), coming)):
                break
            passed = self.passed()
            if not self._drop_before(min(passed + beyond, self._written_tail)):
                return False
            if self.passed() == passed:
                break
        return has_room

    def is_idle(self, now: float) -> bool:
        """Return whether nothing was published since some look before, nobody consumes, and there is no message."""
        if self.log.tail != self._seen_tail:
            self._seen_tail, self.idle_since = self.log.tail, now
        return not any(channel.consumers for channel in self.channels.values())

    @property
    def is_unused(self) -> bool:
        """Whether nobody consumes, and nothing was published since the last look at `is_idle`."""
        return self.log.tail == self._seen_tail and not any(channel.consumers for channel in self.channels.values())

    @property
    def is_empty(self) -> bool:
        """Whether neither the topic nor a channel has a message. What retention keeps is finished."""
        no_channel_got = self._written_tail - self.high_watermark
        return not no_channel_got and all(channel.is_empty for channel in self.channels.values())

    def _count(self, cause: str, count: int) -> None:
        count_cause(self.policy_counts, cause, count)

    def passed(self) -> int:
        """Return the sequence before which channels need single messages only; see `exceptions`."""
        return min(
            [
                self.high_watermark,
                *(c.ledger.cursor for c in self.channels.values() if c.ledger.ephemeral_batches is None),
            ]
        )
