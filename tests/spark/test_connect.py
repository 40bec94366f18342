"""Spark Connect: a server that has the package, and clients without Java. The server is in the JVM of the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest
from deltalake import DeltaTable

from tests.spark.kill9 import PATIENCE
from tests.support import hangs
from tests.support.process import SOURCES, Nsqd
from tests.support.spark import address, next_of, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[str]:
    """Run a server in the JVM that is there, as Spark's plugin does, and return its address."""
    context = spark.sparkContext
    services = context._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr,unused-ignore]
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
    service.start(context._jsc.sc())
    try:
        yield f"sc://127.0.0.1:{service.localPort()}"
    finally:
        service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


def nsqpipe(python: str, *words: object) -> str:
    done = subprocess.run(
        [python, "-m", "nsqpipe", *map(str, words)],
        env={**os.environ, "PYTHONPATH": SOURCES, "PATH": "", "JAVA_HOME": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_topics_land_and_go_back_by_way_of_a_server(
    spark: SparkSession, server: str, nsqd: Nsqd, tmp_path: Path
) -> None:
    hangs.lift_limit()  # three clients start; each has a limit of its own
    python = spark.sparkContext.pythonExec  # forks them from a process that has imported what they need
    table = tmp_path / "table"
    where = ("--remote", server, "--nsqd", address(nsqd), "--table", table)
    decoder = ("--decoder=msgpack", "--schema=number long")
    for start in (0, 500):
        publish(nsqd, "orders", [msgpack.packb({"number": number}) for number in range(start, start + 500)])
        nsqpipe(python, "land", *where, "--topic=orders", *decoder, "--until-now")
    values = DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    assert sorted(value["number"] for value in values) == list(range(1000))
    said = nsqpipe(python, "replay", *where, "--destination-topic=again", "--where=value.number < 300", "--json")
    assert '"sent": 300' in said
    assert next_of(nsqd, "again") == 300
