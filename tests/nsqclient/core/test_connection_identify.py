"""IDENTIFY: how a client names itself, and the answers of an nsqd, good and bad."""

from __future__ import annotations

import json

import pytest

from nsqclient import Config, HandshakeError
from nsqclient.core.connection import IdentifyDefaults, Terms, identify_body, read_terms
from nsqclient.shell.identity import our_identity
from nsqcommon.version import suite_version
from nsqcommon.wire.identify import HttpEndpoint

NAMES = ("user_agent", "hostname", "client_id")


def test_a_client_names_its_library_and_its_machine() -> None:
    assert our_identity().user_agent == f"nsqclient/{suite_version()}"
    asked = json.loads(identify_body(Config(), IdentifyDefaults("app1.example.com", "nsqclient/0.1")))
    assert [asked[it] for it in NAMES] == ["nsqclient/0.1", "app1.example.com", "app1"]


def test_a_client_has_the_names_that_it_is_given() -> None:
    config = Config(user_agent="billing/7", hostname="h", client_id="")
    asked = json.loads(identify_body(config, IdentifyDefaults("app1.example.com", "nsqclient/0.1")))
    assert [asked[it] for it in NAMES] == ["billing/7", "h", ""]


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
        (b'{"port": 4151, "https_port": 0, "node": "a1"}', HttpEndpoint(port=4151, https_port=0, node="a1")),
        (b"{}", HttpEndpoint(port=0, https_port=0, node="")),
        (b"null", None),
        (b'"4151"', None),
    ],
)
def test_where_nsqd_serves_http(told: bytes, http: HttpEndpoint | None) -> None:
    assert read_terms(b'{"http": %b}' % told).http == http
