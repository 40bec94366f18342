"""The rows of nsq_stat, from given statistics."""

from __future__ import annotations

from nsqtools.rates import HEADER, Counters, Poll, counters_in, row_between


def node(messages: int, depth: int = 0, **others: int) -> Counters:
    return Counters(message_count=messages, depth=depth, **others)


def test_the_table_byte_by_byte() -> None:
    before = Poll(10.0, {"a": node(1000, 50)})
    now = Poll(
        12.0,
        {"a": node(1301, 40, backend_depth=30, in_flight_count=7, deferred_count=2, requeue_count=3, timeout_count=4,
                   client_count=5)},
    )  # fmt: skip
    assert HEADER.splitlines() == [
        "------rate------+----------------depth----------------+--------------metadata---------------",
        "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients",
    ]
    assert row_between(before, now).line() == (
        "    150     155 |      40      10      30     7     2 |       3       4         1301       5\n"
    )


def test_rates_are_cut_towards_zero_and_may_be_negative() -> None:
    row = row_between(Poll(0.0, {"a": node(10, 0)}), Poll(2.0, {"a": node(11, 6)}))
    assert (row.ingress, row.egress) == (0, -2)


def test_wide_numbers_push_the_columns() -> None:
    row = row_between(Poll(0.0, {"a": node(0)}), Poll(1.0, {"a": node(12345678, 12345678)}))
    assert row.line().startswith("12345678       0 | 12345678 12345678       0 ")


def test_several_nodes_are_summed() -> None:
    row = row_between(
        Poll(0.0, {"a": node(0), "b": node(10)}), Poll(1.0, {"a": node(5, 1), "b": node(30, 2, client_count=1)})
    )
    assert (row.ingress, row.total.depth, row.total.message_count, row.nodes) == (25, 3, 35, 2)


def test_a_node_that_is_missing_marks_the_row_and_not_the_rates() -> None:
    before = Poll(0.0, {"a": node(100), "b": node(1_000_000)})
    row = row_between(before, Poll(1.0, {"a": node(107)}, missing=("b:1",)))
    assert row.ingress == 7
    assert row.line().endswith("  (without b:1)\n")
    assert row.document()["missing"] == ["b:1"]


def test_held_messages_are_shown_if_there_are_any() -> None:
    before, after = Poll(0.0, {"a": node(10)}), {"a": node(10, 9, held_count=5), "b": node(3, 2, held_count=1)}
    row = row_between(before, Poll(1.0, after, missing=("c:1",)))
    assert row.line().endswith(" 0  (held 6)  (without c:1)\n")
    assert row.document()["held_count"] == 6
    assert "held" not in row_between(before, Poll(1.0, {"a": node(10)})).line()


def test_a_channel_in_what_nsqd_says() -> None:
    stats = {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c", "depth": 3, "message_count": 9}]}]}
    assert counters_in(stats, "t", "c") == node(9, 3)
    assert counters_in(stats, "t", "d") is None
    assert counters_in({"topics": None}, "t", "c") is None
