"""The decisions of the source: offsets, fair shares, the contents of a batch, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.errors import BadOption, DataLoss
from pyspark_nsq.lanes import (
    At,
    ChooseRows,
    Edge,
    Head,
    Lane,
    LaneBounds,
    Offsets,
    Range,
    advance,
    all_rows,
    parse_bound,
    plan,
    resolve,
    split_into_tasks,
)

A, B, C = (Lane(node, "orders", "log") for node in "abc")


def heads(**ends: tuple[int, int]) -> dict[Lane, Head]:
    """Parse `a=(first, next)`."""
    return {Lane(node, "orders", "log"): Head(Lane(node, "orders", "log"), node, *it) for node, it in ends.items()}


def test_offsets_come_back_from_what_spark_keeps() -> None:
    offsets = Offsets({B: 2, A: 1}, {A: 0}, initial=True)
    kept = json.dumps(offsets.to_json())
    assert Offsets.from_json(json.loads(kept)) == offsets
    assert list(json.loads(kept)["lanes"]) == ["a/orders/log", "b/orders/log"]


@pytest.mark.parametrize(
    "written",
    [None, [], {"v": 2, "lanes": {}}, {"v": 1}, {"v": 1, "lanes": {"a/b": 1}}, {"v": 1, "lanes": {"a/b/c": -1}}],
)
def test_what_is_no_offset_is_refused(written: object) -> None:
    with pytest.raises(BadOption):
        Offsets.from_json(written)


# The next batch


def at_most(rows: int) -> ChooseRows:
    """Return the limits of each lane."""
    return lambda waiting: {lane: min(rows, span.end - span.begin) for lane, span in waiting.items()}


def test_nothing_new_gives_the_very_start() -> None:
    start = Offsets({A: 5}, {A: 0})
    assert advance(start, heads(a=(0, 5)), vanished={}) is start


def test_what_is_not_worth_a_batch_yet_gives_the_very_start() -> None:
    start = Offsets({A: 5}, {A: 0})
    assert advance(start, heads(a=(0, 9)), choose_rows=lambda _: None, vanished={}) is start


def test_where_a_lane_begins_is_written_down_though_it_is_not_worth_a_batch_yet() -> None:
    end = advance(Offsets({A: 5}), heads(a=(0, 9), b=(3, 9)), choose_rows=lambda _: None, vanished={})
    assert end == Offsets({A: 5, B: 3}, {B: 3})


def test_a_lane_without_a_share_stays_where_it_is() -> None:
    end = advance(Offsets({A: 5, B: 2}), heads(a=(0, 9), b=(0, 9)), choose_rows=lambda _: {A: 1}, vanished={})
    assert end.lanes == {A: 6, B: 2}


# Lanes whose nodes have drained


def closed(**ends: tuple[int, int]) -> dict[Lane, Head]:
    return {lane: replace(head, closed=True) for lane, head in heads(**ends).items()}


GONE = {A: "none of the nsqd that answer has it"}
SHARES: list[ChooseRows] = [all_rows, lambda _: None, *map(at_most, range(1, 5))]


def test_a_closed_lane_that_was_read_to_its_end_may_go() -> None:
    end = advance(Offsets({A: 3, B: 1}), closed(a=(0, 5)) | heads(b=(0, 1)), vanished={})
    assert end == Offsets({A: 5, B: 1}, closed={A: 5})
    after = Offsets.from_json(json.loads(json.dumps(end.to_json())))
    assert advance(after, heads(b=(0, 1)), vanished=GONE) is after
    later = advance(after, heads(b=(0, 4)), vanished=GONE)
    assert later == Offsets({A: 5, B: 4}, closed={A: 5})
    assert plan(after, later, {B: "b"}) == [Range(B, "b", 1, 4)]


def test_that_a_lane_is_closed_is_kept_though_there_is_nothing_to_read() -> None:
    end = advance(Offsets({A: 5}), closed(a=(0, 5)), vanished={})
    assert end == Offsets({A: 5}, closed={A: 5})
    assert plan(Offsets({A: 5}), end, {}) == []
    assert advance(end, closed(a=(0, 5)), vanished={}) is end


def test_that_a_lane_is_closed_is_kept_though_it_is_not_worth_a_batch_yet() -> None:
    here = closed(a=(0, 5)) | heads(b=(0, 9))
    end = advance(Offsets({A: 5, B: 2}), here, choose_rows=lambda _: None, vanished={})
    assert end == Offsets({A: 5, B: 2}, closed={A: 5})
    assert advance(end, here, choose_rows=lambda _: None, vanished={}) is end


def test_a_closed_lane_that_goes_unread_is_an_error_with_the_count() -> None:
    end = advance(Offsets({A: 3}), closed(a=(0, 4005)), choose_rows=at_most(2), vanished={})
    assert end == Offsets({A: 5}, closed={A: 4005})
    text = r"a/orders/log: 4,000 messages \[5, 4005\) cannot be read: none of the nsqd"
    with pytest.raises(DataLoss, match=text):
        advance(end, {}, vanished=GONE)
    with pytest.raises(DataLoss, match=text):
        plan(end, Offsets({A: 4005}, closed={A: 4005}), {})
    assert advance(end, {}, vanished=GONE, lossless=False) == Offsets({})


def test_a_closed_lane_that_is_opened_again_is_read_on() -> None:
    start = Offsets({A: 5}, closed={A: 5})
    end = advance(start, heads(a=(0, 8)), vanished={})
    assert end == Offsets({A: 8})
    assert plan(start, end, {A: "a"}) == [Range(A, "a", 5, 8)]
    with pytest.raises(DataLoss, match="everything from 8 on cannot be read"):
        advance(end, {}, vanished=GONE)


def test_offsets_of_another_checkpoint_may_name_complete_lanes_that_are_gone() -> None:
    kept = json.dumps(Offsets({A: 5, B: 2}, closed={A: 5}).to_json())
    bound = parse_bound(kept, others=Edge.EARLIEST, option="startingOffsets")
    assert isinstance(bound, LaneBounds)
    found = heads(b=(0, 4))
    begins = resolve(bound, found, lambda head, _: head.first, option="startingOffsets", lossless=True)
    assert (begins, bound.complete(found)) == ({B: 2}, {A: 5})
    unread = parse_bound(kept.replace('log": 5, "b', 'log": 4, "b'), others=Edge.EARLIEST, option="startingOffsets")
    with pytest.raises(BadOption, match="there is no lane a/orders/log"):
        resolve(unread, found, lambda head, _: head.first, option="startingOffsets", lossless=True)


@given(st.data())
def test_whatever_drains_restarts_and_goes_nothing_is_read_twice_or_lost_without_a_word(data: st.DataObject) -> None:
    """One lane: it grows, drains, is opened again, goes and comes back, while batches are taken and the query restarts."""
    published, is_up, is_open = 0, True, True
    offsets, read = Offsets({A: 0}, initial=True), 0
    for _ in range(data.draw(st.integers(1, 20))):
        match data.draw(st.sampled_from(["publish", "drain", "go", "start", "batch", "restart"])):
            case "publish" if is_up and is_open:
                published += data.draw(st.integers(1, 5))
            case "drain" if is_up:
                is_open = False
            case "go":
                is_up = False
            case "start":
                is_up = is_open = True
            case "restart":
                offsets = Offsets.from_json(json.loads(json.dumps(offsets.to_json())))
            case "batch":
                here = heads(a=(0, published)) if is_open else closed(a=(0, published))
                try:
                    end = advance(
                        offsets,
                        here if is_up else {},
                        choose_rows=data.draw(st.sampled_from(SHARES)),
                        vanished={} if is_up else GONE,
                    )
                except DataLoss:
                    assert not offsets.is_complete(A)
                    return
                for it in plan(offsets, end, {A: "a"}):
                    assert it.begin == read
                    read = it.end if it.end is not None else -1
                offsets = end
                if not is_up:  # there was no error, so only what came after the last batch may be missing
                    assert read == offsets.closed[A]
    assert read == offsets.lanes[A]


# Batches


def test_the_first_batch_says_where_it_began() -> None:
    end = advance(Offsets({A: 3}, initial=True), heads(a=(0, 5)), vanished={})
    assert end == Offsets({A: 5}, {A: 3})


def test_a_replayed_first_batch_begins_where_it_began() -> None:
    # Between the two runs `latest` has become 9; the offset log has only the end.
    ranges = plan(Offsets({A: 9}, initial=True), Offsets({A: 5}, {A: 3}), {A: "a"})
    assert ranges == [Range(A, "a", 3, 5)]


def test_a_lane_that_appears_is_read_from_its_first_message() -> None:
    start = Offsets({A: 5})
    end = advance(start, heads(a=(0, 5), b=(7, 9)), vanished={})
    assert end == Offsets({A: 5, B: 9}, {B: 7})
    assert plan(start, end, {A: "a", B: "b"}) == [Range(B, "b", 7, 9)]


def test_a_lane_of_a_node_that_is_down_stays_where_it_is() -> None:
    end = advance(Offsets({A: 5, B: 2}), heads(a=(0, 6)), vanished={})
    assert end.lanes == {A: 6, B: 2}


def test_retention_that_overtakes_a_lane_is_an_error_that_names_lane_and_range() -> None:
    with pytest.raises(DataLoss, match=r"a/orders/log: messages \[5, 8\) were removed by retention"):
        advance(Offsets({A: 5}), heads(a=(8, 20)), vanished={})


def test_when_loss_is_allowed_what_was_removed_costs_no_rows() -> None:
    start = Offsets({A: 5})
    end = advance(start, heads(a=(8, 20)), choose_rows=at_most(3), vanished={}, lossless=False)
    assert end.lanes == {A: 11}
    assert plan(start, end, {A: "a"}) == [Range(A, "a", 5, 11)]  # the reader learns what is left


def test_a_lane_that_vanished_is_an_error() -> None:
    with pytest.raises(DataLoss, match="a/orders/log: everything from 5 on cannot be read: its topic was deleted"):
        advance(Offsets({A: 5}), {}, vanished={A: "its topic was deleted"})


def test_when_loss_is_allowed_a_lane_that_vanished_leaves_a_gap_once() -> None:
    start = Offsets({A: 5, B: 1})
    end = advance(start, heads(b=(0, 1)), vanished={A: "deleted"}, lossless=False)
    assert end.lanes == {B: 1}
    assert plan(start, end, {B: "b"}) == [Range(A, "", 5, None)]
    assert advance(end, heads(b=(0, 1)), vanished={A: "deleted"}, lossless=False) is end


def test_a_planned_batch_of_a_lane_that_vanished_is_an_error_or_a_range_without_an_address() -> None:
    start, end = Offsets({A: 5, B: 1}), Offsets({A: 900, B: 2})
    with pytest.raises(DataLoss, match="a/orders/log: everything from 5 on cannot be read"):
        plan(start, end, {B: "b"})
    ranges = plan(start, end, {B: "b"}, lost={A})
    assert ranges == [Range(A, "", 5, 900), Range(B, "b", 1, 2)]
    assert split_into_tasks(ranges, 100) == [(Range(A, "", 5, 900),), (Range(B, "b", 1, 2),)]


def test_nothing_is_read_beyond_the_targets() -> None:
    targets = {A: 7}
    end = advance(Offsets({A: 5}), heads(a=(0, 9), b=(0, 9)), vanished={}, targets=targets)
    assert end.lanes == {A: 7}
    assert advance(end, heads(a=(0, 9), b=(0, 9)), vanished={}, targets=targets) is end


def test_a_start_behind_its_end_is_refused() -> None:
    with pytest.raises(DataLoss, match="begins at 9, after its end at 5"):
        plan(Offsets({A: 9}), Offsets({A: 5}), {A: "a"})


@given(st.data())
def test_batches_follow_each_other_without_a_gap_or_an_overlap(data: st.DataObject) -> None:
    start = Offsets({A: 0, B: 0}, initial=True)
    now = heads(a=(0, 0), b=(0, 0))
    read: dict[Lane, list[range]] = {A: [], B: [], C: []}
    for _ in range(data.draw(st.integers(1, 8))):
        for lane, head in now.items():
            now[lane] = replace(head, next=head.next + data.draw(st.integers(0, 9)))
        if data.draw(st.booleans()):
            now |= {C: now.get(C, Head(C, "c", 0, 3))}
        end = advance(start, now, choose_rows=at_most(data.draw(st.integers(0, 9))), vanished={})
        for it in plan(start, end, dict.fromkeys(now, "x")):
            assert it.end is not None
            read[it.lane].append(range(it.begin, it.end))
        start = end
    for lane, pieces in read.items():
        assert [number for piece in pieces for number in piece] == list(range(start.lanes.get(lane, 0)))


# Tasks


@given(st.lists(st.integers(1, 500), max_size=8), st.integers(1, 100))
def test_tasks_hold_every_row_once_and_none_too_many(sizes: list[int], rows_per_task: int) -> None:
    ranges = [Range(Lane(str(place), "t", "l"), "x", 0, size) for place, size in enumerate(sizes)]
    tasks = split_into_tasks(ranges, rows_per_task)
    assert all(sum(part.rows for part in task) <= rows_per_task for task in tasks)
    for whole in ranges:
        parts = [part for task in tasks for part in task if part.lane == whole.lane]
        assert parts[0].begin == 0
        assert parts[-1].end == whole.end
        assert all(one.end == two.begin for one, two in pairwise(parts))


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 5000)), min_size=1, max_size=20),
    st.integers(1, 100),
    st.integers(100, 2000),
)
def test_tasks_hold_no_more_bytes_than_they_may(steps: list[tuple[int, int]], rows: int, size: int) -> None:
    marks = [(0, 0)]
    for more_rows, more_bytes in steps:
        marks.append((marks[-1][0] + more_rows, marks[-1][1] + more_bytes))
    whole = Range(A, "x", 0, marks[-1][0])
    tasks = split_into_tasks([whole], rows, bytes_per_task=size, marks={whole: marks})
    parts = [part for task in tasks for part in task]
    assert [parts[0].begin, *(part.end for part in parts)] == [*(part.begin for part in parts), whole.end]
    longest = max(more_bytes / more_rows for more_rows, more_bytes in steps)
    for part in parts:
        assert part.rows <= rows
        assert part.rows == 1 or bytes_between(marks, part) <= size + 2 * longest


def bytes_between(marks: list[tuple[int, int]], part: Range) -> float:
    assert part.end is not None
    found = 0.0
    for (begin, before), (end, then) in pairwise(marks):
        rows = min(end, part.end) - max(begin, part.begin)
        found += max(0, rows) * (then - before) / (end - begin)
    return found


def test_large_messages_make_more_tasks_than_their_number() -> None:
    megabytes = Range(A, "x", 0, 1000)
    tasks = split_into_tasks(
        [megabytes], 100_000, bytes_per_task=128 << 20, marks={megabytes: [(0, 0), (1000, 1000 << 20)]}
    )
    assert [sum(part.rows for part in task) for task in tasks] == [125] * 8


def test_short_ranges_of_large_messages_do_not_share_a_task() -> None:
    ranges = [Range(Lane(str(number), "t", "l"), "x", 0, 100) for number in range(8)]
    marks = {it: [(0, 0), (100, 100 << 20)] for it in ranges}
    assert len(split_into_tasks(ranges, 100_000, bytes_per_task=128 << 20, marks=marks)) == 8


def test_many_short_ranges_share_tasks() -> None:
    ranges = [Range(Lane(str(number), "t", "l"), "x", 0, 10) for number in range(100)]
    assert len(split_into_tasks(ranges, 1600)) == 5


# Where to begin


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Edge.EARLIEST),
        ("Latest", Edge.LATEST),
        ('{"a/orders/log": 4}', LaneBounds({A: 4}, Edge.EARLIEST)),
        ('{"v": 1, "lanes": {"a/orders/log": "latest"}}', LaneBounds({A: Edge.LATEST}, Edge.EARLIEST)),
    ],
)
def test_bounds(text: str, bound: object) -> None:
    assert parse_bound(text, others=Edge.EARLIEST, option="startingOffsets") == bound


@pytest.mark.parametrize(
    "text", ["", "newest", "[1]", "{", '{"a": 1}', '{"a/b/c": -1}', '{"a/b/c": 1.5}', '{"v": 9, "lanes": {}}']
)
def test_bad_offsets_are_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(BadOption, match=r"startingOffsets|is not a lane"):
        parse_bound(text, others=Edge.EARLIEST, option="startingOffsets")


def resolved(bound: object, lossless: bool = True) -> dict[Lane, int]:
    found = heads(a=(3, 9), b=(0, 4))
    return resolve(bound, found, lambda head, _: head.first + 1, option="startingOffsets", lossless=lossless)  # type: ignore[arg-type]


def test_places_are_looked_up() -> None:
    assert resolved(Edge.EARLIEST) == {A: 3, B: 0}
    assert resolved(Edge.LATEST) == {A: 9, B: 4}
    assert resolved(At("2026-03-01T12:00:00Z")) == {A: 4, B: 1}
    assert resolved(LaneBounds({A: 5}, Edge.LATEST)) == {A: 5, B: 4}
    assert resolved(LaneBounds({A: At("2026-03-01T12:00:00Z")}, Edge.LATEST)) == {A: 4, B: 4}


def test_a_time_behind_the_end_is_the_end_unless_a_message_is_required() -> None:
    found = heads(a=(3, 9))
    for bound, end in (
        (At("2100-01-01T00:00:00Z"), 9),
        (LaneBounds({A: At("2100-01-01T00:00:00Z")}, Edge.EARLIEST), 9),
    ):
        assert resolve(bound, found, lambda head, _: head.next, option="o", lossless=True) == {A: end}
    with pytest.raises(BadOption, match="o: lane a/orders/log has no message of 2100-01-01T00:00:00Z or later"):
        resolve(At("2100-01-01T00:00:00Z", required=True), found, lambda head, _: head.next, option="o", lossless=True)


def test_places_that_are_not_there_are_refused() -> None:
    with pytest.raises(BadOption, match="ends at 9, before 10"):
        resolved(LaneBounds({A: 10}, Edge.EARLIEST))
    with pytest.raises(BadOption, match="there is no lane c/orders/log; there are: a/orders/log, b/orders/log"):
        resolved(LaneBounds({C: 0}, Edge.EARLIEST))
    with pytest.raises(DataLoss, match=r"\[1, 3\) were removed"):
        resolved(LaneBounds({A: 1}, Edge.EARLIEST))
    assert resolved(LaneBounds({A: 1}, Edge.EARLIEST), lossless=False)[A] == 1
