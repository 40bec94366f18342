"""A lost journal costs duplicates, but never a channel."""

from __future__ import annotations

from nsqd.broker.journal_replay import DeletedNames, TopicState, complete, replay

NAMED = {"t": {"paused": False, "channels": {"c": {"paused": True}}}}


def test_a_topic_that_the_journal_lost_gets_its_channels_from_the_topology() -> None:
    topics: dict[str, TopicState] = {}
    assert complete(topics, NAMED, {"t": 5}, journal_is_whole=True) == {"t"}
    assert topics["t"].channels["c"].cursor == 5
    assert topics["t"].channels["c"].paused
    assert topics["t"].frozen_at is None


def test_a_paused_topic_stays_frozen_where_its_log_begins() -> None:
    topics: dict[str, TopicState] = {}
    complete(topics, {"t": {"paused": True, "channels": {"c": {"paused": False}}}}, {"t": 5}, journal_is_whole=True)
    assert topics["t"].paused
    assert topics["t"].frozen_at == 5


def test_a_whole_journal_is_believed_about_deleted_channels() -> None:
    topics = replay([("topic", "t"), ("channel", "t", "c", 0), ("nochannel", "t", "c")])
    assert complete(topics, NAMED, {"t": 0}, journal_is_whole=True) == set()
    assert not topics["t"].channels


def test_after_damage_to_the_journal_a_named_channel_is_kept() -> None:
    topics = replay([("topic", "t")])
    assert complete(topics, NAMED, {"t": 0}, journal_is_whole=False) == {"t"}
    assert list(topics["t"].channels) == ["c"]


def test_a_topic_without_a_log_was_deleted() -> None:
    topics: dict[str, TopicState] = {}
    assert complete(topics, NAMED, {}, journal_is_whole=False) == set()
    assert not topics


def test_compacted_message_comes_to_a_channel_that_the_journal_lost() -> None:
    topics: dict[str, TopicState] = {}
    beside = [(1, 2, 0), (4, 1, 123_000)]
    complete(topics, NAMED, {"t": 5}, journal_is_whole=False, compacted=lambda topic: beside)
    assert topics["t"].channels["c"].waiting == {1: (0, 0), 2: (0, 0), 4: (0, 123_000)}


def test_a_topic_without_channels_is_told_to_the_journal_too() -> None:
    topics: dict[str, TopicState] = {}
    assert complete(topics, {"t": {"paused": False, "channels": {}}}, {"t": 0}, journal_is_whole=True) == {"t"}


def test_what_the_journal_says_to_be_deleted_does_not_come_back_with_damage() -> None:
    changes = [("topic", "t"), ("channel", "t", "c", 0), ("nochannel", "t", "c")]
    dropped = DeletedNames()
    topics = replay(dropped.collect(changes))
    assert complete(topics, NAMED, {"t": 0}, journal_is_whole=False, deleted=dropped.channels) == set()
    assert not topics["t"].channels


def test_what_was_made_again_is_not_dropped() -> None:
    changes = [("topic", "t"), ("drop", "t"), ("drop", "u"), ("topic", "t"), ("channel", "t", "c", 0)]
    changes += [("nochannel", "t", "c"), ("nochannel", "t", "d"), ("channel", "t", "c", 0)]
    dropped = DeletedNames()
    assert list(dropped.collect(changes)) == changes
    assert (dropped.topics, dropped.channels) == ({"u"}, {("t", "d")})


def test_what_was_parked_is_not_handed_over_twice() -> None:
    topics = replay([("topic", "t"), ("park", "t", 0, 1, 5000)])
    complete(topics, NAMED, {"t": 0}, journal_is_whole=False)
    assert not topics["t"].parked
