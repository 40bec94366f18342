"""A cluster of a master and two workers lands a topic, submitted as documented, while its parts are killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.cluster import Cluster
from tests.support import hangs
from tests.support.process import Nsqd, eventually
from tests.support.spark import NO_CODEGEN, address, numbered, publish

PATIENCE = 240.0
MESSAGES = 2000  # messages between two kills


@pytest.mark.own_jvm("spark-submit, a master and workers, some of which are killed")
@pytest.mark.slow
def test_what_is_submitted_as_documented_survives_its_workers(nsqd: Nsqd, tmp_path: Path) -> None:
    hangs.lift_limit()  # four JVMs start; every wait here has a limit of its own
    table, events = tmp_path / "table", tmp_path / "events"
    events.mkdir()
    publish(nsqd, "orders", numbered(MESSAGES))
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = cluster.submit(
            *("land", "--topic=orders", "--nsqd", address(nsqd), "--table", str(table)),
            *("--source-option=rowsPerTask=1000", "--every=1 second"),
            conf=["spark.sql.session.timeZone=Asia/Tokyo", *(f"{name}={value}" for name, value in NO_CODEGEN.items())],
            defaults={
                "spark.sql.shuffle.partitions": "7",
                "spark.eventLog.dir": f"file://{events}",
                "spark.eventLog.compress": "false",
            },
        )

        def landed() -> Counter[int]:
            if not DeltaTable.is_deltatable(str(table)):
                return Counter()
            return Counter(int(it) for it in DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist())

        def wait_for(count: int) -> None:
            seen: set[Path] = set()

            def there() -> bool:
                nonlocal seen
                assert job.poll() is None, cluster.job_log[-4000:]
                before, seen = seen, {*table.glob("_delta_log/*.json")}
                return seen != before and len(landed()) >= count  # a look into the table takes as long as many others

            eventually(there, timeout=PATIENCE)

        wait_for(MESSAGES)
        told = properties(events)
        # First a part of each worker, then all of one.
        kills = ((lambda: cluster.kill_executor(0), lambda: cluster.kill_python(1)), (lambda: cluster.kill_worker(1),))
        for number, some in enumerate(kills, 1):
            publish(nsqd, "orders", numbered(MESSAGES, start=number * MESSAGES))
            for kill in some:
                eventually(kill, timeout=PATIENCE)
            wait_for((number + 1) * MESSAGES)
        assert landed() == Counter(range(3 * MESSAGES))
    assert told["spark.sql.session.timeZone"] == "Asia/Tokyo", "--conf stands above our defaults"
    assert told["spark.sql.shuffle.partitions"] == "7", "spark-defaults.conf, too"
    assert told["spark.eventLog.enabled"] == told["spark.ui.enabled"] == "true"
    assert told["spark.log.level"] == "ERROR", "ours, where nobody has said anything"


def properties(events: Path) -> dict[str, str]:
    """Return the event log's entries about Spark's configuration."""
    (log,) = events.glob("eventlog_v2_*/events_1_*")
    found = [json.loads(line) for line in log.read_text().splitlines() if "SparkListenerEnvironmentUpdate" in line]
    return dict(found[0]["Spark Properties"])
