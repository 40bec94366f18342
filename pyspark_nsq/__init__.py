"""NSQ for Spark: `format("nsq")`, a source with exact offsets and a sink.

Spark finds `DefaultSource` by itself, because the package is installed and its name begins with `pyspark_`. Everything
that an executor needs is in this package and in `nsqcommon`, and all of it is imported here: see docs/how-to/spark.md.

Where to look:

    what Spark calls        source.py, then batch_source.py, stream_source.py or sink.py
    options                 options.py, and schema.py for the columns
    offsets and batches     lanes.py decides; sharing.py how much of each lane, from what profiles.py knows
    which nodes there are   cluster.py asks, watch.py keeps on asking, missing.py decides who is missing; http.py
    in a task               reading.py (waits, goes on), rows.py and payload_offsets.py (Arrow); packing.py for the sink
    what people see         announcing.py (to nsqd); listener.py with reports.py and idle.py (metrics)

`ranges.py` is for the sink of `pyspark_nsqtable`, which reads the messages itself.
"""

from pyspark_nsq.source import DefaultSource

__all__ = ["DefaultSource"]
