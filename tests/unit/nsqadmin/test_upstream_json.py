"""What is taken from a node can be shown, and sent on."""

from __future__ import annotations

import pytest

from nsqadmin.upstream import UpstreamError, _json


@pytest.mark.parametrize("body", [b"<html>", b'{"n":NaN}', b'{"n":-Infinity}', b'{"n":1e999}', b"[" * 100_000, b""])
def test_what_is_no_json_is_an_error(body: bytes) -> None:
    with pytest.raises(UpstreamError, match="no JSON"):
        _json("n1:4151", body)


@pytest.mark.parametrize("name", [b"\\ud800", b"\xed\xa0\x80", b"\xff"])
def test_a_name_that_is_no_text_becomes_text(name: bytes) -> None:
    read = _json("n1:4151", b'{"name":"a%bz"}' % name)["name"]
    assert read.encode().startswith(b"a")
    assert read.endswith("z")


def test_a_pair_of_escapes_is_one_character() -> None:
    assert _json("n1:4151", b'{"name":"\\ud83d\\ude00"}') == {"name": "\U0001f600"}
