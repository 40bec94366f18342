"""Everything for Spark: `format("nsq")`, a source with exact offsets and a sink, and tables, each batch exactly once.

Spark finds `DefaultSource` by itself, because the package is installed and its name begins with `pyspark_`. With it
comes everything that an executor needs to read and publish: see docs/how-to/spark.md. `format("nsqtable")` is in the
room `tables`, and Spark finds it through the package `pyspark_nsqtable`. The command `nsqpipe` runs jobs on both.

`DefaultSource` is loaded on request, because the command line, its help and its checks need rooms that work without
Spark.

Where to look:

    called by Spark         data_source.py, then a room: source/, sink/ or tables/
    options                 options.py, kinds.py for their words, and source/schema.py for the columns
    offsets and batches     lanes.py decides; source/ reads
    nodes                   cluster.py finds them, missing.py decides which are missing; http.py
    bodies as Arrow         bodies/
    object stores           stores/
    errors                  errors.py; failures.py makes one line of an error that ends a job
    for people              listener.py with reports.py and idle.py (metrics); source/announcing.py (to nsqd)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_nsq.data_source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from pyspark_nsq.data_source import DefaultSource

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
