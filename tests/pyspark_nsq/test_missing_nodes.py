"""Real nodes that are stopped: they are named, and never count as having nothing to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from typer.testing import CliRunner

from nsqpipe.cli import app
from nsqpipe.lag import set_offsets
from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import DataLoss, NsqError
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane, Offsets
from pyspark_nsq.missing import Presence
from pyspark_nsq.options import source_options
from pyspark_nsq.source.stream_source import NsqStreamReader
from pyspark_nsq.stores.storage import place_of
from tests.support.process import Nsqd, Nsqlookupd, SteadyNsqd
from tests.support.spark import KEPT, address, lane_of, numbered, patiently, publish

A, B = Lane("a", "orders", "log"), Lane("b", "orders", "log")


@dataclass
class Three:
    lookupd: Nsqlookupd
    nodes: tuple[Nsqd, Nsqd]
    readers: list[NsqStreamReader] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.lookupd.http_address[1]}"

    def cluster(self, **options: str) -> Cluster:
        read = source_options({"lookupd": self.where, "topic": "orders", **options})
        return Cluster(read, Http(read.access))

    def reader(self, **options: str) -> NsqStreamReader:
        given = {"lookupd": self.where, "topic": "orders", "discoverySeconds": "1", **options}
        self.readers.append(NsqStreamReader(source_options(given), pa.schema([("sequence", pa.int64())])))
        return self.readers[-1]

    def wait_for(self, count: int) -> None:
        patiently(lambda: len(self.lookupd.producers("orders")) == count)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    """Run an nsqlookupd and two nsqd with ten messages each."""
    with three_at(tmp_path) as made:
        yield made


@contextmanager
def three_at(folder: Path) -> Iterator[Three]:
    with Nsqlookupd() as lookupd:
        options = (KEPT, f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}", "broadcast-address=127.0.0.1")
        with SteadyNsqd(folder / "one", *options) as one, SteadyNsqd(folder / "two", *options) as two:
            made = Three(lookupd, (one, two))
            for number, node in enumerate(made.nodes):
                publish(node, "orders", numbered(10, start=number * 10))
            made.wait_for(2)
            yield made
            for reader in made.readers:
                reader.stop()


def next_offsets(reader: NsqStreamReader, start: Offsets) -> Offsets:
    return Offsets.from_json(reader.latestOffset(start.to_json(), ReadAllAvailable()))


def test_a_node_that_is_down_is_named_and_a_batch_does_not_count_without_it(three: Three) -> None:
    one, two = three.nodes
    down = address(two)
    assert three.cluster().presence() == Presence(2, {})
    two.kill()
    three.wait_for(1)
    found = three.cluster().presence()
    assert (found.there, [*found.missing]) == (1, [down])
    assert "Connection refused" in found.missing[down]
    with pytest.raises(NsqError, match=f"{down} cannot be reached: .*Connection refused.*failOnDataLoss=false"):
        three.cluster().heads()
    for cluster in (three.cluster(failOnDataLoss="false").heads(), three.cluster().heads(for_stream=True)):
        assert [head.address for head in cluster.values()] == [address(one)]
    for option, says in {"requireAllNodes": "all nodes have to be there", "requireNodes": "2 nodes have to be"}.items():
        with pytest.raises(NsqError, match=f"{says}.*{down}"):
            three.cluster(failOnDataLoss="false", **{option: "true" if "All" in option else "2"}).heads()
    two.start()
    three.wait_for(2)
    assert three.cluster(requireAllNodes="true", requireNodes="2").missing() == {}


def test_a_stream_names_who_is_missing_and_reads_it_when_it_is_back(three: Three) -> None:
    _, two = three.nodes
    down = address(two)
    two.kill()
    three.wait_for(1)
    reader = three.reader()
    start = Offsets.from_json(reader.initialOffset())
    offsets = next_offsets(reader, start)
    assert sum(offsets.lanes.values()) == 10
    assert [*reader.reportLatestOffset()["missing"]] == [down]
    with pytest.raises(NsqError, match="all nodes have to be there"):
        three.reader(requireAllNodes="true").initialOffset()
    two.start()
    patiently(lambda: sum(next_offsets(reader, offsets).lanes.values()) == 20)
    patiently(lambda: "missing" not in reader.reportLatestOffset())


def test_a_query_that_is_started_again_waits_for_a_node_that_is_only_down(three: Three) -> None:
    _, two = three.nodes
    first = three.reader()
    offsets = next_offsets(first, Offsets.from_json(first.initialOffset()))
    two.kill()
    three.wait_for(1)
    again = three.reader()
    assert next_offsets(again, offsets).lanes == offsets.lanes
    assert [*again.reportLatestOffset()["missing"]] == [address(two)]


def test_a_node_that_is_not_registered_and_answers_is_read(three: Three) -> None:
    _, two = three.nodes
    assert two.http("PUT", "/config/nsqlookupd_tcp_addresses", b"[]").status == 200
    three.wait_for(1)
    reader = three.reader()
    offsets = next_offsets(reader, Offsets.from_json(reader.initialOffset()))
    assert sum(offsets.lanes.values()) == 20
    assert "missing" not in reader.reportLatestOffset()


def test_a_retired_node_may_go_when_its_lane_was_read_and_not_before(three: Three) -> None:
    _, two = three.nodes
    first = three.reader()
    half = Offsets({Lane.parse(lane): 5 for lane in first.reportLatestOffset()["lanes"]})
    two.post("/drain?stay=1h&retire=true")
    patiently(lambda: next_offsets(first, half).closed)
    whole = next_offsets(first, half)
    assert set(whole.closed.values()) == {10}
    lane = next(iter(whole.closed))
    unread = Offsets(half.lanes, closed=whole.closed)
    two.kill()
    three.wait_for(1)
    again = three.reader()
    assert next_offsets(again, whole) == whole
    assert "missing" not in again.reportLatestOffset()
    assert three.cluster().missing(whole) == {}
    assert [*three.cluster().missing(unread)] == [address(two)]
    with pytest.raises(DataLoss, match=rf"lane {lane}: 5 messages \[5, 10\) cannot be read"):
        next_offsets(three.reader(), unread)


def test_lag_says_what_it_does_not_know_while_a_node_is_missing(three: Three, tmp_path: Path) -> None:
    one, two = three.nodes
    lanes = {address(node): lane_of(node, "orders") for node in (one, two)}
    words = ("--lookupd", three.where, "--topic=orders", "--checkpoint", str(tmp_path / "checkpoint"))
    set_offsets(place_of(str(tmp_path / "checkpoint")), dict.fromkeys(lanes.values(), 4))
    assert json.loads(CliRunner().invoke(app, ["lag", *words, "--json"]).stdout)["behind"] == 12
    two.kill()
    three.wait_for(1)
    found = CliRunner().invoke(app, ["lag", *words, "--at-most=100"])
    assert found.exit_code == 3, "nobody knows whether it is so little"
    assert "at least 6 behind" in found.stdout
    assert f"{lanes[address(two)]}  reached 4 of -, an unknown number behind" in found.stdout
    assert f"{address(two)} cannot be reached" in found.stderr
    told = json.loads(CliRunner().invoke(app, ["lag", *words, "--json"]).stdout)
    assert [*told["missing"]] == [address(two)]
    assert {it["lane"]: it["behind"] for it in told["lanes"]} == {lanes[address(one)]: 6, lanes[address(two)]: None}
    for option, says in {
        "--require-all": "all nodes have to be there",
        "--nodes=2": "2 nodes have to be there",
    }.items():
        refused = CliRunner().invoke(app, ["lag", *words, option])
        assert refused.exit_code == 1
        assert says in refused.stderr
        assert refused.stderr.count("\n") == 1
