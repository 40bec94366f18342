"""Which part of a batch a table lacks: a model of tables, and of jobs with checkpoints of any age, without Spark."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.tables.ends import Refused, Span, advanced, first_lacking, joined, new_end

LANE = "n/orders/l"


@pytest.mark.parametrize(
    ("end", "begin", "opens", "lacking", "after"),
    [
        (None, 5, True, 5, 9),  # the lane begins here
        (5, 5, False, 5, 9),
        (9, 5, False, 9, 9),  # already in the table
        (12, 5, True, 9, 12),
        (7, 5, False, 7, 9),  # partly in the table
    ],
)
def test_what_a_table_takes_of_messages_up_to_nine(
    end: int | None, begin: int, opens: bool, lacking: int, after: int
) -> None:
    span = Span(LANE, begin, 9, opens)
    assert (first_lacking(span, end), new_end(span, end)) == (lacking, after)


@pytest.mark.parametrize(
    ("end", "opens", "told"), [(4, True, r"messages \[4, 5\) would be missing"), (None, False, "the table was removed")]
)
def test_what_would_leave_a_hole_is_refused(end: int | None, opens: bool, told: str) -> None:
    with pytest.raises(Refused, match=told):
        new_end(Span(LANE, 5, 9, opens), end)


def test_a_lane_that_opens_without_a_message_is_known_from_then_on() -> None:
    assert advanced({LANE: Span(LANE, 5, 5, opens=True)}, {}) == {LANE: 5}
    assert advanced({LANE: Span(LANE, 5, 5, opens=True)}, {LANE: 5}) == {}


def test_parts_that_do_not_join_are_refused() -> None:
    with pytest.raises(Refused, match="do not join"):
        joined([Span(LANE, 0, 5), Span(LANE, 6, 9)])


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True).map(sorted), st.booleans(), st.randoms())
def test_the_parts_of_a_span_join_in_any_order(borders: list[int], opens: bool, random: object) -> None:
    parts = [Span(LANE, begin, end, opens and begin == borders[0]) for begin, end in itertools.pairwise(borders)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert joined(parts) == {LANE: Span(LANE, borders[0], borders[-1], opens)}


steps = st.tuples(
    st.integers(0, 2),  # which job
    st.integers(0, 9),  # messages in the batch
    st.integers(1, 3),  # tasks
    st.sampled_from(["commits", "dies before", "dies after", "loses its checkpoint"]),
)


@given(st.integers(0, 20), st.lists(steps, max_size=40))
def test_no_row_is_twice_or_missing_whatever_checkpoints_do(
    first: int, history: list[tuple[int, int, int, str]]
) -> None:
    """Three jobs land a lane that begins at `first` into one table; each has a checkpoint that may be old, or lost."""
    rows: list[int] = []
    end: int | None = None
    checkpoints: dict[int, int] = {}
    for job, count, tasks, fate in history:
        begin = checkpoints.get(job, first)
        whole = Span(LANE, begin, begin + count, opens=job not in checkpoints)
        borders = [begin + count * part // tasks for part in range(tasks + 1)]
        parts = [Span(LANE, one, two) for one, two in itertools.pairwise(borders)]
        written = [row for part in parts for row in range(first_lacking(part, end), part.end)]
        if fate != "dies before":
            end = new_end(whole, end)
            rows += written
        if fate == "commits":
            checkpoints[job] = whole.end
        if fate == "loses its checkpoint":
            checkpoints.pop(job, None)
    assert rows == list(range(first, first if end is None else end))


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 30), st.booleans())
def test_what_is_added_begins_exactly_where_the_table_ends(
    begin: int, count: int, more: int, end: int | None, opens: bool
) -> None:
    span = Span(LANE, begin, begin + count, opens)
    try:
        after = new_end(span, end)
    except Refused:
        assert (end is None and not opens) or (end is not None and end < begin)
        return
    added = range(first_lacking(span, end), span.end)
    assert after == (span.end if end is None else end + len(added))
