"""A job goes on, and says so, when something that observes it fails; a stopped job does not count as done."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer
from deltalake import DeltaTable, write_deltalake
from pyarrow import table as rows_of

from nsqpipe import jobs, running
from nsqpipe.late import LateRows
from nsqpipe.ledger import Ledger
from nsqpipe.runtime import INCOMPLETE, Run
from nsqpipe.runtime import running as run_of
from nsqpipe.streams import Streams as Started
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Format, Late
from pyspark_nsq.tables.table import Table
from pyspark_nsq.tables.tending import tended
from pyspark_nsq.tables.upkeep import Policy, Tended
from tests.support.spark import patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def broken(*_: object) -> None:
    raise BrokenPipeError


class Streams:
    """The part of a session that has listeners; a test plays Spark."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.addListener = self.listeners.append
        self.removeListener = self.listeners.remove

    @property
    def session(self) -> SparkSession:
        return cast("SparkSession", SimpleNamespace(streams=self))

    def report(self, report: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener.onQueryProgress(
                SimpleNamespace(progress=SimpleNamespace(id=1, name="land", json=json.dumps(report)))
            )


class Query:
    """A query that ends after it was looked at a few times."""

    name = "land"

    def __init__(self, streams: Streams, looks: int = 1) -> None:
        self._streams = streams
        self._looks = looks
        self.stops = 0

    @property
    def isActive(self) -> bool:
        self._looks -= 1
        return self._looks >= 0 and not self.stops

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.stops += 1
        for listener in self._streams.listeners:
            listener.onQueryTerminated(None)


def started(*queries: Query) -> Callable[[], Iterator[StreamingQuery]]:
    return lambda: iter(cast("list[StreamingQuery]", [*queries]))


def test_upkeep_goes_on_and_its_last_look_comes_whoever_fails_to_hear_of_it(tmp_path: Path) -> None:
    write_deltalake(tmp_path, rows_of({"a": [1]}))
    done: list[Tended] = []
    with tended([Table(str(tmp_path), Format.DELTA)], Policy(every=0.05), [broken, done.append]):
        patiently(lambda: len(done) >= 3)
    assert not any(it.failed for it in done)
    assert len(done) >= 4
    assert DeltaTable(tmp_path).version() == 0


def test_late_rows_are_an_error_though_nobody_can_be_shown_them() -> None:
    streams, late, seen = Streams(), LateRows(Late.ERROR), list[str]()

    def start() -> Iterator[StreamingQuery]:
        yield from started(Query(streams, looks=1000))()
        streams.report({"stateOperators": [{"numRowsDroppedByWatermark": 7}]})

    observers = [broken, lambda query, _: seen.append(query)]
    with pytest.raises(PipeFailed, match="at least 7 late rows were dropped"):
        running.run_queries(streams.session, start, observers=observers, late=late)
    assert seen == ["land"]


def test_a_query_is_stopped_when_the_next_one_cannot_be_started() -> None:
    streams = Streams()
    first = Query(streams)

    def start() -> Iterator[StreamingQuery]:
        yield from started(first)()
        raise PipeFailed("no such checkpoint")

    with pytest.raises(PipeFailed, match="no such checkpoint"):
        running.run_queries(streams.session, start)
    assert first.stops == 1


def run(streams: Streams, *queries: Query, until_now: bool, sent: int = 0) -> None:
    job = jobs.Land(topic=("orders",), nsqd=("x:1",), table="t", until_now=until_now, quiet=True, remote="sc://x")

    def start() -> Iterator[StreamingQuery]:
        yield from started(*queries)()
        if sent:
            signal.raise_signal(sent)

    with run_of(job) as it:
        assert isinstance(it, Run)
        it.queries(streams.session, [Started(prefix="", start=lambda _: start(), ledger=Ledger("land", "table t"))])


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_until_now_that_is_stopped_before_its_end_is_not_done(sent: int, capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams()
    with pytest.raises(typer.Exit) as ended:
        run(streams, Query(streams, looks=1000), until_now=True, sent=sent)
    assert ended.value.exit_code == INCOMPLETE
    assert capsys.readouterr().err == "nsqpipe: stopped before everything was read: the next run goes on\n"
    run(streams, Query(streams, looks=3), until_now=True)
    run(streams, Query(streams, looks=1000), until_now=False, sent=sent)


def test_until_now_that_is_interrupted_before_it_has_begun_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    job = jobs.Land(topic=("orders",), nsqd=("x:1",), table="t", until_now=True, quiet=True)
    with pytest.raises(typer.Exit) as ended, run_of(job):
        raise KeyboardInterrupt
    assert ended.value.exit_code == INCOMPLETE
    assert "stopped before everything was read" in capsys.readouterr().err
