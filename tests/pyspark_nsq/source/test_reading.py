"""What a task does if the node that it reads from is down for a while, or does not have what it should."""

from __future__ import annotations

import gc
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import DataLoss, NsqError
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Range
from pyspark_nsq.options import SourceOptions, source_options
from pyspark_nsq.source import reading
from pyspark_nsq.source.reading import read_ranges
from pyspark_nsq.source.rows import ALL_COLUMNS
from pyspark_nsq.worker import freeze_imports
from tests.support.later_version import write_later
from tests.support.process import Nsqd, SteadyNsqd
from tests.support.spark import KEPT, address, numbered, publish

SCHEMA = pa.schema([(name, ALL_COLUMNS[name]) for name in ("sequence", "body", "gap")])


def planned(nsqd: Nsqd, **more: str) -> tuple[SourceOptions, Head]:
    options = source_options({"nsqd": address(nsqd), "topic": "orders", **more})
    (head,) = Cluster(options, Http(options.access)).heads().values()
    return options, head


def test_a_node_that_restarts_is_waited_for_and_nothing_comes_twice(tmp_path: Path) -> None:
    with SteadyNsqd(tmp_path / "data", KEPT) as nsqd:
        for start in range(0, 40_000, 5_000):
            publish(nsqd, "orders", numbered(5_000, start=start, size=1000))
        options, head = planned(nsqd)
        batches = read_ranges((Range(head.lane, head.address, 0, head.next),), options, SCHEMA)
        read = [next(batches)]
        nsqd.kill()
        nsqd.start()
        read += batches
        assert [number for batch in read for number in batch["sequence"].to_pylist()] == list(range(40_000))


def test_who_takes_rows_slowly_has_not_waited_for_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    with SteadyNsqd(tmp_path / "data", KEPT) as nsqd:
        for start in range(0, 40_000, 5_000):
            publish(nsqd, "orders", numbered(5_000, start=start, size=1000))
        options, head = planned(nsqd)
        batches = read_ranges((Range(head.lane, head.address, 0, head.next),), options, SCHEMA)
        rows = next(batches).num_rows
        now += 3600  # by then nsqd has closed the connection, as it does after a minute
        nsqd.kill()
        nsqd.start()
        assert rows + sum(batch.num_rows for batch in batches) == 40_000


def test_messages_of_a_lane_that_has_no_address_any_more_are_a_gap(nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(1))
    options, head = planned(nsqd)
    rows = [batch.to_pylist() for batch in read_ranges((Range(head.lane, "", 3, 9),), options, SCHEMA)]
    assert rows == [[{"sequence": 3, "body": None, "gap": {"end": 9, "reason": "vanished"}}]]


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        publish(nsqd, "orders", numbered(10))
        options, head = planned(nsqd)
        nsqd.post("/topic/delete?topic=orders")
        publish(nsqd, "orders", numbered(10))
        wanted = (Range(head.lane, head.address, 0, 10),)
        with pytest.raises(DataLoss, match=rf"lane {head.lane}: everything from 0 on cannot be read"):
            list(read_ranges(wanted, options, SCHEMA))
        options, _ = planned(nsqd, failOnDataLoss="false")
        rows = [row for batch in read_ranges(wanted, options, SCHEMA) for row in batch.to_pylist()]
        assert rows == [{"sequence": 0, "body": None, "gap": {"end": 10, "reason": "vanished"}}]


def test_an_edited_copy_is_no_event(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=c")
        for number in range(3):
            publish(nsqd, "orders", numbered(1, start=number))
            nsqd.post(f"/channel/edit?topic=orders&channel=c&sequence={2 * number}", b"edited")
        options, head = planned(nsqd)
        assert head.next == 6
        for first, wanted in ((0, [0, 2, 4]), (5, [])):
            batches = read_ranges((Range(head.lane, head.address, first, 6),), options, SCHEMA)
            assert [it for batch in batches for it in batch["sequence"].to_pylist()] == wanted


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE", 0.3)


@pytest.fixture(params=[True, False], ids=["has the topic", "has no such topic"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nsqd]:
    """Return another node, at the former address of a lane."""
    with Nsqd(tmp_path / "other", KEPT) as other:
        if request.param:
            publish(other, "orders", numbered(10))
        yield other


@pytest.mark.usefixtures("impatient")
def test_a_lane_whose_address_another_node_has_is_waited_for(nsqd: Nsqd, other: Nsqd) -> None:
    publish(nsqd, "orders", numbered(10))
    _, head = planned(nsqd)
    options = source_options({"nsqd": address(other), "topic": "orders"})
    with pytest.raises(NsqError, match=rf"lane {head.lane}: nothing has come from .* at sequence 3"):
        list(read_ranges((Range(head.lane, address(other), 3, 10),), options, SCHEMA))


@pytest.mark.usefixtures("impatient")
def test_and_when_loss_is_allowed_it_is_a_gap_after_that(nsqd: Nsqd, other: Nsqd) -> None:
    publish(nsqd, "orders", numbered(10))
    _, head = planned(nsqd)
    options = source_options({"nsqd": address(other), "topic": "orders", "failOnDataLoss": "false"})
    batches = read_ranges((Range(head.lane, address(other), 3, 10),), options, SCHEMA)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == [{"sequence": 3, "body": None, "gap": {"end": 10, "reason": "vanished"}}]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_what_a_later_version_wrote_fails_the_task_even_if_loss_is_allowed(tmp_path: Path, loss: str) -> None:
    with Nsqd(tmp_path, KEPT) as nsqd:
        for _ in range(3):
            publish(nsqd, "orders", numbered(2))
    (segment,) = tmp_path.glob("topics/*/*.log")
    write_later(segment, 2)
    with Nsqd(tmp_path, KEPT) as nsqd:
        options, head = planned(nsqd, failOnDataLoss=loss)
        with pytest.raises(NsqError, match="messages 2 to 3 have a form that only a later version can read"):
            list(read_ranges((Range(head.lane, head.address, 0, head.next),), options, SCHEMA))


def test_the_ranges_of_one_task_do_not_wait_one_after_the_other(
    nsqd: Nsqd, other: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PATIENCE", 2.0)  # longer than everything else that the ten ranges need
    publish(nsqd, "orders", numbered(10))
    _, head = planned(nsqd)
    options = source_options({"nsqd": address(other), "topic": "orders", "failOnDataLoss": "false"})
    began = time.monotonic()
    batches = read_ranges(tuple(Range(head.lane, address(other), n, n + 1) for n in range(10)), options, SCHEMA)
    assert sum(batch.num_rows for batch in batches) == 10
    assert time.monotonic() - began < 5 * reading.PATIENCE  # of 10


def test_a_lane_whose_old_address_is_silent_is_read_at_the_new_one(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE", 30.0)
    publish(nsqd, "orders", numbered(10))
    _, head = planned(nsqd)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = f"127.0.0.1:{silent.getsockname()[1]}"
        options = source_options({"nsqd": f"{before},{address(nsqd)}", "topic": "orders", "timeoutSeconds": "2"})
        batches = read_ranges((Range(head.lane, before, 0, 10),), options, SCHEMA)
        assert sum(batch.num_rows for batch in batches) == 10


def test_a_lane_that_is_at_another_address_now_is_read_there(nsqd: Nsqd, other: Nsqd) -> None:
    publish(nsqd, "orders", numbered(10))
    _, head = planned(nsqd)
    options = source_options({"nsqd": f"{address(other)},{address(nsqd)}", "topic": "orders"})
    for before in (address(other), "127.0.0.1:1"):
        batches = read_ranges((Range(head.lane, before, 0, 10),), options, SCHEMA)
        assert [number for batch in batches for number in batch["sequence"].to_pylist()] == list(range(10))


@pytest.fixture
def thawed() -> Iterator[None]:
    """Run the test as in a new process, in which nothing is frozen. Afterwards everything is, as in other tests."""
    gc.unfreeze()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # files that other tests left open are not this test's fault
    freeze_imports.cache_clear()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_the_collector_that_runs_after_each_task_does_not_look_through_what_was_imported() -> None:
    assert len(gc.get_objects()) > 10_000
    assert not list(read_ranges((), source_options({"nsqd": "127.0.0.1:4151", "topic": "orders"}), SCHEMA))
    assert len(gc.get_objects()) < 1_000
