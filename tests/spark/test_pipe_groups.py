"""Streams of several jobs side by side: which of them end, and what is reported. The queries are fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from nsqpipe.late import LateRows
from nsqpipe.running import Group, run_groups
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Late


class Query:
    """Runs until it was looked at this many times, and then has ended or failed."""

    def __init__(self, spark: Mock, name: str, looks: int, error: str = "") -> None:
        self._spark = spark
        self.name = name
        self.looks = looks
        self._error = error
        self.was_stopped = False
        self.status = {"message": "Waiting for data to arrive"}

    @property
    def isActive(self) -> bool:
        self.looks -= 1
        return self.looks > 0 and not self.was_stopped

    def exception(self) -> Exception | None:
        return RuntimeError(self._error) if self._error and self.looks <= 0 else None

    def stop(self) -> None:
        if not self.was_stopped:
            self._spark.listener.onQueryTerminated(None)
        self.was_stopped = True


@pytest.fixture
def spark() -> Mock:
    made = Mock()
    made.streams.active = []
    made.streams.addListener.side_effect = lambda it: setattr(made, "listener", it)
    return made


def started(*queries: Query) -> Callable[[], Any]:
    return lambda: queries


def group(*queries: Query, late: Late = Late.COUNT) -> Group:
    return Group(start=started(*queries), late=LateRows(late), prefix=queries[0].name.partition(".")[0] + ".")


def test_they_end_when_all_have_ended(spark: Mock) -> None:
    queries = [Query(spark, "a.land", 2), Query(spark, "b.land", 5)]
    run_groups(spark, [group(it) for it in queries])
    assert all(it.looks <= 0 for it in queries)


def test_by_default_one_that_fails_ends_all(spark: Mock) -> None:
    bad, good = Query(spark, "a.land", 2, "no room"), Query(spark, "b.land", 10**9)
    with pytest.raises(PipeFailed, match=r"^a\.land: no room$"):
        run_groups(spark, [group(bad), group(good)])
    assert good.was_stopped


def test_the_others_may_go_on_and_each_failure_is_a_line(spark: Mock) -> None:
    told: list[str] = []
    queries = [Query(spark, "a.land", 2, "no room"), Query(spark, "b.land", 6), Query(spark, "c.land", 4, "no time")]
    sister = Query(spark, "a.quarantine", 10**9)
    groups = [group(queries[0], sister), group(queries[1]), group(queries[2])]
    with pytest.raises(PipeFailed) as failure:
        run_groups(spark, groups, goes_on=True, on_failure=lambda _, it: told.append(str(it)))
    assert str(failure.value).splitlines() == told == ["a.land: no room", "c.land: no time"]
    assert sister.was_stopped
    assert queries[1].looks <= 0, "it has come to its own end"


def test_what_cannot_be_started_is_a_failure_of_its_job(spark: Mock) -> None:
    half = Query(spark, "a.land", 10**9)
    spark.streams.active = [half]

    def start() -> list[Any]:
        raise ValueError("no such column")

    good = Query(spark, "b.land", 3)
    with pytest.raises(PipeFailed, match=r"^a: no such column$"):
        run_groups(spark, [Group(start=start, prefix="a."), group(good)], goes_on=True)
    assert half.was_stopped, "it was started before its sister could not be"
    assert good.looks <= 0


def test_late_rows_are_an_error_of_the_job_that_says_so(spark: Mock) -> None:
    strict, other = Query(spark, "a.aggregate", 10**9), Query(spark, "b.aggregate", 10**9)
    groups = [group(strict, late=Late.ERROR), group(other, late=Late.ERROR)]

    def report() -> Any:
        for observe in spark.listener._observers:
            observe("a.aggregate", {"stateOperators": [{"numRowsDroppedByWatermark": 3}]})
        return [other]

    groups[1] = Group(start=report, late=groups[1].late, prefix="b.")
    with pytest.raises(PipeFailed, match=r"^a\.aggregate: at least 3 late rows were dropped"):
        run_groups(spark, groups)
    assert strict.was_stopped
    assert other.was_stopped
