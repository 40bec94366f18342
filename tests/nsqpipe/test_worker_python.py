"""What the program that Spark starts as its Python workers leaves out of their path."""

from __future__ import annotations

import os

from nsqpipe.worker_python import without_zips


def test_what_spark_puts_first_is_left_out_and_nothing_else() -> None:
    paths = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip", "/my/own.zip", "/tree"]
    assert without_zips({"PYTHONPATH": os.pathsep.join(paths), "HOME": "/h"}) == {
        "PYTHONPATH": os.pathsep.join(["/my/own.zip", "/tree"]),
        "HOME": "/h",
    }
