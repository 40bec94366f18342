"""Spark Connect: a server that has the package, and clients without Java."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgpack
import pyspark
import pytest
from deltalake import DeltaTable

from tests.spark.kill9 import PATIENCE, Application
from tests.support.process import SOURCES, Nsqd, eventually
from tests.support.spark import address, next_of, publish

_SUBMIT: Final = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED: Final = re.compile(r"Spark Connect server started at: .*:(\d+)$", re.MULTILINE)
_SETTINGS: Final = (
    *("spark.connect.grpc.binding.address=127.0.0.1", "spark.connect.grpc.binding.port=0"),
    *("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.ui.enabled=false"),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Run a server, and return its address."""
    faulthandler.cancel_dump_traceback_later()  # a JVM and three clients start; every wait here has a limit of its own
    conf = [text for setting in _SETTINGS for text in ("--conf", setting)]
    server = Application(
        tmp_path,
        [str(_SUBMIT), "--master", "local[2]", "--driver-memory", "1g", *conf, "--class", _CLASS, "spark-internal"],
    )
    server.start()
    try:
        found = eventually(lambda: _STARTED.search(server.log), timeout=PATIENCE)
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        server.kill()


def nsqpipe(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "nsqpipe", *map(str, words)],
        env={**os.environ, "PYTHONPATH": SOURCES, "PATH": "", "JAVA_HOME": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.own_jvm("a server of Spark Connect; clients without Java")
@pytest.mark.slow
def test_topics_land_and_go_back_by_way_of_a_server(server: str, nsqd: Nsqd, tmp_path: Path) -> None:
    table = tmp_path / "table"
    where = ("--remote", server, "--nsqd", address(nsqd), "--table", table)
    decoder = ("--decoder=msgpack", "--schema=number long")
    for start in (0, 500):
        publish(nsqd, "orders", [msgpack.packb({"number": number}) for number in range(start, start + 500)])
        nsqpipe("land", *where, "--topic=orders", *decoder, "--until-now")
    values = DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    assert sorted(value["number"] for value in values) == list(range(1000))
    said = nsqpipe("replay", *where, "--destination-topic=again", "--where=value.number < 300", "--json")
    assert '"sent": 300' in said
    assert next_of(nsqd, "again") == 300
