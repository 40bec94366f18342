"""Replaying the journal: how changes add up."""

from __future__ import annotations

from time import process_time
from typing import Any

from nsqd.broker.buried import Note
from nsqd.broker.journal_replay import ChannelState, TopicState, replay
from nsqd.log.journal import format as journal_format
from nsqd.log.journal.packed_changes import PackedChanges

BEGIN: list[tuple[object, ...]] = [("topic", "t"), ("channel", "t", "c", 0), ("flow", "t")]


def replayed(*changes: tuple[object, ...]) -> TopicState:
    return replay([*BEGIN, *changes])["t"]


def channel_after(*changes: tuple[object, ...]) -> ChannelState:
    return replayed(*changes).channels["c"]


def test_nothing_comes_of_nothing() -> None:
    assert replay([]) == {}


def test_leftovers_of_what_is_unknown_mean_nothing() -> None:
    assert replay([("progress", "gone", "c", 5, ()), ("drop", "gone"), ("flow", "gone")]) == {}
    assert channel_after(("progress", "t", "gone", 5, ())).cursor == 0


def test_snapshot_replaces_what_came_before() -> None:
    state = replayed(("snapshot", "t"), ("topic", "t"), ("channel", "t", "d", 9))
    assert list(state.channels) == ["d"]


def test_what_was_in_flight_when_progress_was_written_waits() -> None:
    channel = channel_after(("progress", "t", "c", 6, (1, 3, 5, 6)))
    assert channel.cursor == 6
    assert channel.waiting == {0: (1, 0), 3: (1, 0), 4: (1, 0)}


def test_finished_later_no_longer_waits() -> None:
    channel = channel_after(("progress", "t", "c", 6, ()), ("progress", "t", "c", 6, (0, 5)))
    assert channel.waiting == {5: (1, 0)}


def test_wide_finish_is_taken_out_as_narrow_ones_are() -> None:
    channel = channel_after(("progress", "t", "c", 3, ()), ("progress", "t", "c", 1000, (1, 1000)))
    assert channel.waiting == {0: (1, 0)}


def test_skipped_ranges_are_neither_in_flight_nor_finished() -> None:
    channel = channel_after(("skip", "t", "c", 2, 4), ("skip", "t", "c", 8, 9), ("progress", "t", "c", 5, (0, 2)))
    assert channel.waiting == {4: (1, 0)}
    assert list(channel.skips) == [(8, 9)]


def test_requeued_and_tried_again() -> None:
    channel = channel_after(
        ("progress", "t", "c", 3, ()), ("wait", "t", "c", (0, 1, 0, 2, 1, 99_000)), ("try", "t", "c", 2, (0,))
    )
    assert channel.waiting == {0: (2, 0), 1: (1, 0), 2: (1, 99_000)}


def test_deferred_batch_belongs_to_the_channels_that_were_there() -> None:
    state = replayed(("defer", "t", 0, 2, 99_000), ("channel", "t", "later", 2))
    assert state.channels["c"].waiting == {0: (0, 99_000), 1: (0, 99_000)}
    assert list(state.channels["c"].skips) == [(0, 2)]
    assert state.channels["later"].waiting == {}


def test_parked_batch_waits_for_its_hand_over() -> None:
    assert list(replayed(("freeze", "t", 4), ("park", "t", 4, 1, 500)).parked.batches) == [(4, 1, 500)]
    assert list(replayed(("park", "t", 4, 1, 500), ("unpark", "t")).parked.batches) == []


def test_a_start_hands_over_all_that_is_parked_as_single_words_do() -> None:
    begin = ("freeze", "t", 4), ("progress", "t", "c", 4, (0, 4)), ("channel", "t", "new", 4)
    parked = (
        *begin,
        *(("park", "t", start, 2, 100 + start) for start in (4, 7, 10)),
        *(("cancel", "t", it) for it in (5, 6, 10, 11)),
    )
    end = ("unpark", "t"), ("flow", "t"), ("progress", "t", "c", 9, ())
    single = (
        ("defer", "t", 4, 1, 5_105),
        *(("skip", "t", name, 5, 7) for name in ("c", "new")),
        ("defer", "t", 7, 2, 5_108),
        *(("skip", "t", name, 10, 12) for name in ("c", "new")),
    )
    one, other = replayed(*parked, ("start", "t", 5_000), *end), replayed(*parked, *single, *end)
    assert one.channels["c"].waiting == {4: (0, 5_105), 7: (0, 5_108), 8: (0, 5_108)}
    assert not one.parked
    for name in ("c", "new"):
        assert one.channels[name].waiting == other.channels[name].waiting
        assert one.channels[name].skips == other.channels[name].skips


def test_emptied_channel_has_nothing_but_its_cursor() -> None:
    channel = channel_after(("progress", "t", "c", 3, ()), ("skip", "t", "c", 5, 6), ("empty", "t", "c", 8))
    assert (channel.cursor, channel.waiting, list(channel.skips)) == (8, {}, [])


def test_cursor_in_doubt_does_not_pass_over_what_may_be_deferred() -> None:
    channel = channel_after(("doubt", "t", 0), ("progress", "t", "c", 6, (1, 3)))
    assert channel.cursor == 0
    assert list(channel.skips) == [(1, 3)]
    assert not channel.waiting


def test_what_waits_of_a_channel_in_doubt_is_in_one_place() -> None:
    channel = channel_after(
        ("doubt", "t", 0),
        ("defer", "t", 2, 2, 99_000),
        ("try", "t", "c", 1, (2, 5)),
        ("wait", "t", "c", (5, 1, 0)),
        ("progress", "t", "c", 6, (0, 3)),
    )
    assert channel.waiting == {3: (0, 99_000), 5: (1, 0)}
    assert sorted(channel.skips) == [(0, 2), (2, 4), (5, 6)]


def test_emptied_channel_is_in_doubt_no_longer() -> None:
    channel = channel_after(("doubt", "t", 0), ("empty", "t", "c", 3), ("progress", "t", "c", 5, (3, 4)))
    assert channel.cursor == 5
    assert channel.waiting == {4: (1, 0)}


def test_pauses_are_kept() -> None:
    state = replayed(("pause", "t", True), ("hold", "t", "c", True))
    assert state.paused
    assert state.channels["c"].paused


def test_freezing_and_flowing() -> None:
    assert replayed().frozen_at is None
    assert replayed(("freeze", "t", 7)).frozen_at == 7


def test_nothing_reaches_beyond_the_tail() -> None:
    state = replayed(
        ("progress", "t", "c", 10, (0, 4)),
        ("skip", "t", "c", 12, 20),
        ("park", "t", 30, 1, 500),
        ("freeze", "t", 25),
    )
    assert state.cut(6)
    channel = state.channels["c"]
    assert (channel.cursor, sorted(channel.waiting), list(channel.skips)) == (6, [4, 5], [])
    assert (state.frozen_at, list(state.parked.batches)) == (6, [])
    assert not state.cut(6)


def test_changes_come_back_from_disk_as_tuples() -> None:
    changes: list[Any] = [*BEGIN, ("progress", "t", "c", 3, [0, 1])]
    read = PackedChanges()
    read.extend(changes)
    assert [*read][-1] == ("progress", "t", "c", 3, (0, 1))
    assert list(replay(read)["t"].channels["c"].waiting) == list(replay(changes)["t"].channels["c"].waiting) == [1, 2]


def test_words_of_another_version_are_not_heeded() -> None:
    assert channel_after(("progress", "t", "c", 5, ()), ("forgive", "t", "c", 9), ("hesitate", "t")).cursor == 5
    assert channel_after(("progress", "t", "c", 5, ()), ("progress", "t", "c", 9), ("pause", "t")).cursor == 5


def test_that_the_channels_were_learned_survives() -> None:
    assert not replayed().learned
    assert replayed(("learned", "t")).learned
    assert not replayed(("learned", "t"), ("snapshot", "t"), ("topic", "t")).learned


def test_what_was_deferred_and_finished_ahead_of_the_cursor_stays_finished() -> None:
    changes = [("topic", "t"), ("channel", "t", "c", 0), ("flow", "t"), ("defer", "t", 2, 3, 5)]
    ahead = [*changes, ("progress", "t", "c", 1, [0, 1, 3, 4])]
    channel = replay([*ahead, ("progress", "t", "c", 6, [1, 2, 5, 6])])["t"].channels["c"]
    assert channel.waiting == {2: (0, 5), 4: (0, 5)}
    assert not channel.skips


# The frame that nsqd wrote before it shortened names, for a BURY by a client called "\u00e9" * 90.
OLD_BURIAL = bytes.fromhex(
    "f24e4a01000000dca1606bd09195a462757279a174a16392a3626164d9b4c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9"
    "c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9"
    "c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9"
    "c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9c3a9"
    "c3a9c3a9c3a9c3a9c3a99500cf00460a24181e400001cf0000018bcfe5680000"
)


def test_a_long_name_of_an_older_journal_is_shortened_and_the_next_journal_has_the_short_one() -> None:
    frame = journal_format.decode(OLD_BURIAL, 0)
    assert frame is not None
    buried = channel_after(*frame.changes).buried
    told = buried.get(0)
    assert told is not None
    assert (told.note, told.attempts, told.buried_at) == (Note("bad", "\u00e9" * 64), 1, 1_700_000_000_000)
    (change,) = buried.changes("t", "c")
    assert change[0] == "bury"
    assert change[3] == ["bad", "\u00e9" * 64]


def test_replay_takes_time_in_proportion_to_what_changed() -> None:
    changes: list[tuple[object, ...]] = [("topic", "t"), ("channel", "t", "c", 0), ("flow", "t")]
    changes += [("defer", "t", sequence, 1, 5) for sequence in range(1, 100_000, 2)]
    changes += [("progress", "t", "c", cursor, [cursor - 2, cursor - 1]) for cursor in range(2, 60_000, 2)]
    started = process_time()
    channel = replay(changes)["t"].channels["c"]
    assert process_time() - started < 30
    assert len(channel.waiting) == 50_000


# Held messages


def test_held_messages_are_passed_without_being_in_flight() -> None:
    channel = channel_after(("held", "t", "c", (1, 3, 4, 5)), ("progress", "t", "c", 6, (5, 6)))
    assert (channel.cursor, list(channel.held)) == (6, [1, 2, 4])
    assert channel.waiting == {0: (1, 0), 3: (1, 0)}


def test_held_messages_are_delivered_deferred_buried_and_finished() -> None:
    channel = channel_after(
        ("held", "t", "c", (0, 9)),
        ("progress", "t", "c", 9, ()),
        ("try", "t", "c", 1, (0,)),
        ("wait", "t", "c", (1, 0, 99_000)),
        ("bury", "t", "c", ("bad", "ana"), (2, 102, 0, 7, 0)),
        ("progress", "t", "c", 9, (3, 5)),
    )
    assert list(channel.held) == [5, 6, 7, 8]
    assert channel.waiting == {0: (1, 0), 1: (0, 99_000)}


def test_emptying_and_seeking_forget_held_messages() -> None:
    held = ("held", "t", "c", (1, 3)), ("progress", "t", "c", 3, ())
    assert not channel_after(*held, ("empty", "t", "c", 3)).held
    assert not channel_after(*held, ("seek", "t", "c", 1)).held


def test_after_a_restored_backlog_the_cursor_meets_later_held_messages_again() -> None:
    channel = channel_after(
        ("held", "t", "c", (1, 3, 5, 6)),
        ("progress", "t", "c", 8, (0, 1, 3, 5, 6, 8)),
        ("restore", "t", "c", 2, 4, (), ()),
    )
    assert (channel.cursor, list(channel.held), list(channel.skips)) == (2, [], [(4, 5), (6, 8)])


def test_what_is_beyond_the_tail_is_not_held() -> None:
    state = replayed(("held", "t", "c", (1, 5)), ("progress", "t", "c", 8, (0, 1, 5, 8)))
    assert state.cut(3)
    assert list(state.channels["c"].held) == [1, 2]


def test_a_channel_in_doubt_meets_held_messages_again() -> None:
    channel = channel_after(
        ("held", "t", "c", (1, 6)),
        ("progress", "t", "c", 8, (0, 1, 6, 8)),
        ("doubt", "t", 4),
        ("held", "t", "c", (8, 9)),
        ("progress", "t", "c", 10, (2, 3)),
    )
    assert (channel.cursor, list(channel.held)) == (4, [1, 3])
    assert not channel.waiting


def test_millions_of_held_messages_cost_little() -> None:
    began = process_time()
    flat = [it for sequence in range(0, 400_000, 4) for it in (sequence, sequence + 2)]
    channel = channel_after(("held", "t", "c", flat), ("progress", "t", "c", 400_000, (2, 400_000)))
    assert len(channel.held) == 2
    channel = channel_after(("held", "t", "c", (0, 3_000_000)), ("progress", "t", "c", 3_000_000, ()))
    assert (len(channel.held), channel.waiting) == (3_000_000, {})
    assert process_time() - began < 5
