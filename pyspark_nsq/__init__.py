"""NSQ for Spark: `format("nsq")`, a source with exact offsets and a sink.

Spark finds `DefaultSource` by itself, because the package is installed and its name begins with `pyspark_`. Everything
that an executor needs is in this package and in `common`, and all of it is imported here: see docs/how-to/spark.md.
"""

from pyspark_nsq.source import DefaultSource

__all__ = ["DefaultSource"]
