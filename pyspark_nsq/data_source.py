"""The data source with the name `nsq` in Spark."""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_nsq.errors import BadOption
from pyspark_nsq.options import SinkOptions, sink_options, source_options
from pyspark_nsq.sink.packing import check_columns
from pyspark_nsq.sink.publishing import NsqStreamWriter, NsqWriter
from pyspark_nsq.source.batch_source import NsqBatchReader
from pyspark_nsq.source.ranges import COLUMNS, SCHEMA
from pyspark_nsq.source.schema import arrow_schema, default_schema
from pyspark_nsq.source.stream_source import NsqStreamReader


class DefaultSource(DataSource):
    """Makes readers and writers. Until Spark requests one, we only check the options, and query no node.

    Spark passes arguments by name, so these are Spark's names.
    """

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        options = source_options(self.options)
        return (
            SCHEMA if options.as_ranges else default_schema(gap_rows=options.gap_rows, headers=options.include_headers)
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options)
        if options.as_ranges:
            raise BadOption("ranges=true works for streams only")
        return NsqBatchReader(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options(self.options)
        return NsqStreamReader(options, COLUMNS if options.as_ranges else arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise BadOption('a topic cannot be overwritten: use mode("append")')
        options = self._sink_options(schema)
        # The id is used for the keys of `exactlyOnce`. A random one is enough for tasks that are repeated within this
        # write; if the write itself is repeated, the user has to give a `writeId`.
        return NsqWriter(options, options.write_id or uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return NsqStreamWriter(self._sink_options(schema))  # type: ignore[return-value,unused-ignore]

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = sink_options(self.options)
        check_columns(to_arrow_schema(schema, timezone="UTC"), topic=options.topic, has_keys=options.has_keys)
        return options
