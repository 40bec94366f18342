"""The Spark session that all jobs share: here by default, or wherever `--master` or `--remote` says."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_nsq
import pyspark_nsqtable
from nsqpipe import worker
from nsqpipe.failures import PipeFailed

LOCAL: Final = "local[*]"
_LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
_LOCAL_ONLY: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # A third of a micro-batch's latency is the default manager's renaming, which only object stores need.
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
}


def open_session(
    name: str, *, master: str = LOCAL, remote: str = "", conf: Mapping[str, str] | None = None, log: Path | None = None
) -> SparkSession:
    """What `conf` says stands above our defaults. What the JVM has to say goes into `log`, not across our own lines."""
    cloudpickle.register_pickle_by_value(worker)  # workers need not have nsqpipe installed
    builder = SparkSession.builder.appName(f"nsqpipe {name}")
    if remote:
        return builder.remote(remote).getOrCreate()
    if is_submitted():
        settings = {**_DEFAULTS, **(conf or {})}
    else:
        _need_java()
        _point_workers_here()
        builder = builder.master(master)
        if is_local(master):
            os.environ.setdefault(
                "SPARK_LOCAL_IP", "127.0.0.1"
            )  # or Spark looks its own name up, which may have no address
        settings = {**_DEFAULTS, **(_LOCAL_ONLY if is_local(master) else {}), **(conf or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _stderr_into(None if is_submitted() else log):
        spark = builder.getOrCreate()
    if is_submitted() or not is_local(master):
        # Where packages come by --py-files Spark does not look for sources: it has to be told.
        spark.dataSource.register(pyspark_nsq.DefaultSource)
        spark.dataSource.register(pyspark_nsqtable.DefaultSource)
    return spark


def is_submitted() -> bool:
    """Whether spark-submit runs us: it has made the JVM, and chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(master: str) -> bool:
    return master.startswith("local")


def _need_java() -> None:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise PipeFailed("Spark needs Java 17 or newer, and there is none: install a JRE, or set JAVA_HOME")


def _point_workers_here() -> None:
    """Spark's Python workers are to be of this environment, and to see this tree: an editable install is an import
    hook, which Spark's look for data sources does not ask."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])


@contextmanager
def _stderr_into(log: Path | None) -> Iterator[None]:
    """What is started meanwhile writes there for as long as it lives."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
