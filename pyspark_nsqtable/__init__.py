"""Delta and Iceberg tables as a sink for Spark, each batch exactly once, and Delta's as a source: `format("nsqtable")`.

Spark finds `DefaultSource` by itself, because the package is installed and its name begins with `pyspark_`. It does not
need Delta for the JVM: executors write Parquet with pyarrow, and the driver commits with the `deltalake` wheel, or with
`pyiceberg`. Where to look:

    why no message is there twice   ends.py decides; shares.py for a whole batch; lease.py and unnamed.py for its files
    landing messages                landing.py; appending.py commits to Delta, iceberg_commits.py to Iceberg
    messages as rows for SQL        marks.py
    any other rows                  sink.py (once for each batch), reading.py (the source)
    bodies                          decoding.py (JSON, MessagePack), avro.py, protobuf.py, confluent.py with registry.py
    a body's fields                 columns.py, quick.py; ddl.py for the schema that users write
    files and places                files.py, statistics.py; places.py for stores and their keys; schemas.py
"""

from pyspark_nsqtable.landing import DefaultSource

__all__ = ["DefaultSource"]
