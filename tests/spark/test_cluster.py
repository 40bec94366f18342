"""A cluster of a master and two workers lands a topic while its executors and Python workers are killed."""

from __future__ import annotations

import faulthandler
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.cluster import Cluster
from tests.support.process import Nsqd, eventually
from tests.support.spark import address, numbered, publish

PATIENCE = 240.0
MESSAGES = 2000  # between two kills


@pytest.mark.slow
def test_executors_and_python_workers_are_killed_and_the_query_stays_up(nsqd: Nsqd, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # four JVMs start; every wait here has its own end
    table = tmp_path / "table"
    publish(nsqd, "orders", numbered(MESSAGES))
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = cluster.submit(
            *("land", "--topic=orders", "--nsqd", address(nsqd), "--table", str(table)),
            *("--source-option=rowsPerTask=500", "--every=1 second"),
        )

        def landed() -> Counter[int]:
            if not DeltaTable.is_deltatable(str(table)):
                return Counter()
            return Counter(int(it) for it in DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist())

        def wait_for(count: int) -> None:
            def there() -> bool:
                assert job.poll() is None, cluster.job_log[-4000:]
                return len(landed()) >= count

            eventually(there, timeout=PATIENCE)

        wait_for(MESSAGES)
        kills = (lambda: cluster.kill_executor(0), lambda: cluster.kill_python(1), lambda: cluster.kill_executor(1))
        for number, kill in enumerate(kills, 1):
            publish(nsqd, "orders", numbered(MESSAGES, start=number * MESSAGES))
            eventually(kill, timeout=PATIENCE)
            wait_for((number + 1) * MESSAGES)
        assert landed() == Counter(range(4 * MESSAGES))
