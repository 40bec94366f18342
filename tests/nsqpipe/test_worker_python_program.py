"""The program that Spark starts as its Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from nsqpipe.worker_python import COMMAND, worker_python

LIB = Path(pyspark.__file__).parent / "python" / "lib"


def test_a_worker_has_bytecode_for_what_it_imports() -> None:
    assert Path(worker_python()).name == COMMAND
    zips = [str(path) for path in LIB.glob("py*.zip")]
    assert len(zips) == 2
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(zips)}
    asked = ["-c", "import pyspark; print(pyspark.__file__)"]
    as_spark_does = subprocess.check_output([sys.executable, *asked], env=environment, text=True)
    as_we_do = subprocess.check_output([worker_python(), *asked], env=environment, text=True)
    assert "pyspark.zip" in as_spark_does, "if Spark's own way is as good by now, ours may go"
    assert Path(as_we_do.strip()) == Path(pyspark.__file__)
