from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.identify import (
    ClientSettings,
    HttpEndpoint,
    IdentifyRequest,
    ServerFeatures,
    apply_identify,
    decode_identify,
    negotiate,
)

SERVER = ServerFeatures(
    max_rdy_count=2500,
    version="1.3.0",
    max_msg_timeout_ms=900_000,
    max_heartbeat_interval_ms=60_000,
    max_output_buffer_size=65536,
    min_output_buffer_timeout_ms=25,
    max_output_buffer_timeout_ms=30_000,
    max_deflate_level=6,
    tls=False,
    snappy=True,
    deflate=True,
    auth_required=False,
    topology_region="",
    topology_zone="",
    extensions=("bury", "keys"),
)
FRESH = ClientSettings(output_buffer_timeout_ms=250, msg_timeout_ms=60_000, client_id="10.0.0.1", hostname="10.0.0.1")


def applied(**fields: Any) -> ClientSettings:
    return apply_identify(FRESH, IdentifyRequest(**fields), SERVER)


def refused(**fields: Any) -> bytes:
    with pytest.raises(ProtocolError) as raised:
        applied(**fields)
    assert raised.value.fatal
    return raised.value.data


# decode_identify


def test_document_of_all_fields_decodes() -> None:
    body = b"""{"client_id": "c", "hostname": "h", "user_agent": "u", "topology_region": "r", "topology_zone": "z",
        "heartbeat_interval": 1000, "output_buffer_timeout": 100, "output_buffer_size": 4096, "sample_rate": 9,
        "msg_timeout": 2000, "feature_negotiation": true, "tls_v1": true, "snappy": true, "deflate": true,
        "deflate_level": 3, "extensions": ["bury", null, "x"], "short_id": "legacy", "extra": [{}]}"""
    assert decode_identify(body) == IdentifyRequest(
        client_id="c",
        hostname="h",
        user_agent="u",
        topology_region="r",
        topology_zone="z",
        heartbeat_interval=1000,
        output_buffer_timeout=100,
        output_buffer_size=4096,
        sample_rate=9,
        msg_timeout=2000,
        feature_negotiation=True,
        tls_v1=True,
        snappy=True,
        deflate=True,
        deflate_level=3,
        extensions=("bury", "", "x"),
    )


@pytest.mark.parametrize("body", [b"null", b"{}", b' {"client_id": null} ', b'{"extensions": null}', b'{"CLIENT": 1}'])
def test_document_that_says_nothing_is_fine(body: bytes) -> None:
    assert decode_identify(body) == IdentifyRequest()


def test_keys_match_whatever_their_case_and_the_last_wins() -> None:
    assert decode_identify(b'{"Client_Id":"a","CLIENT_ID":"b"}').client_id == "b"


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"[]",
        b"{} {}",
        b'\xef\xbb\xbf{"client_id":"x"}',
        b'{"heartbeat_interval":1000.0}',
        b'{"heartbeat_interval":1e3}',
        b'{"heartbeat_interval":"1000"}',
        b'{"heartbeat_interval":9223372036854775808}',
        b'{"sample_rate":2147483648}',
        b'{"snappy":1}',
        b'{"extensions":"bury"}',
        b'{"extensions":[1]}',
        b'{"extensions":{}}',
        b'{"hostname":1}',
        b'{"deflate_level":NaN}',
    ],
)
def test_document_that_does_not_decode_is_a_bad_body(body: bytes) -> None:
    with pytest.raises(ProtocolError) as raised:
        decode_identify(body)
    assert raised.value.data == b"E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert raised.value.fatal


@given(st.binary())
def test_garbage_raises_nothing_but_protocol_errors(body: bytes) -> None:
    with suppress(ProtocolError):
        decode_identify(body)


# apply_identify


def test_empty_request_keeps_settings_but_clears_metadata() -> None:
    assert applied() == replace(FRESH, client_id="", hostname="")


def test_metadata_are_taken_over() -> None:
    settings = applied(client_id="c", hostname="h", user_agent="u", topology_region="r", topology_zone="z")
    assert (settings.client_id, settings.hostname, settings.user_agent) == ("c", "h", "u")
    assert (settings.topology_region, settings.topology_zone) == ("r", "z")


@pytest.mark.parametrize(
    ("field", "value", "setting", "expected"),
    [
        ("heartbeat_interval", 1000, "heartbeat_interval_ms", 1000),
        ("heartbeat_interval", 60_000, "heartbeat_interval_ms", 60_000),
        ("heartbeat_interval", 0, "heartbeat_interval_ms", 30_000),
        ("heartbeat_interval", -1, "heartbeat_interval_ms", 0),
        ("output_buffer_timeout", 25, "output_buffer_timeout_ms", 25),
        ("output_buffer_timeout", 30_000, "output_buffer_timeout_ms", 30_000),
        ("output_buffer_timeout", 0, "output_buffer_timeout_ms", 250),
        ("output_buffer_timeout", -1, "output_buffer_timeout_ms", 0),
        ("output_buffer_size", 64, "output_buffer_size", 64),
        ("output_buffer_size", 65536, "output_buffer_size", 65536),
        ("output_buffer_size", 0, "output_buffer_size", 16384),
        ("output_buffer_size", -1, "output_buffer_size", 1),
        ("sample_rate", 0, "sample_rate", 0),
        ("sample_rate", 99, "sample_rate", 99),
        ("msg_timeout", 1000, "msg_timeout_ms", 1000),
        ("msg_timeout", 900_000, "msg_timeout_ms", 900_000),
        ("msg_timeout", 0, "msg_timeout_ms", 60_000),
    ],
)
def test_value_in_range_takes_effect(field: str, value: int, setting: str, expected: int) -> None:
    assert getattr(applied(**{field: value}), setting) == expected


@pytest.mark.parametrize(
    ("field", "name", "values"),
    [
        ("heartbeat_interval", "heartbeat interval", (-2, 1, 999, 60_001)),
        ("output_buffer_timeout", "output buffer timeout", (-2, 1, 24, 30_001)),
        ("output_buffer_size", "output buffer size", (-2, 1, 63, 65537)),
        ("sample_rate", "sample rate", (-1, 100)),
        ("msg_timeout", "msg timeout", (-1, 1, 999, 900_001)),
    ],
)
def test_value_out_of_range_is_refused(field: str, name: str, values: tuple[int, ...]) -> None:
    for value in values:
        assert refused(**{field: value}) == f"E_BAD_BODY IDENTIFY {name} ({value}) is invalid".encode()


def test_unbuffered_output_has_no_timed_flush_whatever_was_asked() -> None:
    settings = applied(output_buffer_size=-1, output_buffer_timeout=1000)
    assert (settings.output_buffer_size, settings.output_buffer_timeout_ms) == (1, 0)


def test_first_bad_field_in_order_is_reported() -> None:
    bad = {
        "heartbeat_interval": 1,
        "output_buffer_timeout": 2,
        "output_buffer_size": 3,
        "sample_rate": 444,
        "msg_timeout": 5,
    }
    reported = []
    while bad:
        reported.append(refused(**bad).decode().removeprefix("E_BAD_BODY IDENTIFY "))
        bad.pop(next(iter(bad)))
    assert reported == [
        "heartbeat interval (1) is invalid",
        "output buffer timeout (2) is invalid",
        "output buffer size (3) is invalid",
        "sample rate (444) is invalid",
        "msg timeout (5) is invalid",
    ]


def test_second_identify_builds_on_the_first() -> None:
    first = applied(heartbeat_interval=2000, sample_rate=5, client_id="a")
    second = apply_identify(first, IdentifyRequest(msg_timeout=3000), SERVER)
    assert second == replace(first, msg_timeout_ms=3000, sample_rate=0, client_id="")


# negotiate


def test_without_feature_negotiation_the_answer_is_ok_and_nothing_is_upgraded() -> None:
    result = negotiate(IdentifyRequest(tls_v1=True, snappy=True, deflate=True), FRESH, SERVER)
    assert result.reply is None
    assert (result.tls, result.snappy, result.deflate) == (False, False, False)


def test_reply_is_the_observed_document_byte_for_byte() -> None:
    reply = negotiate(IdentifyRequest(feature_negotiation=True), FRESH, SERVER).reply
    assert reply == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
        b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250,"topology_region":"",'
        b'"topology_zone":""}'
    )


def test_reply_tells_effective_settings_and_the_servers_own_place() -> None:
    server = replace(SERVER, topology_region="r<1>", topology_zone="z", auth_required=True, tls=True)
    request = IdentifyRequest(
        feature_negotiation=True, tls_v1=True, output_buffer_size=-1, msg_timeout=5000, topology_zone="mine"
    )
    result = negotiate(request, apply_identify(FRESH, request, server), server)
    assert result.tls
    for part in (
        b'"tls_v1":true',
        b'"auth_required":true',
        b'"output_buffer_size":1,"output_buffer_timeout":0,',
        b'"msg_timeout":5000',
        b'"topology_region":"r\\u003c1\\u003e","topology_zone":"z"',
    ):
        assert part in (result.reply or b"")


@pytest.mark.parametrize(
    ("asked", "granted", "told"),
    [
        (None, (), b'"topology_zone":""}'),
        ((), (), b'"topology_zone":"","extensions":[]}'),
        (("headers",), (), b'"topology_zone":"","extensions":[]}'),
        (("keys", "headers", "bury"), ("bury", "keys"), b'"topology_zone":"","extensions":["bury","keys"]}'),
    ],
)
def test_extensions_are_told_to_who_asks(asked: tuple[str, ...] | None, granted: tuple[str, ...], told: bytes) -> None:
    result = negotiate(IdentifyRequest(feature_negotiation=True, extensions=asked), FRESH, SERVER)
    assert result.extensions == granted
    assert result.reply is not None
    assert result.reply.endswith(told)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("keys",), b'"extensions":["keys"]}'),
        (("http",), b'"extensions":["http"],"http":{"port":4151,"https_port":4152,"node":"0123"}}'),
    ],
)
def test_where_http_is_served_is_told_to_who_asks(asked: tuple[str, ...], told: bytes) -> None:
    http = HttpEndpoint(port=4151, https_port=4152, node="0123")
    server = replace(SERVER, extensions=("keys", "http"), http=http)
    result = negotiate(IdentifyRequest(feature_negotiation=True, extensions=asked), FRESH, server)
    assert result.reply is not None
    assert result.reply.endswith(told)


def test_upgrades_need_both_sides() -> None:
    request = IdentifyRequest(feature_negotiation=True, tls_v1=True, snappy=True)
    result = negotiate(request, FRESH, replace(SERVER, snappy=False))
    assert (result.tls, result.snappy, result.deflate) == (False, False, False)


def test_both_compressions_at_once_are_refused() -> None:
    request = IdentifyRequest(feature_negotiation=True, snappy=True, deflate=True)
    with pytest.raises(ProtocolError) as raised:
        negotiate(request, FRESH, SERVER)
    assert raised.value.data == b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert raised.value.fatal


def test_compression_that_the_server_lacks_is_no_conflict() -> None:
    request = IdentifyRequest(feature_negotiation=True, snappy=True, deflate=True)
    assert negotiate(request, FRESH, replace(SERVER, deflate=False)).snappy
    assert negotiate(request, FRESH, replace(SERVER, snappy=False)).deflate


@pytest.mark.parametrize(
    ("deflate", "requested", "maximum", "level"),
    [
        (True, 3, 6, 3),
        (True, 0, 6, 6),
        (True, -5, 6, 6),
        (True, 9, 6, 6),
        (True, 9, 9, 9),
        (True, 0, 4, 4),
        (False, 3, 6, 6),
        (False, 3, 4, 4),
    ],
)
def test_deflate_level_counts_only_when_granted(deflate: bool, requested: int, maximum: int, level: int) -> None:
    request = IdentifyRequest(feature_negotiation=True, deflate=deflate, deflate_level=requested)
    result = negotiate(request, FRESH, replace(SERVER, max_deflate_level=maximum))
    assert result.deflate_level == level
    assert f'"deflate_level":{level},"max_deflate_level":{maximum}'.encode() in (result.reply or b"")
