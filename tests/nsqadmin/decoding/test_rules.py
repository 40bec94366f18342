"""The decoders file: which entry decides for a message, and every mistake with its line."""

from __future__ import annotations

import pytest

from nsqadmin.decoding.rules import parse_rules
from nsqcommon.entries_file import BadEntries

FILE = """\
[[decoder]]
topic = "orders.*"
content_type = "application/x-protobuf"
decode = ["gzip", "protobuf"]
descriptors = "shop.desc"
message = "shop.Order"

[[decoder]]                     # what else is in these topics
topic = "orders.*"
decode = "none"

[[decoder]]
topic = "clicks"
decode = ["confluent", "avro"]
schemas = { 17 = "click.avsc", 18 = "click2.avsc" }
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadEntries) as refused:
        parse_rules(text)
    return [str(it) for it in refused.value.mistakes]


def of(**keys: object) -> str:
    lines = (f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in keys.items())
    return "\n".join(("[[decoder]]", *lines)).replace("'", '"')


def test_the_first_entry_that_matches_decides() -> None:
    first, other, clicks = parse_rules(FILE)
    assert (first.steps, first.descriptors, first.message) == (("gzip", "protobuf"), "shop.desc", "shop.Order")
    assert first.applies_to("orders.eu", "application/x-protobuf")
    assert not first.applies_to("orders.eu", "")
    assert not first.applies_to("refunds", "application/x-protobuf")
    assert (other.steps, other.line) == ((), 8)
    assert other.applies_to("orders.eu", "text/plain")
    assert clicks.schemas == {17: "click.avsc", 18: "click2.avsc"}


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("[[decoder]", "Expected ']]' at the end of an array declaration (at line 1, column 10)"),
        ("", "expected at least one [[decoder]]"),
        ("[decoders]", "expected only [[decoder]] tables, not decoders"),
        ('decoder = [{decode = "json"}]', "each entry must begin with [[decoder]] in a line of its own"),
        (of(decode="json", topics="a"), "line 1: topics: unknown key; there are topic, content_type"),
        (of(decode="json", topic="a b"), "line 1: topic: 'a b' is neither a name nor a pattern"),
        (of(decode="json", topic=5), "line 1: topic: expected text, not 5"),
        (of(decode="json", content_type="a/b; c=d"), "line 1: content_type: expected a type without parameters"),
        (of(topic="a"), 'line 1: decode: is missing, as in decode = "msgpack"'),
        (of(decode="proto"), "line 1: decode: unknown step 'proto'; there are gzip, deflate"),
        (of(decode=[]), "line 1: decode: expected a step or a list of steps, not []"),
        (of(decode=["gzip"] * 6), "line 1: decode: more than 5 steps"),
        (of(decode=["gzip", "none"]), 'line 1: decode: "none" stands alone'),
        (of(decode=["json", "gzip"]), "line 1: decode: 'json' makes JSON, so it must be the last step"),
        (of(decode=["confluent"]), 'line 1: decode: "confluent" must come just before protobuf, avro or json'),
        (of(decode=["confluent", "gzip", "json"]), 'line 1: decode: "confluent" must come just before'),
        (of(decode=["confluent", "msgpack"]), 'line 1: decode: there is no "confluent" for msgpack'),
        (of(decode="json", schema="a.avsc"), 'line 1: schema: it has no effect without "avro" in decode'),
        (of(decode="protobuf", message="a.B"), "line 1: descriptors: is missing"),
        (of(decode="protobuf", descriptors="a"), "line 1: message: is missing"),
        (of(decode="avro"), "line 1: schema: avro needs the file with the schema"),
        (of(decode="avro") + '\nschemas = { 1 = "a" }', 'line 1: schemas: it has no effect without "confluent"'),
        (of(decode=["confluent", "avro"]) + '\nschemas = { a = "a" }', "line 1: schemas: 'a' is no number of a schema"),
        (of(decode=["confluent", "avro"]) + "\nschemas = { 1 = 2 }", "line 1: schemas: expected files by number"),
        (
            of(decode="json") + "\n" + of(decode="msgpack", topic="a"),
            "line 3: it has no effect, because line 1 decides it for all of these messages",
        ),
    ],
)
def test_a_mistake_has_its_line_and_key(text: str, mistake: str) -> None:
    assert mistakes(text)[0].startswith(mistake)


def test_all_mistakes_are_listed() -> None:
    text = FILE.replace('message = "shop.Order"\n', "").replace('"none"', '"non"')
    assert [it.partition(": ")[0] for it in mistakes(text)] == ["line 1", "line 7"]
