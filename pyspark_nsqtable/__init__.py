"""Delta tables as a sink for Spark, each batch exactly once: `format("nsqtable")`.

Spark finds `DefaultSource` by itself, because the package is installed and its name begins with `pyspark_`. It does not
need Delta for the JVM: executors write Parquet with pyarrow, and the driver commits with the `deltalake` wheel.
"""

from pyspark_nsqtable.landing import DefaultSource

__all__ = ["DefaultSource"]
