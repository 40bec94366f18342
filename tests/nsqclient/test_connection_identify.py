"""The answers of an nsqd to IDENTIFY, good and bad."""

from __future__ import annotations

import pytest

from nsqclient import HandshakeError
from nsqclient._connection import Terms, read_terms
from nsqcommon.wire.identify import HttpPlace


@pytest.mark.parametrize("answer", [b"OK", b"{}", b'{"msg_timeout": 0}'])
def test_what_is_not_said_is_as_nsqd_has_it(answer: bytes) -> None:
    assert read_terms(answer) == Terms()


def test_milliseconds_become_seconds() -> None:
    terms = read_terms(b'{"max_rdy_count": 7, "msg_timeout": 1500, "max_msg_timeout": 90000}')
    assert (terms.max_rdy, terms.msg_timeout, terms.max_msg_timeout) == (7, 1.5, 90.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"{",
        b'{"max_rdy_count": null}',
        b'{"max_rdy_count": -5}',
        b'{"max_rdy_count": 1e400}',
        b'{"msg_timeout": "x"}',
        b'{"extensions": 1}',
        b'{"http": {"port": -1}}',
        b'{"http": {"https_port": "x"}}',
        b'{"max_msg_timeout": -1}',
        b'{"x":' + b"[" * 100_000,
    ],
    ids=lambda answer: answer[:30].decode(),
)
def test_what_makes_no_sense_is_no_handshake(answer: bytes) -> None:
    with pytest.raises(HandshakeError, match=r"^failed to IDENTIFY - "):
        read_terms(answer)


@pytest.mark.parametrize(
    ("answer", "extensions"),
    [
        (b'{"extensions": ["bury", "keys"]}', ("bury", "keys")),
        (b'{"extensions": []}', ()),
        (b'{"extensions": null}', ()),
        (b'{"extensions": [1]}', ("1",)),
    ],
)
def test_extensions_are_those_that_nsqd_names(answer: bytes, extensions: tuple[str, ...]) -> None:
    assert read_terms(answer).extensions == extensions


@pytest.mark.parametrize(
    ("told", "http"),
    [
        (b'{"port": 4151, "https_port": 0, "node": "a1"}', HttpPlace(port=4151, https_port=0, node="a1")),
        (b"{}", HttpPlace(port=0, https_port=0, node="")),
        (b"null", None),
        (b'"4151"', None),
    ],
)
def test_where_nsqd_serves_http(told: bytes, http: HttpPlace | None) -> None:
    assert read_terms(b'{"http": %b}' % told).http == http
