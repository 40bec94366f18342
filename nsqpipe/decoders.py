"""What bodies mean: nothing (raw), JSON, MessagePack or Avro, by a schema. What does not parse has an error instead of a value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from nsqpipe import worker
from nsqpipe.failures import PipeFailed
from nsqpipe.kinds import Kind as Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT = "_corrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    kind: Kind = Kind.RAW
    fields: str = ""  # of a body, as in SQL
    avro_schema: str = ""

    @property
    def can_fail(self) -> bool:
        return self.kind is not Kind.RAW

    def decode(self, rows: DataFrame) -> DataFrame:
        """Adds `value` and `error`, except for raw bodies."""
        if self.kind is Kind.RAW:
            return rows
        schema = self.schema()
        if self.kind is Kind.JSON:
            return _from_json(rows, schema)
        parser = worker.msgpack_parser if self.kind is Kind.MSGPACK else partial(worker.avro_parser, self.avro_schema)
        wanted = StructType([*rows.schema, StructField("value", schema), StructField("error", StringType())])
        value = to_arrow_schema(StructType([StructField("value", schema)]), timezone="UTC")
        return rows.mapInArrow(worker.decoding(parser, value), wanted)

    def schema(self) -> StructType:
        """Spark parses it, so there has to be a session."""
        try:
            found = StructType.fromDDL(self.fields)
        except ParseException as error:
            raise PipeFailed(
                f"--schema {self.fields!r} is no list of fields: {str(error).strip().splitlines()[0]}"
            ) from None
        if not isinstance(found, StructType):
            raise PipeFailed(f"--schema {self.fields!r} is a type; expected fields, as in 'user string, amount double'")
        return found


def make_decoder(kind: Kind, schema: str, avro_schema: str) -> Decoder:
    """`schema` as in SQL: `user string, amount double`."""
    if kind is Kind.RAW:
        if schema or avro_schema:
            raise PipeFailed("--schema says nothing about raw bodies: choose a --decoder")
        return Decoder(kind=kind)
    if not schema:
        raise PipeFailed(f"--decoder {kind} needs a --schema, as in --schema 'user string, amount double'")
    if kind is Kind.AVRO:
        if not avro_schema:
            raise PipeFailed("--decoder avro needs --avro-schema, the file with the schema that bodies were written by")
        if find_spec("fastavro") is None:
            raise PipeFailed("--decoder avro needs fastavro: pip install fastavro")
    return Decoder(kind=kind, fields=schema, avro_schema=_avro_schema(avro_schema) if kind is Kind.AVRO else "")


def _avro_schema(path: str) -> str:
    try:
        text = Path(path).read_text()
        worker.avro_parser(text)  # or the first message would tell
    except OSError as error:
        raise PipeFailed(f"--avro-schema {path}: {error.strerror}") from None
    except Exception as error:  # fastavro has many for what is no schema, and none in common
        raise PipeFailed(f"--avro-schema {path} is no Avro schema: {type(error).__name__}: {error}") from None
    return text


def _from_json(rows: DataFrame, schema: StructType) -> DataFrame:
    wanted = StructType([*schema, StructField(_CORRUPT, StringType())])
    # Not decode(), which ends the query at the first byte that is no UTF-8.
    text = F.try_validate_utf8(F.col("body").cast("string"))
    parsed = rows.withColumn(
        "value",
        F.from_json(text, wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}),
    )
    broken = F.col("value").isNull() | F.col(f"value.{_CORRUPT}").isNotNull()
    return parsed.withColumn("error", F.when(broken, F.lit("not a JSON object of the schema"))).withColumn(
        "value", F.col("value").dropFields(_CORRUPT)
    )
