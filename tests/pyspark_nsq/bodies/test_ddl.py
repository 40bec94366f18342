"""The schema on the command line is read as Spark reads it, without starting Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_nsq.bodies.ddl import BadSchema, as_nullable, parse_fields, spelled


def test_plain_and_nested_types_as_spark_spells_them() -> None:
    found = parse_fields(
        "user string NOT NULL COMMENT 'who, when', `a b` decimal(10,2), n: int, "
        "items array<struct<sku: string not null, price double>>, tags map<string, bigint>"
    )
    item = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("price", pa.float64())])
    assert found == pa.struct(
        [
            pa.field("user", pa.string(), nullable=False),
            pa.field("a b", pa.decimal128(10, 2)),
            pa.field("n", pa.int32()),
            pa.field("items", pa.list_(pa.field("element", item))),
            pa.field("tags", pa.map_(pa.string(), pa.int64())),
        ]
    )


def test_a_field_may_be_named_like_a_type() -> None:
    assert parse_fields("int int, `select` date").names == ["int", "select"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a field's name, not the end"),
        ("user", "expected a type after user, not the end"),
        ("user strng", "expected a type: boolean, .* after user, not strng"),
        ("user string,", "expected a field's name after user string ,, not the end"),
        ("user string amount int", "expected a comma or the end after user string, not amount"),
        ("a array<int", "expected '>' after array < int, not the end"),
        ("a int)", r"expected a comma or the end after a int, not \)"),
        ("s struct<>", "expected a field's name after s struct <, not >"),
        ("x decimal(50)", "at most 38 digits"),
        ("x decimal(a)", "expected a number"),
        ("m map<int, int>", "a map's keys must be string, not int"),
        ("a int, A string", "there are two fields named A"),
        ("a int; b int", "cannot be read from '; b int' on"),
        ("a int comment b", "the comment's text in quotes"),
        (f"a {'array<' * 40}int{'>' * 40}", "deeper than 32"),
    ],
)
def test_what_is_no_list_of_fields_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(BadSchema, match=said):
        parse_fields(text)


def test_a_type_is_told_in_the_words_of_the_schema() -> None:
    text = "struct<a: array<struct<b: map<string, double>>>, c: decimal(6, 2), d: timestamp>"
    assert spelled(parse_fields(f"x {text}").field("x").type) == text


def test_nothing_in_a_table_is_required() -> None:
    strict = parse_fields("a int not null, s struct<b: array<struct<c: int not null>> not null>, m map<string, int>")
    loose = parse_fields("a int, s struct<b: array<struct<c: int>>>, m map<string, int>")
    assert as_nullable(strict) == loose
