"""Which nodes are asked for their logs, of real ones."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from pyspark_nsq.cluster import Cluster, Place
from pyspark_nsq.errors import Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane, NotThere, Offsets, Range
from pyspark_nsq.options import source_options
from pyspark_nsq.source import stream_source
from pyspark_nsq.source.batch_source import Task
from pyspark_nsq.source.reading import PATIENCE
from tests.support.process import Nsqd
from tests.support.spark import address, publish


def test_a_node_that_is_down_does_not_hide_new_topics_of_the_others(nsqd: Nsqd) -> None:
    publish(nsqd, "click.a", [b"1"])
    options = source_options({"nsqd": f"127.0.0.1:1,{address(nsqd)}", "topic": "click.*"})
    cluster = Cluster(options, Http(options.access))
    down: list[Unreachable] = []
    assert cluster.places(left_out=down) == [Place(address(nsqd), "click.a")]
    assert len(down) == 1
    with pytest.raises(Unreachable, match="cannot be reached"):
        cluster.places()


LANE = Lane("here:1", "orders", "log")  # the lane of all tests


def test_a_batch_that_is_run_again_waits_for_its_lanes_and_with_loss_allowed_not_for_ever(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "PATIENCE", 2.0)
    publish(nsqd, "orders", [b"1"])
    # One node is down, so a lane that no other node has may or may not be gone.
    options = source_options({"nsqd": f"127.0.0.1:1,{address(nsqd)}", "topic": "orders", "failOnDataLoss": "false"})
    reader = stream_source.NsqStreamReader(options, pa.schema([("sequence", pa.int64())]))
    began = time.monotonic()
    lanes = [Lane(f"node{number}", "orders", "log") for number in range(10)]
    begin, end = Offsets(dict.fromkeys(lanes, 3)), Offsets(dict.fromkeys(lanes, 9))
    (task,) = reader.partitions(begin.to_json(), end.to_json())
    assert 2.0 < time.monotonic() - began < 16.0, "once for all of them"
    assert isinstance(task, Task)
    assert task.ranges == tuple(Range(lane, "", 3, 9) for lane in lanes)


def test_where_a_lane_is_certainly_gone_a_batch_does_not_wait(nsqd: Nsqd) -> None:
    publish(nsqd, "orders", [b"1"])
    options = source_options({"nsqd": address(nsqd), "topic": "orders"})
    reader = stream_source.NsqStreamReader(options, pa.schema([("sequence", pa.int64())]))
    began = time.monotonic()
    with pytest.raises(NotThere, match=f"lane {LANE}: everything from 3 on cannot be read: none of the nsqd"):
        reader.partitions(Offsets({LANE: 3}).to_json(), Offsets({LANE: 9}).to_json())
    assert time.monotonic() - began < PATIENCE / 2
