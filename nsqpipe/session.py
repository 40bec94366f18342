"""Starts the Spark session of a job: on this machine by default, or where `--master` or `--remote` says."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import nsqcommon
import pyspark_nsq
import pyspark_nsqtable
from nsqpipe import shared_classes, worker
from nsqpipe.worker_python import worker_python
from pyspark_nsq.failures import PipeFailed

LOCAL: Final = "local[*]"
_LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Spark's pages and its event log show the options of sources and sinks. A decoder may contain a registry's
    # password, and the properties of a catalog may contain any secret.
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|access[.]?key|decoder|catalog[.]",
}
_LOCAL_ONLY: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    # The default manager renames files, which takes a third of a micro-batch's latency and is only needed in object
    # stores.
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
}
_EVENT_LOG_FOLDER: Final = "spark.eventLog.dir"


def open_session(
    name: str,
    *,
    master: str = LOCAL,
    remote: str = "",
    conf: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> SparkSession:
    """Start a session, or return the active one. `conf`, spark-submit and `spark-defaults.conf` override our defaults.

    The JVM's output goes into `log`, so that it doesn't mix with our own lines.
    """
    cloudpickle.register_pickle_by_value(worker)  # so workers need not have nsqpipe installed
    given = dict(conf or {})
    if remote or SparkSession.getActiveSession() is not None:
        builder = SparkSession.builder.appName(f"nsqpipe {name}")
        return (builder.remote(remote) if remote else builder).config(map={**given}).getOrCreate()
    if not is_submitted():
        _need_java()
        _point_workers_here(local=is_local(master))
        given = {"spark.master": master, **given}
        if is_local(master):
            # Otherwise Spark looks up the machine's name, which may have no address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = _start(f"nsqpipe {name}", given, log)
    if not is_local(spark.sparkContext.master or ""):
        # Spark doesn't search packages from --py-files for sources, so we register them here.
        spark.dataSource.register(pyspark_nsq.DefaultSource)
        spark.dataSource.register(pyspark_nsqtable.DefaultSource)
    return spark


def _start(name: str, given: Mapping[str, str], log: IO[bytes] | None) -> SparkSession:
    """Start the JVM, and then the session.

    Only the JVM knows the settings of `spark-defaults.conf` and spark-submit.
    """
    os.environ.update(shared_classes.environment())
    asked = SparkConf(loadDefaults=False).setAll(list(given.items()))
    gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]  # it has no types
        asked, {"stdout": log, "stderr": log} if log is not None else None
    )
    settings = SparkConf(_jvm=gateway.jvm).setAll(list(given.items()))
    for key, value in defaults_for(dict(settings.getAll())).items():
        settings.setIfMissing(key, value)
    settings.setIfMissing("spark.app.name", name)
    SparkContext(conf=settings, gateway=gateway)
    return SparkSession.builder.getOrCreate()


def defaults_for(said: Mapping[str, str]) -> dict[str, str]:
    """Return our defaults.

    There are more on one machine, because we know there how large Spark is, and who can see its pages.
    """
    if is_local(said.get("spark.master", "")):
        return {**_DEFAULTS, **_LOCAL_ONLY}
    # Without a folder for the event log Spark wouldn't start; and because a stream fills the folder, we don't choose
    # one.
    event_log = {"spark.eventLog.enabled": "true"} if _EVENT_LOG_FOLDER in said else {}
    return {**_DEFAULTS, "spark.ui.enabled": "true", **event_log}


def known_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings before it starts: its file of defaults or spark-submit's, then `conf`."""
    if is_submitted():
        SparkContext._ensure_initialized()
        return {**dict(SparkConf().getAll()), **conf}
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    file = Path(folder) / "spark-defaults.conf"
    lines = file.read_text().splitlines() if file.is_file() else []
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines if not line.lstrip().startswith("#"))
    return {**{pair[0]: pair[1] for pair in pairs if len(pair) == 2}, **conf}


def is_submitted() -> bool:
    """Return True if spark-submit runs us: then it has started the JVM and chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(master: str) -> bool:
    return master.startswith("local")


def _need_java() -> None:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise PipeFailed("Spark needs Java 17 or newer, and there is none: install a JRE, or set JAVA_HOME")


def _point_workers_here(*, local: bool) -> None:
    """Make Spark's Python workers use this environment, with this source tree on their path.

    An editable install is an import hook, and Spark doesn't use it to find data sources.
    """
    os.environ.setdefault("PYSPARK_PYTHON", worker_python() if local else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    ours = dict.fromkeys(str(Path(*package.__path__).resolve().parent) for package in (pyspark_nsq, nsqcommon))
    os.environ["PYTHONPATH"] = os.pathsep.join([*(path for path in ours if path not in paths), *paths])
