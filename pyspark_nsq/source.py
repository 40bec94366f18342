"""What Spark finds under the name `nsq`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_nsq.batch_source import NsqBatchReader
from pyspark_nsq.options import source_options
from pyspark_nsq.schema import arrow_schema, default_schema
from pyspark_nsq.stream_source import NsqStreamReader


class DefaultSource(DataSource):
    """Nothing but options is looked at before Spark asks for a reader or writer. Spark calls by these argument names."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        return default_schema(gap_rows=source_options(self.options).gap_rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        return NsqBatchReader(source_options(self.options), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NsqStreamReader(source_options(self.options), arrow_schema(schema))
