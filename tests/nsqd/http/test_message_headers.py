"""Which headers of a request become headers of its message."""

from __future__ import annotations

import pytest

from nsqcommon.wire.headers import BadHeaders, decode_headers
from nsqd.http.message_headers import headers_of


@pytest.mark.parametrize("of_batch", [False, True])
def test_a_group_is_a_header_as_any_other(of_batch: bool) -> None:
    fields = [(b"nsq-header-nsq-group", "Zürich".encode()), (b"host", b"x")]
    assert decode_headers(headers_of(fields, of_batch=of_batch)) == {"nsq-group": "Zürich".encode()}


@pytest.mark.parametrize(
    ("group", "reason"), [(b"", "0 bytes, expected 1 to 128"), (b"x" * 129, "129 bytes"), (b"\xff", "not UTF-8")]
)
def test_a_group_that_would_not_count_is_refused(group: bytes, reason: str) -> None:
    with pytest.raises(BadHeaders, match=reason):
        headers_of([(b"nsq-header-nsq-group", group)], of_batch=False)
