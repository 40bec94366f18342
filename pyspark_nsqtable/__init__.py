"""`format("nsqtable")` for Spark, which takes one `DefaultSource` from each package called `pyspark_*`.

The code is in `pyspark_nsq.tables`.
"""

from pyspark_nsq.tables.landing import DefaultSource

__all__ = ["DefaultSource"]
