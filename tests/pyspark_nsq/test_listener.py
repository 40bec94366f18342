"""Spark's reports about queries over topics, as numbers, and as a page for Prometheus."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqpipe.ledger import Ledger
from nsqpipe.running import _Listener
from pyspark_nsq import reports
from pyspark_nsq.errors import BadOption
from pyspark_nsq.idle import ClusterLook
from pyspark_nsq.lanes import Head, Lane, Offsets, skipped
from pyspark_nsq.listener import QueryStates, serve
from pyspark_nsq.reports import EndTimes, longest
from tests.support.process import ROOT

LANE = "n/t/l"
A, B, C = (Lane(node, "t", "l") for node in "abc")


def report(end: int = 10, latest: int = 10, *, start: int | None = 0, at: int = 0, **more: Any) -> dict[str, Any]:
    """Make a report as Spark does: offsets are texts."""
    source = {
        "startOffset": None if start is None else json.dumps({"v": 1, "lanes": {LANE: start}}),
        "endOffset": json.dumps({"v": 1, "lanes": {LANE: end}, "begins": {LANE: 4} if start is None else {}}),
        "latestOffset": json.dumps({"v": 1, "lanes": {LANE: latest}, **more.pop("told", {})}),
    }
    return {
        "numInputRows": 1,
        "timestamp": f"1970-01-01T00:{at // 60:02}:{at % 60:02}.000Z",
        "durationMs": {"triggerExecution": 1500, "walCommit": 20, "commitOffsets": 30, "addBatch": 1000},
        "sources": [source],
    } | more


# Numbers


def test_rows_are_counted_by_offsets() -> None:
    assert reports.rows_of(report(10)) == 10, "though Spark has seen one row, which stood for a range"
    assert reports.rows_of(report(10, start=None)) == 6, "a first batch says where it began"
    assert reports.rows_of({"numInputRows": 7, "sources": [{"endOffset": "7"}, {"endOffset": "{"}]}) == 7


def test_what_the_source_tells_beside_the_latest_offset() -> None:
    found = report(told={"missing": {"b:1": "b:1 cannot be reached"}, "gap": 3})
    assert (reports.missing_in(found), reports.gap_of(found)) == ({"b:1": "b:1 cannot be reached"}, 3)
    assert (reports.missing_in(report()), reports.gap_of(report())) == ({}, 0)


def test_late_rows_and_state_are_those_of_all_operators() -> None:
    found = report(stateOperators=[{"numRowsDroppedByWatermark": 2, "numRowsTotal": 5}, {"numRowsTotal": 6}])
    assert (reports.late_rows_of(found), reports.state_rows_of(found)) == (2, 11)


def test_times_of_a_batch() -> None:
    assert (reports.seconds_of(report()), reports.commit_seconds_of(report())) == (1.5, 0.05)
    assert (reports.time_of(report(at=61)), reports.time_of({})) == (61.0, None)


def test_messages_that_a_batch_leaves_out_are_counted() -> None:
    heads = {A: Head(A, "a", 8, 20), B: Head(B, "b", 0, 9)}
    start = Offsets({A: 5, B: 1, C: 7}, closed={C: 9})
    assert skipped(start, start, heads) == 0
    assert skipped(start, Offsets({A: 20, B: 9, C: 7}), heads) == 3
    assert skipped(start, Offsets({A: 20, B: 9}), heads) == 5  # C is known to have had two
    assert skipped(Offsets({A: 5}), Offsets({A: 6}), heads) == 1
    assert skipped(Offsets({}, initial=True), Offsets({A: 20}, {A: 6}), heads) == 2


# The age of the first unread message


def test_a_lane_that_is_read_to_its_end_has_no_lag() -> None:
    times = EndTimes()
    assert times.lag(5.0) == 0.0
    times.note(10.0, 100, 100)
    assert times.lag(500.0) == 0.0


def test_the_lag_is_since_the_lane_ended_where_the_query_stands() -> None:
    times = EndTimes()
    times.note(10.0, 100, 0)
    assert times.lag(11.0) is None, "nobody has seen when the first message came"
    times.note(20.0, 200, 100)
    assert times.lag(25.0) == 15.0
    times.note(30.0, 300, 150)
    assert times.lag(31.0) == 21.0, "message 150 came after 10.0"
    times.note(40.0, 300, 300)
    assert times.lag(99.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60))
def test_the_lag_is_never_less_than_the_age_of_the_first_unread_message(steps: list[tuple[int, int]]) -> None:
    times, end, reached, published = EndTimes(), 0, 0, []
    for now, (more, taken) in enumerate(steps):
        published += [now - 0.5] * more
        end += more
        reached = min(end, reached + taken)
        times.note(float(now), end, reached)
        lag = times.lag(float(now))
        age = now - published[reached] if reached < end else 0.0
        assert lag is None or lag >= age or (lag == 0.0 and reached == end)
        if reached < end and lag is not None:
            assert lag >= age


def test_what_is_kept_of_a_lane_is_bounded() -> None:
    times = EndTimes()
    for number in range(10_000):
        times.note(float(number), number, 0)
    assert len(times._ends) <= 1001
    assert times.lag(10_000.0) == 10_000.0


def test_one_lane_of_unknown_lag_makes_the_longest_unknown() -> None:
    assert (longest([]), longest([1.0, 3.0]), longest([1.0, None])) == (0.0, 3.0, None)


# States


class StatesByHand(QueryStates):
    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(clock=lambda: self.now)

    def of(self, query: str) -> Any:
        return self.snapshot()[query]


def test_a_query_from_start_to_failure_and_a_restart_that_does_not_help() -> None:
    states = StatesByHand()
    states.started("land")
    assert (states.of("land").is_active, states.of("land").last_success) == (True, None)
    states.observe("land", report())
    states.now = 110.0
    states.idle("land")
    assert states.of("land").last_success == 100.0, "nobody has looked"
    states.idle("land", report(start=10))
    assert states.of("land").last_success == 110.0
    states.ended("land", "boom")
    found = states.of("land")
    assert (found.is_active, found.failures, found.failed_starts, found.error) == (False, 1, 0, "boom")
    states.started("land")
    states.ended("land", "again")
    found = states.of("land")
    assert (found.starts, found.failures, found.failed_starts, found.batches) == (2, 2, 1, 1)
    states.started("land")
    states.ended("land", None)
    assert states.of("land").failures == 2


def test_batches_add_up() -> None:
    states = StatesByHand()
    broken = {"quality": {'says "no"': 2}, "nsq": {"bytes": 50}}
    late = [{"numRowsDroppedByWatermark": 4}]
    told = {"gap": 1, "missing": {"b:1": "down"}}
    states.observe("land", report(10, 25, at=0, observedMetrics=broken, stateOperators=late, told=told))
    states.observe("land", report(20, 25, start=10, at=60, observedMetrics=broken))
    found = states.of("land")
    assert (found.rows, found.bytes, found.late_rows, found.gap, found.lag) == (20, 100, 4, 1, 5)
    assert (found.missing, found.lanes, found.broken) == ({}, {LANE: 20}, {'says "no"': 4})


def looked(answers: dict[str, Any] | None, at: float, last: dict[str, Any]) -> reports.Report:
    """Look at an idle query whose node has this log, or is down."""
    look = ClusterLook({"nsqd": "127.0.0.1:1", "topic": "t"}, clock=lambda: at)
    if answers is not None:
        look._cluster._http.json = Mock(return_value=answers)  # type: ignore[method-assign]
    return look("land", last)


def test_an_idle_query_is_well_only_while_its_nodes_are_there() -> None:
    log = {"node": "n", "topic": "t", "log": "l", "first": 0, "next": 30, "bytes": 9, "last_time": 1}
    states, last = StatesByHand(), report(20, 20, at=100)
    states.observe("land", last)
    states.now = 1000.0
    states.idle("land", looked(log | {"retention_time": 1, "retention_bytes": 0}, 1000, last))
    found = states.of("land")
    assert (found.last_success, found.missing, found.lag, found.lag_seconds) == (1000.0, {}, 10, 900.0)
    states.now = 90_000.0
    states.idle("land", looked(None, 90_000, last))
    found = states.of("land")
    assert (found.last_success, [*found.missing], found.lag_seconds) == (1000.0, ["127.0.0.1:1"], None)
    assert (found.batches, found.rows, found.lanes) == (1, 20, {LANE: 20})


def test_an_idle_query_whose_nsqlookupd_cannot_be_asked_is_not_known_to_be_well() -> None:
    found = ClusterLook({"lookupd": "127.0.0.1:1", "topic": "t"})("land", None)
    assert "cannot be reached" in reports.missing_in(found)["127.0.0.1:1"]


def test_the_last_line_of_a_job_tells_who_has_gone_while_it_was_idle() -> None:
    ledger, last = Ledger("land", "table t"), report(20, 20)
    listener: Any = _Listener([ledger.observe], lambda _, it: looked(None, 200, dict(it or {})))
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id=1, name="land", json=json.dumps(last))))
    assert not ledger.missing
    listener.onQueryIdle(SimpleNamespace(id=1))
    assert [*ledger.missing] == ["127.0.0.1:1"]
    assert "20 rows read" in ledger.summary(1.0)
    assert "without 127.0.0.1:1" in ledger.summary(1.0)


def page_of(states: QueryStates) -> str:
    server = serve(states, "127.0.0.1:0")
    try:
        where = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{where}/metrics") as response:
            page: str = response.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(where)
    finally:
        server.shutdown()
        server.server_close()
    return page


def test_the_page_has_every_metric_and_leaves_out_what_is_not_known() -> None:
    states = StatesByHand()
    states.observe('"odd"', report(10, 25, observedMetrics={"quality": {"r": 2}}))
    page = page_of(states)
    assert 'nsq_query_rows_total{query="\\"odd\\""} 10\n' in page
    assert 'nsq_query_lag_messages{query="\\"odd\\""} 15\n' in page
    assert "nsq_query_lag_seconds{" not in page
    assert "nsq_query_bytes_total{" not in page
    assert 'nsq_query_lane_next{query="\\"odd\\"",lane="n/t/l"} 10\n' in page
    assert 'nsq_query_last_success_timestamp_seconds{query="\\"odd\\""} 100\n' in page
    exported = dict(re.findall(r"# HELP (\w+) (.*)\n", page))
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    documented = re.findall(r"^\| `(nsq_query_\w+)`[^|]* \| \w+ \| (.*) \|$", text, re.MULTILINE)
    assert exported == dict(documented)


def test_a_wrong_address_is_one_line() -> None:
    with pytest.raises(BadOption, match="nowhere"):
        serve(QueryStates(), "nowhere:x")


# With Spark
