"""The Spark session that all jobs share: here by default, or wherever `--master` or `--remote` says."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from nsqpipe import worker
from nsqpipe.failures import PipeFailed

LOCAL: Final = "local[*]"
_LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# A third of a micro-batch's latency is the default manager's renaming dance, which only object stores need.
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
}
_LOCAL_ONLY: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
}


def open_session(
    name: str, *, master: str = LOCAL, remote: str = "", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """What `conf` says stands above our defaults."""
    _point_workers_here()
    _send_worker_code()
    builder = SparkSession.builder.appName(f"nsqpipe {name}")
    if remote:
        return builder.remote(remote).getOrCreate()
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise PipeFailed("Spark needs Java 17 or newer, and there is none: install a JRE, or set JAVA_HOME")
    # Under spark-submit the master is given from outside, and stands.
    if "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master)
    settings = {**_DEFAULTS, **(_LOCAL_ONLY if master.startswith("local") else {}), **(conf or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _send_worker_code() -> None:
    """Functions that run in workers travel with the job: these need not have nsqpipe installed."""
    cloudpickle.register_pickle_by_value(worker)


def _point_workers_here() -> None:
    """Spark's Python workers are to be of this environment, and to see this tree: an editable install is an import
    hook, which Spark's look for data sources does not ask."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
