from __future__ import annotations

import pytest

from nsqcommon.wire.edited_copy import NAMES, CopyMark, mark_in
from nsqcommon.wire.headers import decode_headers, encode_headers


@pytest.mark.parametrize("is_instead", [False, True])
@pytest.mark.parametrize("editor", ["", "ann", "e" * 1000, "é" * 100])
def test_a_mark_comes_back_from_its_headers(is_instead: bool, editor: str) -> None:
    mark = CopyMark("billing", 0x0F3C9A8E5D2B1000, 17, is_instead, editor)
    headers = decode_headers(encode_headers({"kind": "order", **mark.headers()}))
    found = mark_in(headers)
    assert found[:4] == mark[:4]
    assert found.replaces == (17 if is_instead else None)
    assert editor.startswith(found.edited_by.rstrip("\ufffd"))
    assert headers.keys() - {"kind"} <= NAMES
