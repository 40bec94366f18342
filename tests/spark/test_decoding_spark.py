"""What decoders share with Spark: the types of a schema, and `from_json`'s results, except for known differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import ParseException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from nsqpipe.transforms import decoded
from pyspark_nsq.bodies.ddl import BadSchema, as_nullable, parse_fields
from pyspark_nsq.bodies.decoding import json_decoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = """s string, b boolean, n tinyint, i int, big bigint, f float, d double, m decimal(6, 2), raw binary, day date,
    at timestamp, at_ntz timestamp_ntz, a array<int>, t map<string, bigint>, r struct<x: int, y: array<struct<z: string>>>"""

SAME = [
    "{}",
    '{"s": "ä\\u00e4\\ud83d\\ude00", "b": true, "n": -128, "i": 1, "big": 9223372036854775807}',
    '{"f": 1.5, "d": -0.0, "m": 12.345}',
    '{"f": 1, "d": 9007199254740993, "m": "1.5"}',
    '{"d": "NaN", "f": "-Infinity"}',
    '{"raw": "aGk=", "day": "2026-03-01", "at": "2026-03-01T12:00:00.123456Z", "at_ntz": "2026-03-01T12:00:00"}',
    '{"at": "2026-03-01T12:00:00+02:00"}',
    '{"at": 1700000000, "at_ntz": "2026-03-01T12:00:00.123456789"}',
    '{"a": [1, null], "t": {"x": 1}, "r": {"x": 1, "y": [{"z": "q"}, null]}}',
    '{"a": [], "t": {}, "r": {}}',
    '{"s": "a", "s": "b", "extra": {"x": [1]}}',
    '{"i": 1.5}',
    '{"i": "1"}',
    '{"b": "yes"}',
    '{"big": 9223372036854775808}',
    '{"day": "2026-02-30"}',
    '{"at": "yesterday"}',
    '{"a": 1}',
    '{"r": [1]}',
    '{"m": 12345.5}',
    "[1]",
    "1",
    "",
    '{"s": ',
    "nonsense",
]

# Differences: Spark's result and ours, None for a row that fails. docs/reference/decoders.md lists them.
DIFFERENT: list[tuple[str, str, str | None, str | None]] = [
    ("too large for a tinyint", '{"n": 128}', "-128", None),
    ("a number for a string", '{"s": 5}', "5", None),
    ("an object for a string", '{"s": {"x": 1}}', '{"x":1}', None),
    ("NaN without quotes", '{"d": NaN}', "nan", None),
    ("trailing data", '{"i": 1} {"i": 2}', "1", None),
    ("a whole number with a point", '{"i": 1.0}', None, "1"),
    ("too large for a float", '{"f": 1e39}', "inf", None),
    ("too large for a double", '{"d": 1e400}', "inf", None),
]


def _spark_fields(text: str) -> StructType:
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


def by_spark(spark: SparkSession, texts: list[str]) -> list[dict[str, Any] | None]:
    wanted = StructType([*_spark_fields(FIELDS), StructField("_corrupt", StringType())])
    rows = spark.createDataFrame([(number, text) for number, text in enumerate(texts)], "number int, text string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    found = rows.select("number", F.from_json("text", wanted, options).alias("value")).orderBy("number").toArrow()
    values = found["value"].to_pylist()
    return [
        None if value is None or value["_corrupt"] is not None else {k: v for k, v in value.items() if k != "_corrupt"}
        for value in values
    ]


def by_us(texts: list[str]) -> list[dict[str, Any] | None]:
    found = json_decoder(parse_fields(FIELDS)).decode(pa.array([text.encode() for text in texts], pa.binary()))
    assert found.values is not None
    return list(found.values.to_pylist())


def test_bodies_mean_what_they_mean_to_from_json(spark: SparkSession) -> None:
    found = zip(SAME, by_spark(spark, SAME), by_us(SAME), strict=True)
    assert [it for it in found if repr(it[1]) != repr(it[2])] == []


def test_where_we_differ_from_from_json_is_known(spark: SparkSession) -> None:
    texts = [text for _, text, _, _ in DIFFERENT]
    seen = []
    for (what, text, _, _), theirs, ours in zip(DIFFERENT, by_spark(spark, texts), by_us(texts), strict=True):
        seen.append((what, text, _only(theirs), _only(ours)))
    assert seen == DIFFERENT


def _only(value: dict[str, Any] | None) -> str | None:
    """Return the only field."""
    if value is None:
        return None
    [found] = [it for it in value.values() if it is not None]
    return str(found)


@pytest.mark.parametrize(
    "text",
    [
        FIELDS,
        "a INT NOT NULL COMMENT 'how \\' many', `b c` array<struct<x: int not null, y map<string, decimal(20)>>>",
        "a: int, b: struct<c: byte, d: short, e: long, f: real, g: numeric(4,1), h: dec, i: timestamp_ltz>",
        "date date, `a``b` string",
    ],
)
def test_a_schema_is_what_spark_reads_in_it(text: str, spark: SparkSession) -> None:
    theirs = to_arrow_schema(_spark_fields(text), timezone="UTC")
    ours = parse_fields(text)
    assert as_nullable(pa.struct(list(theirs))) == as_nullable(ours)
    assert [field.nullable for field in theirs] == [field.nullable for field in ours]


@pytest.mark.parametrize("text", ["a", "a strng", "a int b int", "a int,", "a array<int", "a int; b int"])
def test_schemas_that_spark_refuses_are_refused(text: str, spark: SparkSession) -> None:
    with pytest.raises(ParseException):
        StructType.fromDDL(text)
    with pytest.raises(BadSchema):
        parse_fields(text)


def test_a_frame_is_decoded_row_by_row(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, b'{"i": 1}'), (2, b"x"), (3, None)], "number int, body binary")
    found = decoded(rows, json_decoder(parse_fields(FIELDS))).orderBy("number").collect()
    assert [(row.number, row.value and row.value.i, row.error) for row in found] == [
        (1, 1, None),
        (2, None, "not JSON: invalid character at byte 0"),
        (3, None, None),
    ]
