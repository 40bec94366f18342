"""Long JSON is read in slices, with the same result as the reader in C."""

from __future__ import annotations

import json
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.upstream import sliced_json
from nsqadmin.upstream.sliced_json import WINDOW

_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def loads(text: bytes) -> Any:
    return _run(text)[0]


def _run(text: bytes, **bounds: int) -> tuple[Any, int]:
    """Return the document, and how often the reader paused."""
    reading, pauses = sliced_json.loads(text, **bounds), 0
    while True:
        try:
            next(reading)
            pauses += 1
        except StopIteration as end:
            return end.value, pauses


@given(_documents, st.integers(0, 3), st.booleans())
def test_windows_do_not_matter(document: Any, indent: int, only_ascii: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliced_json, "WINDOW", 4096)
        several = {"before": "ä" * 600, "topics": [document] * 5, "after": ["x" * 3000, document, "\U0001f600" * 300]}
        text = json.dumps(several, indent=indent or None, ensure_ascii=only_ascii).encode()
        assert loads(text) == several


def test_a_long_answer_is_read_with_pauses() -> None:
    topics = [{"topic_name": f"orders-{it}-中", "channels": [{"n": it, "share": 0.5}]} for it in range(20_000)]
    text = json.dumps({"topics": topics}, ensure_ascii=False).encode()
    document, pauses = _run(text)
    assert document == {"topics": topics}
    assert pauses >= len(text) // WINDOW


def test_a_topic_that_is_longer_than_a_window_is_taken_apart() -> None:
    topic = {"topic_name": "t", "channels": [{"clients": [{"client_id": "c" * 100}] * 2000}]}
    document, pauses = _run(json.dumps([topic, topic]).encode())
    assert document == [topic, topic]
    assert pauses > 10


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"{}," * 100_000,
        b"[" + b"1 " * 100_000 + b"]",
        b'{"a":1,' + b'"b":2,' * 50_000 + b"}",
        b"{1:" + b"[0]," * 50_000,
        b"[" * 1_000_000,
        b'{"a":[' * 200_000,
        b'"' + b"a" * 1_000_000 + b'"',
        b"[" + b"1" * 1_000_000 + b"]",
        b"[" + b" " * 1_000_000 + b"1]",
        b"[" + b"0," * 50_000 + b"NaN]",
        b"[" + b"0," * 50_000 + b"1e999]",
        b"[" + b"0," * 50_000 + b"]",
        b"[" + b"0," * 50_000 + b"0]x",
        b"[" + b"0," * 50_000 + b'"\x01"]',
        b"",
        b" ",
        b"nul",
        b"<html>",
        b'{"n":NaN}',
        b'{"n":-Infinity}',
        b'{"n":1e999}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_is_refused_without_reading_on(text: bytes) -> None:
    began = thread_time()
    with pytest.raises(ValueError, match=r"."):
        loads(text)
    assert thread_time() - began < 5


@pytest.mark.parametrize("name", [b"\\ud800", b"\xed\xa0\x80", b"\xff"])
@pytest.mark.parametrize("before", [0, 20_000])
def test_a_name_that_is_no_text_becomes_text(name: bytes, before: int) -> None:
    read = loads(b"[" + b"0," * before + b'{"name":"a%bz"}]' % name)[-1]["name"]
    assert read.encode().startswith(b"a")
    assert read.endswith("z")


def test_a_pair_of_escapes_is_one_character() -> None:
    assert loads(b'{"name":"\\ud83d\\ude00"}') == {"name": "\U0001f600"}


def test_a_number_on_the_border_of_a_window_is_whole() -> None:
    for length in range(1, 12):
        text = b"[" + b" " * (WINDOW - 6) + b"1" * length + b",2]"
        assert loads(text) == [int("1" * length), 2]


@pytest.mark.parametrize("element", [b"{}", b"[]", b"1", b'"ab"', b'"\\ud800"', b"1.5", b'"\xff"', b'{"a":{"b":1}}'])
def test_no_slice_takes_long(element: bytes) -> None:
    before = (b"[" + b"0," * 15_000 + b"0],") * 6  # six slices, so that what follows is far from the beginning
    reading = sliced_json.loads(b"[" + before + (element + b",") * (60_000 // len(element)) + b"0]")
    slices = []
    began = thread_time()
    try:
        while True:
            next(reading)
            now = thread_time()
            slices.append(now - began)
            began = now
    except StopIteration:
        pass
    slices.sort()
    # Most slices take a millisecond; the garbage collector may extend one.
    assert slices[len(slices) // 2] < 0.02, slices[-5:]


@pytest.mark.parametrize("body", ["x" * 100_000, '"\\' * 50_000, "ä" * 50_000, "\U0001f600" * 30_000, "\\" * 99_999])
@pytest.mark.parametrize("only_ascii", [True, False])
def test_a_long_text_is_read_where_it_is_allowed(body: str, only_ascii: bool) -> None:
    document = {"id": "a", "body": body, "next": ["b", 1]}
    text = json.dumps(document, ensure_ascii=only_ascii).encode()
    assert _run(text, longest_text=1 << 20)[0] == document
    with pytest.raises(ValueError, match=r"text"):
        _run(text, longest_text=WINDOW + 1)


def test_half_a_character_in_a_long_text_is_replaced() -> None:
    assert _run(b'["' + b"x" * WINDOW + b'\\ud800"]', longest_text=1 << 20)[0] == ["x" * WINDOW + "?"]


@pytest.mark.parametrize("end", [b"", b"\\", b'\\"'])
def test_a_long_text_without_an_end_is_refused(end: bytes) -> None:
    with pytest.raises(ValueError, match="has no end"):
        _run(b'"' + b'\\"' * 100_000 + end, longest_text=1 << 20)


def test_a_long_text_of_escapes_is_searched_with_pauses() -> None:
    assert _run(b'"' + b'\\"' * 100_000 + b'"', longest_text=1 << 20)[1] >= 100_000 // 501
