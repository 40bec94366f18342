"""`nsqpipe submit`: the same jobs on a cluster, by spark-submit. Nothing in them assumes a disk shared with nsqd."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from nsqpipe.kinds import DeployMode

if TYPE_CHECKING:
    from nsqpipe.jobs import Submit

_PACKAGES: Final = ("common", "pyspark_nsq", "pyspark_nsqtable", "nsqpipe")
_HERE: Final = Path(__file__).resolve().parent
_SPARK: Final = Path(pyspark.__file__).parent
_DRIVER_PYTHON: Final = "spark.pyspark.driver.python"


def command_for(job: Submit, archive: Path) -> list[str]:
    """Workers get our packages as an archive; what these import must be installed there."""
    settings = dict(job.conf)
    if job.deploy_mode is DeployMode.CLIENT:
        # Even where spark.pyspark.python names the workers' Python: the driver runs here, and must find us.
        settings.setdefault(_DRIVER_PYTHON, sys.executable)
    return [
        str(_SPARK / "bin" / "spark-submit"),
        *("--master", job.master, "--deploy-mode", job.deploy_mode, "--py-files", str(archive)),
        *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
        str(_HERE / "__main__.py"),
        *(word for word in job.job if word != "--"),
    ]


def environment(job: Submit, archive: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What spark-submit needs to find Spark, and workers the same Python. What is given stands above it.

    `spark.pyspark.python`, on the command line or in `spark-defaults.conf`, stands above the environment. Spark also plans
    with the workers' Python, on the driver, and gives it nothing of `--py-files`: hence the path.
    """
    ours = {"SPARK_HOME": str(_SPARK)}
    if job.deploy_mode is DeployMode.CLIENT:
        ours["PYSPARK_PYTHON"] = sys.executable
    paths = [str(archive), *filter(None, [given.get("PYTHONPATH")])]
    return {**ours, **given, "PYTHONPATH": os.pathsep.join(paths)}


def pack(archive: Path) -> None:
    """Our packages' sources in one file that Spark hands to each worker."""
    root = _HERE.parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                file.write(path, path.relative_to(root))
