from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.nsq_json import Fields, JsonError, dumps, loads, read


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"b":1,"a":[true,null,"x"]}'),
        ([], "[]"),
        (None, "null"),
        ("<a href='x'>&", "\"\\u003ca href='x'\\u003e\\u0026\""),
        ("\u2028\u2029", '"\\u2028\\u2029"'),
        ('\n\r\t"\\', '"\\n\\r\\t\\"\\\\"'),
        ("\b\f\x00\x1f\x7f", '"\\u0008\\u000c\\u0000\\u001f\x7f"'),
        ("\\b\\f\\<", '"\\\\b\\\\f\\\\\\u003c"'),  # the text itself has backslashes
        ("é日😀/", '"é日😀/"'),
        ("a\ud800b\udcff", '"a\ufffdb\ufffd"'),
        ({"<": "&"}, '{"\\u003c":"\\u0026"}'),
        (1.0, "1"),
        (260818112.0, "260818112"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (0.99, "0.99"),
        ({"p": [{"q": 1.0, "v": 2.5}], "t": (3.0,)}, '{"p":[{"q":1,"v":2.5}],"t":[3]}'),
        (-3.0, "-3"),
    ],
)
def test_values_are_written_as_go_writes_them(value: object, text: str) -> None:
    assert dumps(value) == text.encode()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_not_written(value: float) -> None:
    with pytest.raises(ValueError):
        dumps([value])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_what_was_written_reads_as_the_same(value: object) -> None:
    text = dumps(value)
    assert loads(text) == value
    assert json.loads(text) == value
    assert not set(b"<>&\n\r") & set(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"{} x",
        b"{}{}",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-16-le"),
        b"[NaN]",
        b"Infinity",
        b"[-Infinity]",
        b'{"a":1,}',
        b"{'a':1}",
        b'"a\nb"',
        b"01",
        b"\xff",
        b"[" * 100_000,
        b'[{"a":' * 600 + b'"\\ud800"' + b"}]" * 600,
        b"+1",
        b"tru",
    ],
)
def test_text_that_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(JsonError):
        loads(text)


@pytest.mark.parametrize("depth", range(100, 1100, 100))
def test_nesting_up_to_any_depth_raises_nothing_but_json_errors(depth: int) -> None:
    for text in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        with suppress(JsonError):
            loads(text)


def test_space_around_a_document_is_fine() -> None:
    assert loads(b' \t\r\n{"a": [1, 2.5, null]} \n') == {"a": [1, 2.5, None]}


def test_text_that_is_not_valid_becomes_replacement_characters() -> None:
    assert loads(b'"a\xff\xe2\x82b"') == "a\ufffd\ufffd\ufffdb"
    assert loads(b'{"\\ud800": ["x\\uDFFFy", "\\ud83d\\ude00"]}') == {"\ufffd": ["x\ufffdy", "😀"]}


def test_integers_of_any_length_can_be_skipped() -> None:
    assert Fields(read(b'{"unknown": ' + b"9" * 10_000 + b', "a": 1}')).integer("a") == 1


@given(st.binary())
def test_reading_garbage_raises_nothing_but_json_errors(data: bytes) -> None:
    try:
        dumps(loads(data))
    except JsonError:
        pass
    except ValueError:
        assert b"e" in data.lower()  # 1e999 reads as infinity


def fields(text: str) -> Fields:
    return Fields(read(text.encode()))


def test_field_names_match_whatever_their_case() -> None:
    assert fields('{"Client_ID": "x"}').text("client_id") == "x"


def test_the_last_of_equal_names_wins_also_among_cases() -> None:
    assert fields('{"a": 1, "A": 2, "a": 3}').integer("a") == 3
    assert fields('{"a": 1, "A": 2}').integer("a") == 2


def test_null_leaves_a_field_as_it_was() -> None:
    assert fields('{"a": null}').integer("a", 7) == 7
    assert fields('{"a": 1, "A": null}').integer("a", 7) == 1


def test_each_of_equal_names_must_have_the_right_type() -> None:
    with pytest.raises(JsonError):
        fields('{"a": "x", "a": 1}').integer("a")


@pytest.mark.parametrize("text", ["null", "{}", '{"b": 1}'])
def test_absent_fields_have_their_defaults(text: str) -> None:
    read = fields(text)
    assert (read.integer("a"), read.text("a"), read.flag("a"), read.items("a")) == (0, "", False, [])


@pytest.mark.parametrize("text", ["[]", "1", '"x"', "true", "1.5"])
def test_only_an_object_has_fields(text: str) -> None:
    with pytest.raises(JsonError, match="expected an object"):
        fields(text)


@pytest.mark.parametrize("number", ["1000.0", "1e3", '"1000"', "true", "[]", "{}", "2147483648", "-2147483649"])
def test_integer_field_takes_only_integer_literals_in_range(number: str) -> None:
    with pytest.raises(JsonError):
        fields(f'{{"a": {number}}}').integer("a", bits=32)


@pytest.mark.parametrize("number", ["0", "-0", "-1", "2147483647", "-2147483648"])
def test_integer_field_takes_integers(number: str) -> None:
    assert fields(f'{{"a": {number}}}').integer("a", bits=32) == int(number)


def test_integer_of_sixty_four_bits_ends_where_they_end() -> None:
    assert fields(f'{{"a": {2**63 - 1}}}').integer("a") == 2**63 - 1
    for number in (2**63, -(2**63) - 1, 10**200):
        with pytest.raises(JsonError, match="does not fit 64 bits"):
            fields(f'{{"a": {number}}}').integer("a")


@pytest.mark.parametrize("value", ["0", "1", '"true"', "[]", "{}"])
def test_flag_takes_only_true_and_false(value: str) -> None:
    with pytest.raises(JsonError, match="a: expected true or false"):
        fields(f'{{"a": {value}}}').flag("a")


@pytest.mark.parametrize("value", ["0", "true", "[]", "{}"])
def test_text_takes_only_strings(value: str) -> None:
    with pytest.raises(JsonError, match="a: expected a string"):
        fields(f'{{"a": {value}}}').text("a")


def test_items_takes_only_lists() -> None:
    assert fields('{"a": [{"b": 1}]}').items("a") == [(("b", b"1"),)]
    with pytest.raises(JsonError, match="a: expected a list"):
        fields('{"a": {}}').items("a")
