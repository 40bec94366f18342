"""A bound drops in slices where messages lie between very many skip ranges. What may happen between two slices does."""

from __future__ import annotations

from typing import Final

import pytest
from pyroaring import BitMap64

from nsqd.broker import operator_actions
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.broker.rules import ChannelRules, Overflow, TopicRules
from nsqd.broker.topic import Topic
from tests.support.given_rules import GivenRules
from tests.support.node import Node

DROP: Final = Overflow.DROP_OLDEST
COUNT: Final = 12_000  # messages, of which every other one was taken back
LEFT: Final = COUNT // 2
MOST: Final = 1_000  # ranges that bounds drop in a turn
STAY: Final = 10  # messages, by the bound
OF_CHANNEL: Final = ChannelRules(max_messages=STAY, overflow=DROP)
OF_TOPIC: Final = TopicRules(max_messages=2 * STAY, overflow=DROP)  # it counts what was taken back, too
DELAY_MS: Final = 60_000


class Sparse:
    """Channels whose messages wait between so many skip ranges that a bound needs several turns."""

    def __init__(self, *channels: str) -> None:
        self.policy = GivenRules()
        self.node = Node(policy=self.policy)
        self.names = channels or ("c",)
        for name in self.names:
            self.node.broker.topic("t").channel(name)

    @property
    def topic(self) -> Topic:
        return self.node.broker.topics["t"]

    def channel(self, name: str = "c") -> Channel:
        return self.topic.channels[name]

    def publish(self, count: int) -> None:
        self.topic.publish(b"\0\0\0\1x" * count, range(0, 5 * count + 1, 5))

    def fill(self) -> None:
        """Have every second message wait for its first delivery, and take the others back."""
        for _ in range(COUNT // 50):
            self.publish(50)
            self.node.turn()
        for channel in self.topic.channels.values():
            operator_actions.cancel(channel, BitMap64(range(0, COUNT, 2)))
        self.save()

    def fill_with_deferred(self) -> None:
        """Have every second message wait for its first delivery, and defer the others."""
        self.publish(COUNT)
        self.node.turn()
        operator_actions.move(self.channel(), BitMap64(range(0, COUNT, 2)), DELAY_MS)
        self.save()

    def save(self) -> None:
        self.node.broker.record_progress()
        self.node.store.write_journal(force=True)
        self.node.turn()

    def follow(self, of_channels: ChannelRules | None = None, of_topics: TopicRules | None = None) -> None:
        self.policy.of_channels, self.policy.of_topics = of_channels or ChannelRules(), of_topics or TopicRules()
        self.node.broker.rules_changed(["t"])
        self.node.turn()

    def go_on(self) -> int:
        """Have the next turn. Return how many messages the bounds have dropped in it."""
        before = self.dropped
        self.node.broker.expire()
        self.node.turn()
        return self.dropped - before

    def end(self) -> None:
        """Go on until no channel has more to drop."""
        for _ in range(2 * LEFT // MOST):
            if not any(channel.is_behind for channel in self.topic.channels.values()):
                return
            self.go_on()
        raise AssertionError("it does not end")

    @property
    def dropped(self) -> int:
        counts = [self.topic.policy_counts, *(channel.policy_counts for channel in self.topic.channels.values())]
        return sum(count.get("overflow, dropped", 0) + count.get("full, dropped", 0) for count in counts)

    def take(self, count: int, name: str = "c") -> list[int]:
        """Have a consumer take so many messages, and return the sequences of all that are in flight then."""
        consumer = Consumer(send=ignore, close=lambda: None, describe=lambda: None, msg_timeout=900.0)  # type: ignore[arg-type, return-value]
        consumer.ready_count = count
        channel = self.channel(name)
        channel.join(consumer)
        channel.schedule_delivery()
        self.node.turn()
        self.node.load()
        return sorted(sequence for piece in channel.in_flight.sequences() for sequence in piece)


def ignore(pieces: list[bytes]) -> None:
    """Send nothing."""


BOUNDS: Final = [
    (OF_CHANNEL, None),
    (ChannelRules(max_bytes=200, overflow=DROP), None),
    (None, OF_TOPIC),
    (None, TopicRules(max_bytes=200, overflow=DROP)),
]


@pytest.mark.parametrize(("of_channels", "of_topics"), BOUNDS)
def test_a_turn_drops_some_of_very_many_ranges(of_channels: ChannelRules | None, of_topics: TopicRules | None) -> None:
    it = Sparse()
    it.fill()
    told = len(it.node.store.journal)
    it.follow(of_channels, of_topics)
    assert MOST <= it.dropped <= MOST + 1
    while it.channel().is_behind:
        assert 0 < it.go_on() <= MOST + 1
    it.save()
    assert max(len(change[-1]) for change in it.node.store.journal[told:] if change[0] == "progress") <= 2 * (MOST + 1)
    left = it.channel().depth
    assert 0 < left < 100
    assert it.dropped == LEFT - left
    it.node.crash()
    assert it.take(LEFT) == list(range(COUNT + 1 - 2 * left, COUNT, 2)), "the newest stay"


def test_channels_of_a_topic_share_what_a_turn_drops() -> None:
    it = Sparse("a", "b", "c")
    it.fill()
    it.follow(OF_CHANNEL)
    assert MOST <= it.dropped <= MOST + 3, "each drops one range in any case"
    while any(it.channel(name).is_behind for name in "abc"):
        assert 0 < it.go_on() <= MOST + 3
    assert [it.channel(name).depth for name in "abc"] == [STAY] * 3


def test_very_many_channels_drop_at_once_what_lies_together() -> None:
    names = [f"c{number}" for number in range(MOST + 5)]
    it = Sparse(*names)
    it.publish(STAY + 1)
    it.node.turn()
    it.follow(OF_CHANNEL)
    assert {it.channel(name).depth for name in names} == {STAY}


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(("of_channels", "of_topics"), [(OF_CHANNEL, None), (None, OF_TOPIC)])
def test_a_start_goes_on_where_nsqd_ended_between_two_slices(
    of_channels: ChannelRules | None, of_topics: TopicRules | None, *, is_clean: bool
) -> None:
    it = Sparse()
    it.fill()
    held = it.take(7)
    it.save()
    it.follow(of_channels, of_topics)
    it.go_on()
    if is_clean:
        it.save()
    it.node.crash()
    assert it.channel().is_behind
    it.end()
    newest = list(range(COUNT + 1 - 2 * STAY, COUNT, 2))
    found = it.take(LEFT)
    assert found[: len(held)] == held, "what a consumer had is delivered again"
    assert len(found) == STAY or found[len(held) :] == newest
    assert found[-3:] == newest[-3:]


def test_what_consumers_take_between_two_slices_is_not_dropped() -> None:
    it = Sparse()
    it.fill()
    it.follow(OF_CHANNEL)
    taken = it.take(50)
    assert len(taken) == 50
    it.end()
    assert (it.channel().depth, it.dropped) == (STAY, LEFT - 50 - STAY), "not one more than the bound asks for"
    it.save()
    it.node.crash()
    it.end()
    assert set(taken) <= set(it.take(LEFT))


@pytest.mark.parametrize("is_killed", [False, True])
def test_deferred_messages_between_which_a_bound_drops_keep_their_delay(*, is_killed: bool) -> None:
    it = Sparse()
    it.fill_with_deferred()
    it.follow(OF_CHANNEL)
    assert it.channel().is_behind
    if is_killed:
        it.node.crash()
    it.end()
    assert (it.channel().depth, len(it.channel().ledger.deferred)) == (0, LEFT)
    it.node.pass_time(DELAY_MS / 1000 - 1)
    assert it.take(LEFT) == []
    for _ in range(2):  # some thousands become due in a turn
        it.node.pass_time(2)
    it.node.load()
    assert len(it.channel().in_flight) == LEFT


def test_new_messages_that_find_no_room_count_as_such_also_in_a_later_slice() -> None:
    it = Sparse()
    it.fill_with_deferred()
    it.follow(OF_CHANNEL)
    it.publish(5)
    it.node.turn()
    assert it.channel().is_behind
    it.publish(2)
    it.end()
    assert it.channel().policy_counts == {"overflow, dropped": LEFT, "full, dropped": 7}
    it.publish(2)
    it.node.turn()
    assert it.channel().policy_counts["full, dropped"] == 9


def test_a_bound_that_goes_between_two_slices_drops_no_more() -> None:
    it = Sparse()
    it.fill()
    it.follow(OF_CHANNEL)
    dropped = it.dropped
    it.follow()
    it.end()
    assert not it.go_on()
    assert (it.dropped, it.channel().depth) == (dropped, LEFT - dropped)
    it.publish(5)
    it.node.turn()
    assert it.channel().depth == LEFT - dropped + 5


def test_a_paused_channel_drops_to_the_end() -> None:
    it = Sparse()
    it.fill()
    it.follow(OF_CHANNEL)
    it.channel().pause()
    it.node.turn()
    it.end()
    assert it.channel().depth == STAY


@pytest.mark.parametrize("what", ["empty", "delete", "delete topic", "seek"])
def test_a_channel_that_is_changed_between_two_slices(what: str) -> None:
    it = Sparse("a", "c")
    it.fill()
    it.follow(OF_CHANNEL)
    if what == "delete topic":
        it.node.broker.delete_topic("t")
        it.node.broker.topic("t").channel("c")
    elif what == "delete":
        it.topic.delete_channel("c")
    elif what == "empty":
        operator_actions.empty(it.channel())
    else:
        operator_actions.seek(it.channel(), 0)
    it.node.turn()
    it.end()
    depths = {name: channel.depth for name, channel in it.topic.channels.items()}
    assert (
        depths
        == {
            "empty": {"a": STAY, "c": 0},
            "delete": {"a": STAY},
            "delete topic": {"c": 0},
            "seek": {"a": STAY, "c": STAY},
        }[what]
    )
    it.topic.channel("c")
    it.publish(3)
    it.node.turn()
    held = min(STAY, depths.get("c", 0) + 3)
    assert (it.channel().depth, it.take(LEFT)[-3:]) == (held, [*range(it.topic.log.tail - 3, it.topic.log.tail)])


@pytest.mark.parametrize("what", ["empty", "delete", "nothing"])
def test_a_topic_drops_what_nobody_got_after_what_its_channels_have(what: str) -> None:
    """Of the newest messages, which the paused topic keeps, none goes before an older one of a channel."""
    it = Sparse("a", "c")
    it.fill()
    it.topic.pause()
    it.publish(5 * STAY)
    it.follow(of_topics=OF_TOPIC)
    assert it.topic.depth == 5 * STAY
    assert it.channel("c").is_behind
    for name in "ac":
        if what == "empty":
            operator_actions.empty(it.channel(name))
        elif what == "delete":
            it.topic.delete_channel(name)
    it.node.turn()
    it.end()
    it.go_on()
    assert it.topic.depth == 2 * STAY
    it.topic.channel("c")
    it.topic.unpause()
    it.node.turn()
    assert it.take(LEFT) == list(range(COUNT + 3 * STAY, COUNT + 5 * STAY))


@pytest.mark.parametrize(
    ("of_channels", "of_topics"),
    [(ChannelRules(max_bytes=2_000, overflow=DROP), None), (None, TopicRules(max_bytes=2_000, overflow=DROP))],
)
def test_publishers_wait_until_a_bound_of_bytes_has_dropped_enough(
    of_channels: ChannelRules | None, of_topics: TopicRules | None
) -> None:
    it = Sparse()
    it.fill()
    it.follow(of_channels, of_topics)
    receipt = it.topic.publish_one(b"\0\0\0\1y")
    it.node.turn()
    assert (receipt.settled, it.topic.log.tail) == (False, COUNT)
    while not receipt.settled:
        assert it.topic.log.tail == COUNT
        assert it.go_on()
    assert not receipt.error
    held = it.channel().usage().size if of_channels is not None else it.topic.log.bytes_from(it.topic.passed())
    assert 1_500 < held <= 2_100


def test_publishers_do_not_wait_for_a_bound_of_messages() -> None:
    it = Sparse()
    it.fill()
    it.follow(OF_CHANNEL)
    receipt = it.topic.publish_one(b"\0\0\0\1y")
    it.node.turn()
    assert receipt.settled
    assert it.channel().is_behind
