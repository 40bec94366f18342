"""The requests to nsqd that plan a batch and its tasks, and what happens to nodes that cannot answer."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane, Offsets, Range, Span
from pyspark_nsq.options import source_options
from pyspark_nsq.source import profiles, stream_source
from pyspark_nsq.source.batch_source import Task
from pyspark_nsq.source.profiles import Profiles
from pyspark_nsq.source.sharing import Limit
from pyspark_nsq.source.watch import Watch
from tests.support.simulated_lanes import Record, SimulatedLane

A, B = (Lane(node, "orders", "log") for node in "ab")
MB = 1 << 20


class Answering(Cluster):
    """Nodes that report simulated lanes; some cannot answer."""

    def __init__(self, lanes: dict[Lane, SimulatedLane]) -> None:
        options = source_options({"nsqd": "here:1", "topic": "orders"})
        super().__init__(options, Http(options.access))
        self.lanes = lanes
        self.asked: list[Lane] = []
        self.failing: dict[Lane, Exception] = {}
        self.old: set[Lane] = set()
        self.closed: set[Lane] = set()

    def points(self, head: Head, begin: int, end: int, most: int) -> list[tuple[int, int, int]] | None:
        self.asked.append(head.lane)
        if head.lane in self.failing:
            raise self.failing[head.lane]
        return None if head.lane in self.old else self.lanes[head.lane].points(begin, end, most)

    def heads(self, *, for_stream: bool = False) -> dict[Lane, Head]:
        return {lane: self._head_of(lane, one) for lane, one in self.lanes.items()}

    def _head_of(self, lane: Lane, one: SimulatedLane) -> Head:
        closed = lane in self.closed
        return Head(lane, "here:1", 0, one.end, closed=closed, last_time=one.last_time, bytes=one.bytes)


def every(seconds: float, count: int, size: int = 256) -> SimulatedLane:
    return SimulatedLane([Record(int(number * seconds * 1e9), 1, size) for number in range(count)])


def spans(cluster: Answering, **begins: int) -> dict[Lane, Span]:
    return {lane: Span(begins.get(lane.node, 0), one.end) for lane, one in cluster.lanes.items()}


@pytest.fixture
def two() -> Answering:
    """Return two lanes, one of them ten times as busy."""
    return Answering({A: every(0.01, 1000), B: every(0.1, 100)})


def test_a_batch_within_its_limit_asks_no_node(two: Answering) -> None:
    assert Profiles(two).share(two.heads(), spans(two), Limit(2000, MB)) == {A: 1000, B: 100}
    assert not two.asked


def test_a_limited_batch_is_level_and_the_next_one_costs_less(two: Answering) -> None:
    known = Profiles(two)
    shares = known.share(two.heads(), spans(two), Limit(220))
    assert abs(shares[A] - 10 * shares[B]) <= 10
    asked = len(two.asked)
    assert asked <= 6
    known.share(two.heads(), spans(two, a=shares[A], b=shares[B]), Limit(220))
    assert len(two.asked) - asked <= 3


def test_a_node_that_does_not_answer_does_not_hold_up_the_others(two: Answering) -> None:
    two.failing[B] = Unreachable("b is down")
    assert Profiles(two).share(two.heads(), spans(two), Limit(500)) == {A: 500}


def test_a_lane_alone_that_does_not_answer_is_still_to_be_read(two: Answering) -> None:
    del two.lanes[B]
    two.failing[A] = Unreachable("a is down")
    assert Profiles(two).share(two.heads(), spans(two), Limit(None, 25_600)) == {A: 100}


@pytest.mark.parametrize("failure", [Refused("b", 503, "CANNOT_READ", {}), None])
def test_where_times_cannot_be_told_all_share_in_proportion(two: Answering, failure: Exception | None) -> None:
    if failure is None:
        two.old |= {A, B}  # nsqds that do not know `points=`
    else:
        two.failing = {A: failure, B: failure}
    assert Profiles(two).share(two.heads(), spans(two), Limit(220)) == {A: 199, B: 21}


# Tasks


def tasks_of(cluster: Answering, known: Profiles, options: dict[str, str]) -> list[Task]:
    reader = reader_of(cluster, options)
    reader._profiles = known
    end = Offsets({lane: one.end for lane, one in cluster.lanes.items()})
    planned = reader.partitions(Offsets(dict.fromkeys(cluster.lanes, 0)).to_json(), end.to_json())
    assert all(isinstance(task, Task) for task in planned)
    return [task for task in planned if isinstance(task, Task)]


@pytest.mark.parametrize("knows", [True, False], ids=["planned before", "run again"])
def test_no_task_of_large_messages_is_too_large(knows: bool) -> None:
    # Small ones first: an average of all would make tasks of gigabytes.
    lane = SimulatedLane([Record(n, 100, 20_000) for n in range(1000)] + [Record(n, 1, MB) for n in range(1000, 3000)])
    cluster = Answering({A: lane, B: every(1, 300, MB)})
    known = Profiles(cluster)
    if knows:
        known.share(cluster.heads(), spans(cluster), Limit(None, 1 << 40))
    tasks = tasks_of(cluster, known, {})
    sizes = [sum(cluster.lanes[it.lane].bytes_between(it.begin, it.begin + it.rows) for it in t.ranges) for t in tasks]
    assert max(sizes) <= 140 * MB
    assert len(tasks) <= 2 * sum(sizes) / (128 * MB)
    assert sum(it.rows for task in tasks for it in task.ranges) == lane.end + 300


def test_many_lanes_of_few_large_messages_do_not_share_a_task() -> None:
    cluster = Answering({Lane(f"node{n}", "orders", "log"): every(1, 100, MB) for n in range(10)})
    assert len(tasks_of(cluster, Profiles(cluster), {})) == 10
    assert not cluster.asked


@pytest.mark.parametrize(
    ("rows", "tasks"),
    [(50_000, 1), (400_000, 4), (1_000_000, 4), (2_000_000, 4), (3_000_000, 6)],
)
def test_a_large_batch_has_larger_tasks_once_all_cores_have_some(rows: int, tasks: int) -> None:
    lane = SimulatedLane([Record(number, 1000, 10_000) for number in range(rows // 1000)])  # 1,000 in each MPUB
    cluster = Answering({A: lane})
    found = tasks_of(cluster, Profiles(cluster), {"tasksPerBatch": "4"})
    assert len(found) == tasks
    assert sum(it.rows for task in found for it in task.ranges) == rows


def test_tasks_by_rows_as_before(two: Answering) -> None:
    tasks = tasks_of(two, Profiles(two), {"rowsPerTask": "250"})
    assert [task.ranges for task in tasks] == [
        *((Range(A, "here:1", begin, begin + 250),) for begin in range(0, 1000, 250)),
        (Range(B, "here:1", 0, 100),),
    ]


# The start of a batch


class Still(Watch):
    """Asks no node in a thread."""

    def __init__(self, cluster: Answering) -> None:
        super().__init__(cluster, 10)
        self._answering = cluster
        self.is_down: set[Lane] = set()

    def heads(self) -> dict[Lane, Head]:
        return self._answering.heads()

    def down(self) -> set[Lane]:
        return self.is_down

    def refresh(self) -> None:
        """Do nothing: the heads never change by themselves."""


def reader_of(cluster: Answering, options: dict[str, str]) -> stream_source.NsqStreamReader:
    made = source_options({"nsqd": "here:1", "topic": "orders", **options})
    reader = stream_source.NsqStreamReader(made, pa.schema([("sequence", pa.int64())]))
    reader._cluster, reader._profiles, reader._watch = cluster, Profiles(cluster), Still(cluster)
    return reader


class Stream:
    def __init__(self, cluster: Answering, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.reader = reader_of(cluster, options)
        self.now = 1000.0
        self.offset: dict[str, Any] = Offsets(dict.fromkeys(cluster.lanes, 0)).to_json()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def batch(self, limit: ReadLimit | None = None) -> int:
        """Return the number of rows of the next batch."""
        before = self.offset
        self.offset = self.reader.latestOffset(before, limit or self.reader.getDefaultReadLimit())
        return sum(Offsets.from_json(self.offset).lanes.values()) - sum(Offsets.from_json(before).lanes.values())


def test_a_batch_waits_for_enough_rows_or_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answering({A: every(1, 5)})
    stream = Stream(cluster, monkeypatch, minRowsPerTrigger="100", maxTriggerDelay="60s")
    assert stream.batch() == 5, "the first one comes at once"
    for rows, seconds, taken in ((10, 59, 0), (11, 1, 6), (110, 1, 0), (111, 1, 100), (112, 1, 0), (112, 60, 1)):
        cluster.lanes[A] = every(1, rows)
        stream.now += seconds
        assert stream.batch() == taken, (rows, seconds)


def test_what_is_left_of_a_node_that_has_drained_is_not_waited_with(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answering({A: every(1, 5), B: every(1, 5)})
    stream = Stream(cluster, monkeypatch, minRowsPerTrigger="100", maxTriggerDelay="60s")
    assert stream.batch() == 10
    cluster.lanes[A] = every(1, 8)
    stream.now += 1
    assert stream.batch() == 0
    cluster.closed = {A}
    assert stream.batch() == 3
    assert Offsets.from_json(stream.offset).is_complete(A)


def test_a_trickle_makes_few_batches_with_the_defaults_of_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsqpipe.land import SOURCE_OPTIONS

    cluster = Answering({A: every(1, 1)})
    stream = Stream(cluster, monkeypatch, **SOURCE_OPTIONS)
    batches = 0
    for second in range(600):  # with 50 messages in each
        stream.now = 1000 + second
        cluster.lanes[A] = SimulatedLane([Record(0, 1 + 50 * second, 256 * (1 + 50 * second))])
        batches += stream.batch() > 0
    assert 2 <= batches <= 20


def test_few_messages_that_fill_a_batch_are_not_waited_with(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answering({A: every(1, 1, MB)})
    stream = Stream(
        cluster, monkeypatch, minRowsPerTrigger="1000", maxTriggerDelay="1h", maxBytesPerTrigger=str(8 * MB)
    )
    assert stream.batch() == 1
    cluster.lanes[A] = every(1, 8, MB)
    assert stream.batch() == 0
    cluster.lanes[A] = every(1, 20, MB)
    first, second, third = (stream.batch() for _ in range(3))
    assert 6 <= first <= 8
    assert 6 <= second <= 8
    assert third == 0


def test_available_now_waits_for_nothing_but_keeps_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answering({A: every(1, 250)})
    stream = Stream(cluster, monkeypatch, minRowsPerTrigger="200", maxTriggerDelay="1h", maxRowsPerTrigger="100")
    stream.reader.prepareForTriggerAvailableNow()
    cluster.lanes[A] = every(1, 900)
    assert [stream.batch() for _ in range(4)] == [100, 100, 50, 0]


def test_a_large_backlog_commits_early_and_often_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = SimulatedLane([Record(number * 1000, 5000, 1_000_000) for number in range(5000)])
    cluster = Answering({A: backlog, B: backlog})
    stream = Stream(cluster, monkeypatch)
    stream.reader.prepareForTriggerAvailableNow()
    batches = list(iter(stream.batch, 0))
    assert sum(batches) == 50_000_000
    # A kill loses at most the batch that runs; half-way that is less than a tenth of what was done.
    assert max(batches) < 25_000_000 / 10
    assert len(cluster.asked) <= 5 * len(batches)


def test_trigger_once_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(Answering({A: every(1, 250)}), monkeypatch, minRowsPerTrigger="500", maxRowsPerTrigger="100")
    stream.reader._last_batch_at = stream.now
    assert stream.batch(ReadAllAvailable()) == 250


def test_a_node_that_is_down_is_waited_for_beside_a_running_stream(
    monkeypatch: pytest.MonkeyPatch, two: Answering
) -> None:
    stream = Stream(two, monkeypatch)
    watch = stream.reader._watch
    assert isinstance(watch, Still)
    watch.is_down.add(B)
    assert stream.batch() == 1000
    watch.is_down.clear()
    assert stream.batch() == 100


def test_with_available_now_a_node_that_is_down_is_an_error_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, two: Answering
) -> None:
    stream = Stream(two, monkeypatch)
    stream.reader.prepareForTriggerAvailableNow()
    watch = stream.reader._watch
    assert isinstance(watch, Still)
    watch.is_down.add(B)
    assert stream.batch() == 1100, "leaving it out would look like success"


def test_with_available_now_lanes_stay_level_though_a_node_restarts(two: Answering) -> None:
    answers = two.points
    failures = iter([Unreachable("b restarts")] * 2)

    def points(head: Head, begin: int, end: int, most: int) -> list[tuple[int, int, int]] | None:
        if head.lane == B and (failure := next(failures, None)) is not None:
            raise failure
        return answers(head, begin, end, most)

    two.points = points  # type: ignore[method-assign]
    shares = Profiles(two).share(two.heads(), spans(two), Limit(220), goes_on=False)
    assert shares[B] >= 15


def test_with_available_now_a_node_that_stays_away_is_named(monkeypatch: pytest.MonkeyPatch, two: Answering) -> None:
    monkeypatch.setattr(profiles, "PATIENCE", 0.01)
    two.failing[B] = Unreachable("b is down")
    with pytest.raises(Unreachable, match="b is down"):
        Profiles(two).share(two.heads(), spans(two), Limit(500), goes_on=False)


@pytest.mark.parametrize(("rows", "limit"), [("7", 7), ("0", (1 << 63) - 1)])
def test_spark_is_told_of_a_limit(rows: str, limit: int) -> None:
    assert reader_of(Answering({}), {"maxRowsPerTrigger": rows}).getDefaultReadLimit() == ReadMaxRows(limit)


# Real nodes
