from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from nsqadmin.messages.filters import parse_filter
from nsqadmin.messages.model import Decoded, Message
from nsqadmin.parts.bodies import MOST, coloured, form_of, marks_of, preview, shown

EVIL = b'{"a":"<script>alert(1)</script>","b":[1,-2.5e3,true,null],"<img src=x onerror=x>":"&amp;"}'


def message(body: bytes | None) -> Message:
    return Message(node="n1:4151", id="0" * 16, timestamp=1.0, size=len(body or b""), body=body)


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"a":1}', "json"),
        (b" [1]", "json"),
        (b"{not json", "text"),
        (b"12", "text"),
        ("grün\n".encode(), "text"),
        (b"\x00\x01", "hex"),
        (b"\xff", "hex"),
        (b"", "text"),
        (b"[" * 100_000, "text"),
        (b"[" * 5_000 + b"]" * 5_000, "text"),
        (b"[" * 501 + b"]" * 501, "text"),
        (b"[" * 500 + b"]" * 500, "json"),
        (b"[%s[]]" % (b"[], " * 600), "json"),
        (b'["%s"]' % (b"[" * 600), "json"),
        (b'{"a":' * 501 + b"1" + b"}" * 501, "text"),
        (b'{"n":NaN}', "text"),
        (b'{"n":1e999}', "text"),
    ],
)
def test_the_form_of_a_body_is_recognized(body: bytes, form: str) -> None:
    assert form_of(body) == form


def test_html_in_a_body_is_text() -> None:
    for form in ("auto", "json", "text", "hex", "base64"):
        text = str(shown(message(EVIL), form).text)
        assert "<script" not in text
        assert "<img" not in text


def test_half_a_pair_of_escapes_stays_what_it_was() -> None:
    text = str(shown(message(b'{"a":"\\ud800","b":"\\ud83d\\ude00"}')).text)
    assert "\\ud800" in text
    assert "\U0001f600" in text
    text.encode()


def test_json_is_indented_and_coloured() -> None:
    text = str(shown(message(b'{"a":{"b":[1,"x"]}}')).text)
    assert '  <span class="json-key">&#34;a&#34;</span>: {' in text
    assert '<span class="json-number">1</span>' in text


@given(st.text())
def test_colours_lose_nothing(text: str) -> None:
    for document in (text, {text: [text, 1, None]}):
        written = json.dumps(document, ensure_ascii=False)
        without_tags = re.sub(r"</?span[^>]*>", "", str(coloured(written)))
        assert Markup(without_tags).unescape() == written or "&" in written


def test_bytes_are_shown_in_rows() -> None:
    text = str(shown(message(bytes(range(20)))).text)
    assert text.splitlines()[1] == "00000010  10 11 12 13                                      ...."


def test_a_long_body_is_cut() -> None:
    it = shown(message(b"x" * (MOST + 1)))
    assert it.is_cut
    assert len(it.text) == MOST


def test_a_body_that_may_not_be_seen_is_not_shown() -> None:
    it = shown(message(None))
    assert (it.form, str(it.text), it.preview) == ("", "", "")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("a\n  b\u200b[31m".encode(), "a b [31m"),
        (b'{"name":"M\\u00fcller"}', '{"name": "Müller"}'),
        (b'{"name":"Mueller"}', '{"name":"Mueller"}'),
        (bytes.fromhex("04b7") + bytes(1398), "binary 1.40 kB · 04 b7" + " 00" * 10 + "…"),
        (b"\x00\xff", "binary 2 B · 00 ff"),
    ],
)
def test_a_preview_is_one_readable_line(body: bytes, text: str) -> None:
    assert preview(body) == text


@pytest.mark.parametrize(
    ("wanted", "body", "marked"),
    [
        ("grün", "Grün".encode(), ["Grün"]),
        ("amp", b"a & amp", ["amp"]),
        ("<b>", b"a <b> c", ["&lt;b&gt;"]),
        ("order_id = 12", b'{"order_id":12,"n":312}', ["12"]),
        ("n > 3", b'{"n":312}', []),
    ],
)
def test_hits_are_marked(wanted: str, body: bytes, marked: list[str]) -> None:
    it = shown(message(body), marks=marks_of(parse_filter(wanted)))
    for html in (it.preview, it.text):
        assert re.findall("<mark>(.*?)</mark>", str(html)) == marked


def test_html_stays_text_where_hits_are_marked() -> None:
    it = shown(message(EVIL), marks=marks_of(parse_filter("script")))
    assert "<mark>script</mark>" in it.text
    assert "<script" not in it.text + it.preview


def test_chosen_fields_become_columns() -> None:
    it = shown(
        message(b'{"order_id":7,"customer":{"country":"DE"},"items":[1]}'),
        columns=("order_id", "customer.country", "items", "x"),
    )
    assert it.columns == ("7", "DE", "[1]", "")
    assert shown(message(b"text"), columns=("x",)).columns == ("",)
    assert shown(message(None), columns=("x",)).columns == ("",)


DECODED = replace(
    message(b"\x08\x05"), decoded=Decoded(how="Protobuf a.B", content=b'{"id": 5, "customer": {"country": "DE"}}')
)


def test_a_decoded_body_is_shown_with_its_bytes_a_click_away() -> None:
    it = shown(DECODED, columns=("customer.country",), marks=marks_of(parse_filter("id = 5")))
    assert (it.form, it.preview, it.columns) == (
        "json",
        "{&#34;id&#34;: <mark>5</mark>, &#34;customer&#34;: {&#34;country&#34;: &#34;DE&#34;}}",
        ("DE",),
    )
    assert shown(DECODED, "hex").text.startswith("00000000  08 05")
    assert shown(DECODED, "base64").text == "CAU="
    assert it.forms == ("auto", "json", "text", "hex", "base64")


def test_without_the_bytes_only_the_decoded_body_is_offered() -> None:
    masked = replace(DECODED, body=None)
    assert shown(masked).forms == ("auto", "json")
    for form in ("text", "hex", "base64"):
        assert "08 05" not in shown(masked, form).text
        assert "CAU=" not in shown(masked, form).text


def test_a_body_that_could_not_be_decoded_is_shown_as_it_is_with_the_reason() -> None:
    it = shown(replace(message(b"\x08"), decoded=Decoded(how="Protobuf a.B", problem="Protobuf a.B: ends")))
    assert (it.form, it.problem, it.preview) == ("hex", "Protobuf a.B: ends", "binary 1 B · 08")
