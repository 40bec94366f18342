"""The rows of nsq_stat, from given statistics."""

from __future__ import annotations

from nsqtools.rates import HEADER, NodeCounters, Poll, counters_in, row_between


def node(messages: int, depth: int = 0, **others: int) -> NodeCounters:
    return NodeCounters(message_count=messages, depth=depth, **others)


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


LIMIT = 3
START = 1_700_000_000 * 10**9


def limited(*full_since: int, now: int = START + 125 * 10**9) -> Poll:
    """Return a poll of nodes with a limit that was reached at these times; 0: it isn't."""
    nodes = {
        f"n{number}:1": node(0, max_in_flight=LIMIT, in_flight_full_since=it) for number, it in enumerate(full_since)
    }
    return Poll(1.0, nodes, timestamp=now)


def test_a_limit_of_messages_in_flight_is_shown_with_how_long_it_has_been_reached() -> None:
    row = row_between(Poll(0.0, {}), limited(START))
    assert row.line().endswith("       0  (max_in_flight 3, reached for 2m5s)\n")
    assert (row.document()["max_in_flight"], row.document()["in_flight_full_seconds"]) == (3, 125)
    row = row_between(Poll(0.0, {}), limited(0))
    assert row.line().endswith("       0  (max_in_flight 3)\n")
    assert row.document()["in_flight_full_seconds"] is None


def test_the_limits_of_several_nodes_add_up() -> None:
    row = row_between(Poll(0.0, {}), limited(START + 60 * 10**9, 0, START))
    assert row.line().endswith("  (max_in_flight 3 on each node, up to 9 on these three, reached for 2m5s)\n")
    assert (row.document()["max_in_flight"], row.document()["in_flight_full_seconds"]) == (9, 125)


def test_a_node_whose_clock_is_ahead_has_just_reached_its_limit() -> None:
    row = row_between(Poll(0.0, {}), limited(START, now=START - 10**9))
    assert row.document()["in_flight_full_seconds"] == 0


def test_the_limit_of_a_channel_in_what_nsqd_says() -> None:
    told = {"channel_name": "c", "message_count": 0, "max_in_flight": 3, "in_flight_full_since": START}
    stats = {"topics": [{"topic_name": "t", "channels": [told]}]}
    assert counters_in(stats, "t", "c") == node(0, max_in_flight=3, in_flight_full_since=START)
