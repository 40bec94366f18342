"""`nsqpipe submit`: runs jobs on a cluster with spark-submit. They don't need to share a disk with nsqd."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from pyspark_nsq.kinds import DeployMode

if TYPE_CHECKING:
    from nsqpipe.jobs import Submit

_PACKAGES: Final = ("nsqcommon", "pyspark_nsq", "pyspark_nsqtable", "nsqpipe")
_HERE: Final = Path(__file__).resolve().parent
_SPARK: Final = Path(pyspark.__file__).parent
_DRIVER_PYTHON: Final = "spark.pyspark.driver.python"


def command_for(job: Submit, archive: Path) -> list[str]:
    """Return spark-submit's command line. Workers get our packages as an archive, but not their dependencies."""
    settings = dict(job.conf)
    if job.deploy_mode is DeployMode.CLIENT:
        # Even if spark.pyspark.python names another Python for the workers: the driver runs here, and must find us.
        settings.setdefault(_DRIVER_PYTHON, sys.executable)
    return [
        str(_SPARK / "bin" / "spark-submit"),
        *("--master", job.master, "--deploy-mode", job.deploy_mode, "--py-files", str(archive)),
        *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
        str(_HERE / "__main__.py"),
        *(word for word in job.job if word != "--"),
    ]


def environment(job: Submit, archive: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which spark-submit finds Spark, and workers use the same Python. `given` overrides
    ours.

    `spark.pyspark.python`, on the command line or in `spark-defaults.conf`, overrides the environment. On the driver,
    Spark plans with the workers' Python too, but without `--py-files`, so the archive has to be on its path.
    """
    ours = {"SPARK_HOME": str(_SPARK)}
    if job.deploy_mode is DeployMode.CLIENT:
        ours["PYSPARK_PYTHON"] = sys.executable
    paths = [str(archive), *filter(None, [given.get("PYTHONPATH")])]
    return {**ours, **given, "PYTHONPATH": os.pathsep.join(paths)}


def pack(archive: Path) -> None:
    """Pack our packages' sources into one file, which Spark sends to each worker."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            folder = Path(*import_module(package).__path__)
            for path in sorted(folder.rglob("*.py")):
                file.write(path, path.relative_to(folder.parent))
