"""What is shown of a job while it runs and at its end, and how failures are reported. Most of it needs no Spark."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from nsqpipe.ledger import Ledger
from nsqpipe.progress import Progress, Tally, Tasks
from nsqpipe.results import Results
from pyspark_nsq.failures import first_cause
from pyspark_nsq.reports import rows_of


def report(
    batch: int = 0, start: dict[str, int] | None = None, end: dict[str, int] | None = None, **extra: Any
) -> dict[str, Any]:
    end = end or {"n/t/l": 10}
    begins = {} if start else {"begins": dict.fromkeys(end, 0)}
    source = {
        "startOffset": {"v": 1, "lanes": start} if start else None,
        "endOffset": {"v": 1, "lanes": end, **begins},
        "latestOffset": {"v": 1, "lanes": dict.fromkeys(end, 1000)},
    }
    return {
        "batchId": batch,
        "numInputRows": 2,
        "durationMs": {"triggerExecution": 1000},
        "sources": [source],
        **extra,
    }


# Rows


def test_rows_are_those_between_the_offsets_whatever_spark_has_counted() -> None:
    assert rows_of(report(end={"n/t/a": 10, "n/t/b": 5})) == 15, "the end says where the first batch began"
    assert rows_of(report(start={"n/t/a": 10}, end={"n/t/a": 30})) == 20
    assert rows_of(report(start={"n/t/a": 10}, end={"n/t/a": 10, "n/t/new": 7})) == 0, "nobody says where it began"


def test_a_batch_without_messages_behind_the_first_one_has_no_rows() -> None:
    """It begins and ends where the first batch ended, whose offset still says where that one began."""
    lanes = {"v": 1, "lanes": {"n/t/a": 10}, "begins": {"n/t/a": 0}}
    assert rows_of({"batchId": 1, "sources": [{"startOffset": lanes, "endOffset": lanes}]}) == 0
    grown = report(start={"n/t/a": 10}, end={"n/t/a": 10, "n/t/new": 7})
    grown["sources"][0]["endOffset"]["begins"] = {"n/t/new": 3}
    assert rows_of(grown) == 4
    assert rows_of({"numInputRows": 12, "sources": [{"endOffset": 3}]}) == 12, "another source than ours"
    assert rows_of({"numInputRows": 12, "sources": [{"endOffset": {"lanes": {"n/t/a": 99}}}]}) == 12


def test_a_tally_counts_late_rows_and_knows_how_long_it_takes_yet() -> None:
    tally = Tally()
    tally.add(report(end={"n/t/l": 100}, stateOperators=[{"numRowsDroppedByWatermark": 3}]))
    assert (tally.rows, tally.late, tally.behind, tally.speed) == (100, 3, 900, 100)
    assert tally.seconds_left == 9


# Display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_a_line_comes_now_and_then_and_the_last_state_always() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    progress.stage("looking", is_news=False)
    progress.stage("starting Spark")
    for second in range(25):
        clock.now = float(second)
        progress.observe("land", report(second, {"n/t/l": second}, {"n/t/l": second + 1}))
    progress.finish("land: 25 rows")
    said = stream.getvalue().splitlines()
    assert said[0] == "starting Spark"
    assert said[1] == "land: batch 0, 1 rows read, 1/s, 999 behind, 16 min 39 s to go"
    assert [line.split(",")[0] for line in said[2:-1]] == ["land: batch 10", "land: batch 20"]
    assert said[-1] == "land: 25 rows"


def test_on_a_terminal_the_line_is_rewritten_within_a_batch() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock=clock)
    progress.stage("first batch", lambda: Tasks(3, 12))
    clock.now = 6.0
    progress.renew()
    assert stream.getvalue().endswith("\r\x1b[2Kfirst batch, 3 of 12 tasks done, about 18 s left, 6 s so far")
    progress.finish("land: done")
    assert stream.getvalue().endswith("\r\x1b[2Kland: done\n")


def test_of_several_queries_the_one_furthest_behind_is_shown() -> None:
    stream = Terminal()
    progress = Progress(stream, clock=Clock())
    progress.observe("land", report(4, {"n/t/l": 1}, {"n/t/l": 50}))
    progress.observe("quarantine", report(7, {"n/t/l": 1}, {"n/t/l": 900}))
    assert stream.getvalue().rpartition("\r\x1b[2K")[2].startswith("land: batch 4, 49 rows read")


def test_a_job_that_failed_is_not_what_one_waits_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    progress = Progress(stream, clock=Clock())
    for query, end in (("a.land", 50), ("a.quarantine", 60), ("b.land", 900)):
        progress.observe(query, report(4, {"n/t/l": 1}, {"n/t/l": end}))
    assert stream.getvalue().endswith("19 s to go, the furthest behind of 3 streams")
    progress.give_up("a.")
    progress.renew()
    assert stream.getvalue().rpartition("\r\x1b[2K")[2] == (
        "b.land: batch 4, 899 rows read, 899/s, 100 behind, 0 s to go, a failed"
    )


def test_what_failed_leaves_no_half_line_behind() -> None:
    stream = Terminal()
    with Progress(stream, clock=Clock()) as progress:
        progress.stage("starting Spark")
    assert stream.getvalue() == "\r\x1b[2Kstarting Spark\r\x1b[2K"


def test_nodes_that_are_missing_are_named_while_it_runs_and_at_the_end() -> None:
    without = report(end={"n/t/l": 1000})
    without["sources"][0]["latestOffset"]["missing"] = {"127.0.0.1:4351": "127.0.0.1:4351 cannot be reached"}
    stream, ledger = Terminal(), Ledger("land", "table /t")
    Progress(stream, clock=Clock()).observe("land", without)
    ledger.observe("land", without)
    assert stream.getvalue().endswith("0 behind, without 127.0.0.1:4351")
    assert "0 behind, without 127.0.0.1:4351; table /t" in ledger.summary(1)
    ledger.observe("land", report())
    assert ledger.missing == {}, "it has come back"


def test_late_rows_are_a_lower_bound_while_it_runs_and_at_the_end() -> None:
    late = report(end={"n/t/l": 100}, stateOperators=[{"numRowsDroppedByWatermark": 3}])
    stream, ledger = Terminal(), Ledger("aggregate", "results r.json")
    Progress(stream, clock=Clock()).observe("aggregate", late)
    ledger.observe("aggregate", late)
    assert "at least 3" in stream.getvalue()  # the line is cut at the width of the terminal
    assert ", at least 3 late, " in ledger.summary(1)


def test_a_ledger_that_has_seen_nothing_says_so() -> None:
    assert (
        Ledger("land", "table /t").summary(2.0) == "land: 0 rows read in 2.0 s, 0 late, no batch was finished; table /t"
    )


# Rates of windows


@pytest.mark.parametrize(("second", "rate"), [(0, 90.0), (10, 9.0), (60, 1.5), (600, 1.5)])
def test_the_rate_of_an_open_window_is_that_of_its_part_until_now(second: int, rate: float) -> None:
    results = Results(60, 10)
    start = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    results.add([{"topic": "t", "start": start, "end": None, "messages": 90, "rate": 90 / 60}])
    now = datetime.fromtimestamp(start.timestamp() + second, UTC)
    (window,) = results.to_json(now)["topics"]["t"]
    assert window["rate"] == rate


# Failures

JAVA: Final = """An error occurred while calling o71.start.
: org.apache.spark.sql.streaming.StreamingQueryException: Job aborted
\tat org.apache.spark.sql.Thing.start(Thing.scala:1)
Caused by: org.apache.spark.SparkException: Writing failed
\tat x
Caused by: java.io.IOException: mkdir of file:/t/_delta_log failed
\t... 3 more
"""


class Captured(Exception):
    """An exception as pyspark passes it on from Java."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self._stackTrace = trace


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Exception(JAVA), "mkdir of file:/t/_delta_log failed"),
        (Captured("Query died", JAVA), "mkdir of file:/t/_delta_log failed"),
        (Exception("x\nCaused by: java.lang.NullPointerException\n\tat y"), "NullPointerException"),
        (
            Exception('x\nCaused by: a.B: c d\nCaused by: e.F: Cannot run "y": error=2\nCaused by: e.F: error=2'),
            'Cannot run "y": error=2',
        ),
        (Exception("x\nCaused by: java.net.UnknownHostException: nowhere\n"), "UnknownHostException: nowhere"),
        (
            Exception("Traceback\n  File x\npyspark_nsq.errors.DataLoss: lane n/t/l: gone\n\nCaused by: a.B: c d"),
            "lane n/t/l: gone",
        ),
        (
            Exception("Traceback\npyspark_nsq.tables.sink.BadTable: x: int is not long\nCaused by: a.B: c d"),
            "x: int is not long",
        ),
        (Exception("Traceback\n  File x\nOSError: disk is full\n\tat a.b.C\nCaused by: a.B: c d"), "disk is full"),
        (FileNotFoundError(2, "No such file or directory", "/t/x"), "/t/x: No such file or directory"),
        (OSError("\x1b[1mGeneric error\x1b[0m: denied\n  backtrace"), "Generic error: denied"),
        (KeyError("retention"), "KeyError: 'retention'"),
        (AssertionError(), "AssertionError"),
        (ValueError("word " * 200), "word " * 99 + "word…"),
    ],
)
def test_a_failure_is_its_deepest_cause_in_one_line(error: Exception, line: str) -> None:
    assert first_cause(error) == line


# A whole run
